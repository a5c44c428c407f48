// SPDX-License-Identifier: GPL-2.0-or-later
// COPY, FILL and CRC32C.
#include <algorithm>
#include <cstring>

#include "tools/softtpu/exec_crc32c.h"
#include "tools/softtpu/exec_end.h"

namespace kz::softtpu {
namespace {

// One chunk. The buffer grows only where it is needed. `done` of the later `direct` comes first: the bus
// holds a stack.
uint16_t move_chunk(End& src, End& dst, uint64_t at, uint64_t n, std::vector<std::byte>& buffer) {
  std::byte* from = src.direct(at, n, false);
  std::byte* to = dst.direct(at, n, true);
  bool apart = src.on_bus() != dst.on_bus(),
       moved = apart ? from != nullptr || to != nullptr : from != nullptr && to != nullptr;
  uint16_t status = KZ_ST_OK;
  if (from != nullptr && to != nullptr)
    std::memmove(to, from, n);
  else if (from != nullptr && apart)  // only memory of different kinds cannot overlap
    status = dst.write(at, {from, n});
  else if (to != nullptr && apart)
    status = src.read(at, {to, n});
  if (to != nullptr) dst.done();
  if (from != nullptr) src.done();
  if (moved) return status;
  if (buffer.size() < n) buffer.resize(n);
  std::span<std::byte> piece(buffer.data(), n);
  if (uint16_t status = src.read(at, piece); status != KZ_ST_OK) return status;
  return dst.write(at, piece);
}

uint16_t check_sges(uint8_t space, uint16_t sges) {
  if (space > KZ_SP_HOST_SG) return KZ_ST_BAD_FIELD;
  bool fits = space == KZ_SP_HOST_SG ? sges >= 1 && sges <= KZ_SG_MAX : sges == 0;
  return fits ? KZ_ST_OK : KZ_ST_BAD_FIELD;
}

uint16_t check_copy(const kz_copy& c) {
  if (uint16_t s = check_sges(c.src_space, c.src_sges); s != KZ_ST_OK) return s;
  if (uint16_t s = check_sges(c.dst_space, c.dst_sges); s != KZ_ST_OK) return s;
  return check_length(c.len);
}

// Fault D15.
void halve_bandwidth(Core& core, Clock::time_point start, const Requester& who) {
  if (const Fault* f = core.faults.due(Row::D15)) {
    std::chrono::duration<double, std::nano> took = Clock::now() - start;
    stall(std::chrono::nanoseconds(static_cast<int64_t>(took.count() * (f->param("factor") - 1))), who);
  }
}

}  // namespace

uint16_t move_bytes(Core&, End& src, End& dst, uint64_t len, bool from_top, const Requester& who) {
  std::vector<std::byte> buffer;
  for (uint64_t done = 0; done < len;) {
    if (cancelled(who)) return KZ_ST_ABORTED;
    uint64_t n = std::min(Core::chunk, len - done), at = from_top ? len - done - n : done;
    if (uint16_t status = move_chunk(src, dst, at, n, buffer); status != KZ_ST_OK) return status;
    done += n;
  }
  return KZ_ST_OK;
}

Outcome exec_copy(Core& core, const kz_cmd& cmd, const Requester& who) {
  const kz_copy& c = cmd.u.copy;
  if (uint16_t s = check_copy(c); s != KZ_ST_OK) return ended(s);
  auto start = Clock::now();
  uint16_t status;
  std::shared_ptr<End> src = make_end(core, who, c.src_space, c.src, c.len, c.src_sges, false, status);
  if (src == nullptr) return ended(status);
  std::shared_ptr<End> dst = make_end(core, who, c.dst_space, c.dst, c.len, c.dst_sges, true, status);
  if (dst == nullptr) return ended(status);
  core.dma_bytes += (src->on_bus() ? c.len : 0) + (dst->on_bus() ? c.len : 0);
  if (core.faults.any())
    if (auto outcome = move_bytes_faulty(core, c, src, dst, who)) return *std::move(outcome);
  bool from_top = c.src_space == c.dst_space && c.dst > c.src && c.dst - c.src < c.len && !src->pieces();
  status = move_bytes(core, *src, *dst, c.len, from_top, who);
  halve_bandwidth(core, start, who);
  return ended(status);
}

Outcome exec_fill(Core& core, const kz_cmd& cmd, const Requester& who) {
  const kz_fill& f = cmd.u.fill;
  if (f.dst_space > KZ_SP_HBM) return ended(KZ_ST_BAD_FIELD);
  if (uint16_t s = check_length(f.len); s != KZ_ST_OK) return ended(s);
  uint16_t status;
  auto dst = make_end(core, who, f.dst_space, f.dst, f.len, 0, true, status);
  if (dst == nullptr) return ended(status);
  if (dst->on_bus()) core.dma_bytes += f.len;
  // A multiple of 8, so that each piece starts with the pattern's first byte.
  std::vector<uint64_t> block(std::min<uint64_t>(f.len + 7, Hbm::page) / 8, f.pattern);
  auto bytes = std::as_bytes(std::span(block));
  for (uint64_t done = 0; done < f.len;) {
    if (cancelled(who)) return ended(KZ_ST_ABORTED);
    uint64_t n = std::min<uint64_t>(bytes.size(), f.len - done);
    if (status = dst->write(done, bytes.first(n)); status != KZ_ST_OK) return ended(status);
    done += n;
  }
  return ended(KZ_ST_OK);
}

Outcome exec_crc(Core& core, const kz_cmd& cmd, const Requester& who) {
  const kz_crc& c = cmd.u.crc;
  if (c.src_space > KZ_SP_HBM) return ended(KZ_ST_BAD_FIELD);
  if (uint16_t s = check_length(c.len); s != KZ_ST_OK) return ended(s);
  uint16_t status;
  auto src = make_end(core, who, c.src_space, c.src, c.len, 0, false, status);
  if (src == nullptr) return ended(status);
  if (src->on_bus()) core.dma_bytes += c.len;
  std::vector<std::byte> buffer;
  uint32_t crc = 0;
  for (uint64_t done = 0; done < c.len;) {
    if (cancelled(who)) return ended(KZ_ST_ABORTED);
    uint64_t n = std::min<uint64_t>(Core::chunk, c.len - done);
    if (std::byte* p = src->direct(done, n, false)) {
      crc = crc32c(crc, {p, n});
      src->done();
    } else {
      buffer.resize(n);
      if (status = src->read(done, buffer); status != KZ_ST_OK) return ended(status);
      crc = crc32c(crc, buffer);
    }
    done += n;
  }
  return ended(KZ_ST_OK, crc);
}

}  // namespace kz::softtpu
