// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/hbm.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "shim/base/error.h"

namespace kz::softtpu {
namespace {

uint64_t checked_size(uint64_t bytes, uint32_t geometry) {
  auto refuse = [&](std::string detail, std::string remedy) {
    throw Error({Errc::usage, "make HBM", to_string(Bytes{bytes}), std::move(detail), std::move(remedy)});
  };
  if (bytes < Hbm::min_bytes || bytes > Hbm::max_bytes || bytes % Hbm::page != 0)
    refuse("size is not possible", "use 64M to 64G, a multiple of 64K");
  uint32_t widths =
      KZ_GEOM_CH(geometry) + KZ_GEOM_PC(geometry) + KZ_GEOM_BANK(geometry) + KZ_GEOM_COL(geometry);
  if ((1u << KZ_GEOM_CH(geometry)) > KZ_TEL_CHANNELS || (uint64_t{1} << (KZ_HBM_LINE_SHIFT + widths)) > bytes)
    refuse("geometry is not possible", "use at most 5 channel bits and a row no longer than the memory");
  return bytes;
}

constexpr std::array<std::byte, 4096> zeroes{};

// Calls f(addr, len, offset in the whole) for the part of a range in each page.
template <class F>
void by_page(uint64_t addr, uint64_t len, F f) {
  for (uint64_t done = 0; done < len;) {
    uint64_t a = addr + done, n = std::min(len - done, Hbm::page - a % Hbm::page);
    f(a, n, done);
    done += n;
  }
}

uint64_t words(uint64_t addr, uint64_t len) { return (addr + len + 7) / 8 - addr / 8; }

}  // namespace

Hbm::Hbm(uint64_t bytes, uint32_t geometry, bool ecc, FaultBoard& faults)
    : size_(checked_size(bytes, geometry)),
      geometry_(geometry),
      faults_(faults),
      fd_(make_memfd("kz-hbm", Bytes{bytes}, true)),
      map_(fd_.get(), 0, Bytes{bytes}, true, "HBM"),
      ecc_(ecc, geometry, faults) {
  rebuild_cells();
}

bool Hbm::read(uint64_t addr, std::span<std::byte> out) {
  bool good = ecc_.on_read(addr, out.size());
  CellModel* model = cells();
  if (model == nullptr) {
    std::memcpy(out.data(), map_.data() + addr, out.size());
    return good;
  }
  by_page(addr, out.size(), [&](uint64_t a, uint64_t n, uint64_t at) {
    if (!model->affects(a / page) && model->skip_reads(words(a, n)))
      std::memcpy(out.data() + at, map_.data() + a, n);
    else
      good &= model->read(a, out.subspan(at, n));
  });
  return good;
}

void Hbm::write(uint64_t addr, std::span<const std::byte> in) {
  ecc_.on_write(addr, in.size());
  CellModel* model = cells();
  if (model == nullptr) {
    std::memcpy(map_.data() + addr, in.data(), in.size());
    return;
  }
  by_page(addr, in.size(), [&](uint64_t a, uint64_t n, uint64_t at) {
    if (!model->affects(a / page))
      std::memcpy(map_.data() + a, in.data() + at, n);
    else
      model->write(a, in.subspan(at, n));
  });
}

std::byte* Hbm::direct(uint64_t addr, uint64_t len) {
  if (ecc_.marked(addr, len)) return nullptr;
  if (CellModel* model = cells()) {
    if (model->everywhere()) return nullptr;
    for (uint64_t p = addr / page; p <= (addr + len - 1) / page; ++p)
      if (model->affects(p)) return nullptr;
  }
  return map_.data() + addr;
}

std::byte* Hbm::direct_for_march(uint64_t addr, uint64_t len, uint64_t reads) {
  if (ecc_.marked(addr, len)) return nullptr;
  if (CellModel* model = cells())
    if (model->affects(addr / page) || !model->skip_reads(len / 8 * reads)) return nullptr;
  return map_.data() + addr;
}

void Hbm::punch(uint64_t addr, uint64_t len) {
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(addr),
                  static_cast<off_t>(len)) != 0)
    std::memset(map_.data() + addr, 0, len);
}

void Hbm::clear(uint64_t addr, uint64_t len) {
  ecc_.on_clear(addr, len);
  CellModel* model = cells();
  if (model == nullptr) return punch(addr, len);
  // One hole for neighbouring pages: each costs a walk through all mappings.
  uint64_t start = 0, pending = 0;
  auto flush = [&] {
    if (pending != 0) punch(start, pending);
    pending = 0;
  };
  by_page(addr, len, [&](uint64_t a, uint64_t n, uint64_t) {
    uint64_t at = model->translate(a) / page * page;
    if (!model->affects(a / page) || model->everywhere()) {
      if (at != start + pending) flush();
      if (pending == 0) start = at;
      pending += n;
      return;
    }
    flush();
    for (uint64_t done = 0; done < n; done += zeroes.size()) model->write(a + done, zeroes);
  });
  flush();
}

void Hbm::clear_all() {
  ecc_.on_clear(0, size_);
  punch(0, size_);
  if (CellModel* model = cells()) model->restart();
}

void Hbm::rebuild_cells() {
  std::lock_guard lock(rebuild_);
  auto model = std::make_unique<CellModel>(map_.bytes(), geometry_, faults_, ecc_, celsius_);
  bool defects = !model->empty();
  model_.store(defects ? model.get() : nullptr, std::memory_order_release);
  if (defects) models_.push_back(std::move(model));
}

std::vector<Hbm::Range> Hbm::direct_ranges() {
  CellModel* model = cells();
  if (model == nullptr) return {{0, size_}};
  std::vector<Range> out;
  if (model->everywhere()) return out;
  for (uint64_t p = 0; p < pages(); ++p) {
    if (model->affects(p)) continue;
    if (!out.empty() && out.back().offset + out.back().size == p * page)
      out.back().size += page;
    else
      out.push_back({p * page, page});
  }
  return out;
}

}  // namespace kz::softtpu
