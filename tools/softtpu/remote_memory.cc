// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/remote_memory.h"

#include <algorithm>

namespace kz::softtpu {

using vfio_user::DmaAccess;
using vfio_user::Header;

void RemoteMemory::attach(Channel* channel, uint32_t max_data) {
  std::lock_guard lock(m_);
  channel_ = channel;
  piece_ = std::clamp<size_t>(max_data, 1, piece);
}

void RemoteMemory::detach() {
  std::lock_guard lock(m_);
  channel_ = nullptr;
  changed_.notify_all();
}

void RemoteMemory::cancel(std::thread::id thread) {
  std::lock_guard lock(m_);
  cancelled_.insert(thread);
  changed_.notify_all();
}

void RemoteMemory::forgive(std::thread::id thread) {
  std::lock_guard lock(m_);
  cancelled_.erase(thread);
}

bool RemoteMemory::read(uint64_t address, std::span<std::byte> out) {
  while (!out.empty()) {
    size_t n = std::min(out.size(), piece_);
    if (!transfer(vfio_user::cmd_dma_read, address, out.first(n), {})) return false;
    out = out.subspan(n);
    address += n;
  }
  return true;
}

bool RemoteMemory::write(uint64_t address, std::span<const std::byte> in) {
  while (!in.empty()) {
    size_t n = std::min(in.size(), piece_);
    if (!transfer(vfio_user::cmd_dma_write, address, {}, in.first(n))) return false;
    in = in.subspan(n);
    address += n;
  }
  return true;
}

bool RemoteMemory::transfer(uint16_t command, uint64_t address, std::span<std::byte> out,
                            std::span<const std::byte> in) {
  DmaAccess access{address, std::max(out.size(), in.size())};
  Pending mine{std::this_thread::get_id(), command, out, access.count};
  std::unique_lock lock(m_);
  if (channel_ == nullptr || cancelled_.contains(mine.thread)) return false;
  while (pending_.contains(next_id_)) ++next_id_;  // at most one a thread is pending, so one is free
  Header header{next_id_++, command, static_cast<uint32_t>(sizeof(Header) + sizeof access + in.size()), 0, 0};
  pending_[header.id] = &mine;
  bool sent = channel_->send(header, std::as_bytes(std::span(&access, 1)), in, {});
  auto over = [&] { return mine.done || channel_ == nullptr || cancelled_.contains(mine.thread); };
  if (sent) changed_.wait_until(lock, std::chrono::steady_clock::now() + timeout_, over);
  pending_.erase(header.id);
  return mine.done && mine.ok;
}

void RemoteMemory::on_reply(Message message) {
  std::lock_guard lock(m_);
  auto it = pending_.find(message.header.id);
  if (it == pending_.end() || it->second->command != message.header.command) return;
  Pending& p = *it->second;
  // The reply to a write may carry a count of 4 bytes, by the letter of the document.
  bool reads = p.command == vfio_user::cmd_dma_read;
  auto low_count = message.as<uint32_t>(offsetof(DmaAccess, count));
  p.ok = (message.header.flags & vfio_user::flag_error) == 0 && low_count == static_cast<uint32_t>(p.count);
  if (p.ok && reads) {
    auto access = message.as<DmaAccess>();
    p.ok = access && access->count == p.count && message.payload.size() >= sizeof *access + p.out.size();
    if (p.ok) std::memcpy(p.out.data(), message.payload.data() + sizeof *access, p.out.size());
  }
  p.done = true;
  changed_.notify_all();
}

}  // namespace kz::softtpu
