// SPDX-License-Identifier: GPL-2.0-or-later
// REGION_READ, REGION_WRITE and REGION_WRITE_MULTI.
#include <cerrno>

#include "tools/softtpu/session.h"

namespace kz::softtpu {

using vfio_user::RegionAccess;

Session::Reply Session::on_region_read(Message& m) {
  auto access = m.as<RegionAccess>();
  if (!access || m.payload.size() != sizeof *access) return failed(EINVAL);
  if (access->count == 0 || access->count > vfio_user::max_data) return failed(EINVAL);
  Reply reply;
  append(reply.payload, *access);
  reply.payload.resize(sizeof *access + access->count);
  auto out = std::span(reply.payload).subspan(sizeof *access);
  if (!device_.region_read(access->region, access->offset, out)) return failed(EINVAL);
  return reply;
}

Session::Reply Session::on_region_write(Message& m) {
  auto access = m.as<RegionAccess>();
  if (!access || access->count == 0 || m.payload.size() != sizeof *access + uint64_t{access->count})
    return failed(EINVAL);
  auto in = std::span(m.payload).subspan(sizeof *access);
  if (!device_.region_write(access->region, access->offset, in)) return failed(EINVAL);
  Reply reply;
  append(reply.payload, *access);
  return reply;
}

// wr_cnt, then that many writes of up to 8 bytes; the first bad one ends it.
Session::Reply Session::on_region_write_multi(Message& m) {
  constexpr size_t slot = sizeof(RegionAccess) + 8;
  auto count = m.as<uint64_t>();
  if (!count || *count == 0 || *count > m.payload.size() / slot) return failed(EINVAL);
  if (m.payload.size() != sizeof *count + *count * slot) return failed(EINVAL);
  for (uint64_t i = 0; i < *count; ++i) {
    size_t at = sizeof *count + i * slot;
    auto access = m.as<RegionAccess>(at);
    if (!access || access->count == 0 || access->count > 8) return failed(EINVAL);
    auto in = std::span(m.payload).subspan(at + sizeof *access, access->count);
    if (!device_.region_write(access->region, access->offset, in)) return failed(EINVAL);
  }
  Reply reply;
  append(reply.payload, *count);
  return reply;
}

}  // namespace kz::softtpu
