// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/dma_table.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "shim/base/error.h"

namespace kz::softtpu {

using vfio_user::dma_read_ok;
using vfio_user::dma_write_ok;

namespace {

constexpr uint64_t page = 4096;

// Maps the window's bytes. A window that the device may only read is mapped writable where the descriptor
// allows it, so that a broken DMA engine (fault D16) has something to hit.
int map_bytes(DmaTable::Window& w, uint64_t offset, const Fd& fd) {
  if (offset % page != 0 || w.address % page != 0) return EINVAL;
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return errno;
  if (!S_ISREG(st.st_mode)) return EINVAL;
  auto bytes = static_cast<uint64_t>(st.st_size);
  if (offset > bytes || w.size > bytes - offset) return EINVAL;
  bool must_write = (w.flags & dma_write_ok) != 0;
  for (bool writable : {true, false}) {
    try {
      w.mapping = Mapping(fd.get(), offset, Bytes{w.size}, writable, "client memory");
      w.base = w.mapping.data();
      w.host_writable = writable;
      return 0;
    } catch (const Error& e) {
      if (must_write || !writable) return e.info().sys_errno != 0 ? e.info().sys_errno : ENOMEM;
    }
  }
  return EACCES;
}

}  // namespace

int DmaTable::map(uint64_t address, uint64_t size, uint32_t flags, uint64_t offset, const Fd* fd) {
  if (flags == 0 || (flags & ~(dma_read_ok | dma_write_ok)) != 0) return EINVAL;
  if (size == 0 || size - 1 > UINT64_MAX - address) return EINVAL;
  auto window = std::make_shared<Window>();
  window->address = address;
  window->size = size;
  window->flags = flags;
  {
    std::lock_guard lock(m_);
    if (table_.size() >= max_maps) return ENOSPC;
    auto next = table_.lower_bound(address);
    if (next != table_.end() && next->first - address < size) return EEXIST;
    if (next != table_.begin() && address - std::prev(next)->first < std::prev(next)->second->size)
      return EEXIST;
  }
  if (fd != nullptr)
    if (int err = map_bytes(*window, offset, *fd); err != 0) return err;
  std::lock_guard lock(m_);  // only this thread changes the table
  table_.emplace(address, std::move(window));
  return 0;
}

void DmaTable::retire(std::shared_ptr<Window> window, Windows& dying) {
  if (window->base != nullptr && faults_.active(Row::D17) != nullptr) ghosts_[window->address] = window;
  dying.push_back(std::move(window));
}

int DmaTable::unmap(uint64_t address, uint64_t size, Windows& dying) {
  std::lock_guard lock(m_);
  auto first = table_.lower_bound(address);
  auto inside = [&](const auto& w) {
    return w->address - address < size && w->size <= size - (w->address - address);
  };
  auto last = first;
  while (last != table_.end() && inside(last->second)) ++last;
  auto is_cut = [&](auto it) { return it != table_.end() && it->first - address < size; };
  bool head = first != table_.begin() && address - std::prev(first)->first < std::prev(first)->second->size;
  if (first == last || is_cut(last) || head) return ENOENT;
  for (auto it = first; it != last; ++it) retire(std::move(it->second), dying);
  table_.erase(first, last);
  return 0;
}

void DmaTable::unmap_all(Windows& dying) {
  std::lock_guard lock(m_);
  for (auto& [address, window] : table_) retire(std::move(window), dying);
  table_.clear();
}

bool DmaTable::quiet(const Windows& dying) const {
  std::lock_guard lock(m_);
  return std::all_of(dying.begin(), dying.end(), [](const auto& w) { return w->users == 0; });
}

void DmaTable::on_quiet(std::function<void()> callback) {
  std::lock_guard lock(m_);
  on_quiet_ = std::move(callback);
}

void DmaTable::forget_client() {
  std::lock_guard lock(m_);
  table_.clear();
  ghosts_.clear();
}

size_t DmaTable::windows() const {
  std::lock_guard lock(m_);
  return table_.size();
}

bool DmaTable::allowed() { return powered_ && (bus_master_ || faults_.due(Row::D18) != nullptr); }

std::shared_ptr<DmaTable::Window> DmaTable::find(const Table& table, uint64_t iova, uint64_t len) const {
  auto it = table.upper_bound(iova);
  if (it == table.begin()) return nullptr;
  const auto& w = std::prev(it)->second;
  uint64_t offset = iova - w->address;
  return offset < w->size && len <= w->size - offset ? w : nullptr;
}

bool DmaTable::is_direct(uint64_t iova, uint64_t len) const {
  std::lock_guard lock(m_);
  auto w = find(table_, iova, len);
  return w != nullptr && w->base != nullptr;
}

bool DmaTable::pin(uint64_t iova, uint64_t len, uint32_t need, std::vector<Piece>& pieces) {
  std::lock_guard lock(m_);
  while (len > 0) {
    auto w = find(table_, iova, 1);
    if (w == nullptr || (w->flags & need) != need) return false;
    uint64_t offset = iova - w->address;
    uint64_t n = std::min(len, w->size - offset);
    pieces.push_back({std::move(w), offset, n});
    iova += n;
    len -= n;
    if (iova == 0 && len > 0) return false;  // past the end of the address space
  }
  for (Piece& p : pieces) ++p.window->users;
  return true;
}

void DmaTable::unpin(const std::shared_ptr<Window>& window) {
  std::function<void()> tell;
  {
    std::lock_guard lock(m_);
    if (--window->users > 0) return;
    auto it = table_.find(window->address);
    if (it == table_.end() || it->second != window) tell = on_quiet_;
  }
  if (tell) tell();
}

bool DmaTable::read(uint64_t iova, std::span<std::byte> out) {
  if (!allowed()) return false;
  std::vector<Piece> pieces;
  if (!pin(iova, out.size(), dma_read_ok, pieces)) return ask_for_unmapped_ && remote_.read(iova, out);
  bool ok = true;
  for (const Piece& p : pieces) {
    auto part = out.first(p.len);
    out = out.subspan(p.len);
    if (p.window->base != nullptr)
      std::memcpy(part.data(), p.window->base + p.offset, part.size());
    else
      ok = ok && remote_.read(p.window->address + p.offset, part);
    unpin(p.window);
  }
  return ok;
}

bool DmaTable::write(uint64_t iova, std::span<const std::byte> in) {
  if (!allowed()) return false;
  std::vector<Piece> pieces;
  if (!pin(iova, in.size(), dma_write_ok, pieces)) return ask_for_unmapped_ && remote_.write(iova, in);
  bool ok = true;
  for (const Piece& p : pieces) {
    auto part = in.first(p.len);
    in = in.subspan(p.len);
    if (p.window->base != nullptr)
      std::memcpy(p.window->base + p.offset, part.data(), part.size());
    else
      ok = ok && remote_.write(p.window->address + p.offset, part);
    unpin(p.window);
  }
  return ok;
}

std::byte* DmaTable::hold(std::shared_ptr<Window> window, uint64_t iova) {
  ++window->users;
  std::byte* p = window->base + (iova - window->address);
  held_.emplace_back(std::this_thread::get_id(), std::move(window));
  return p;
}

std::byte* DmaTable::acquire(uint64_t iova, uint64_t len, bool for_write) {
  if (!allowed()) return nullptr;
  std::lock_guard lock(m_);
  auto w = find(table_, iova, len);
  if (w == nullptr || w->base == nullptr || (w->flags & (for_write ? dma_write_ok : dma_read_ok)) == 0)
    return nullptr;
  return hold(std::move(w), iova);
}

std::byte* DmaTable::acquire_ignoring_rights(uint64_t iova, uint64_t len) {
  if (!powered_) return nullptr;
  std::lock_guard lock(m_);
  auto w = find(table_, iova, len);
  if (w == nullptr) w = find(ghosts_, iova, len);
  if (w == nullptr || w->base == nullptr || !w->host_writable) return nullptr;
  return hold(std::move(w), iova);
}

void DmaTable::release() {
  std::shared_ptr<Window> window;
  {
    std::lock_guard lock(m_);
    auto mine = [me = std::this_thread::get_id()](const auto& h) { return h.first == me; };
    auto it = std::find_if(held_.rbegin(), held_.rend(), mine);
    if (it == held_.rend()) return;
    window = std::move(it->second);
    held_.erase(std::next(it).base());
  }
  unpin(window);
}

}  // namespace kz::softtpu
