// SPDX-License-Identifier: GPL-2.0-or-later
// What the device consists of: GET_INFO, GET_REGION_INFO, GET_REGION_IO_FDS, GET_IRQ_INFO; and SET_IRQS.
#include <algorithm>
#include <cerrno>

#include "shim/uapi/kz_regs.h"
#include "tools/softtpu/session.h"

namespace kz::softtpu {

Session::Reply Session::on_get_info(Message& m) {
  auto info = m.as<vfio_user::DeviceInfo>();
  if (!info || info->argsz < sizeof *info) return failed(EINVAL);
  *info = {sizeof *info, vfio_user::device_reset_ok | vfio_user::device_is_pci, vfio_user::region_count,
           vfio_user::irq_count};
  Reply reply;
  append(reply.payload, *info);
  return reply;
}

// A client first asks with room for the fixed part only; it then gets just that, with the true argsz and
// cap_offset.
Session::Reply Session::on_region_info(Message& m) {
  auto ask = m.as<vfio_user::RegionInfo>();
  if (!ask || ask->argsz < sizeof *ask || ask->index >= vfio_user::region_count) return failed(EINVAL);
  auto region = device_.region(ask->index);
  vfio_user::RegionInfo info{sizeof info, 0, ask->index, 0, region.size, 0};
  if (region.size != 0) info.flags |= vfio_user::region_readable | vfio_user::region_writable;
  Reply reply;
  std::vector<std::byte> caps;
  if (region.fd >= 0 && client_max_fds_ > 0) {
    info.flags |= vfio_user::region_mappable | vfio_user::region_has_caps;
    info.cap_offset = sizeof info;
    auto areas = static_cast<uint32_t>(region.areas.size());
    append(caps, vfio_user::SparseMmap{{vfio_user::cap_sparse_mmap, 1, 0}, areas, 0});
    for (const auto& a : region.areas) append(caps, vfio_user::Area{a.offset, a.size});
    reply.fds.push_back(region.fd);
  }
  info.argsz = static_cast<uint32_t>(sizeof info + caps.size());
  append(reply.payload, info);
  if (ask->argsz >= info.argsz) reply.payload.insert(reply.payload.end(), caps.begin(), caps.end());
  return reply;
}

// Doorbells as ioeventfds, as many as the client takes with one message; the others stay trapped.
Session::Reply Session::on_region_io_fds(Message& m) {
  auto ask = m.as<vfio_user::RegionIoFds>();
  if (!ask || ask->argsz < sizeof *ask || ask->flags != 0 || ask->count != 0 ||
      ask->index >= vfio_user::region_count)
    return failed(EINVAL);
  std::vector<int> fds;
  if (ask->index == vfio_user::region_bar0 + KZ_BAR_REGS) fds = device_.doorbell_fds();
  fds.resize(std::min<size_t>(fds.size(), client_max_fds_));
  vfio_user::RegionIoFds info{0, 0, ask->index, static_cast<uint32_t>(fds.size())};
  info.argsz = static_cast<uint32_t>(sizeof info + fds.size() * sizeof(vfio_user::IoFd));
  bool fits = ask->argsz >= info.argsz;
  if (!fits) info.count = 0;
  Reply reply;
  append(reply.payload, info);
  for (uint32_t i = 0; i < info.count; ++i)
    append(reply.payload, vfio_user::IoFd{KZ_REG_DOORBELL(i), 4, i, vfio_user::io_fd_ioeventfd, 0, 0, 0});
  if (fits) reply.fds = std::move(fds);
  return reply;
}

Session::Reply Session::on_irq_info(Message& m) {
  auto ask = m.as<vfio_user::IrqInfo>();
  if (!ask || ask->argsz < sizeof *ask || ask->index >= vfio_user::irq_count) return failed(EINVAL);
  Reply reply;
  append(reply.payload, device_.irq_info(ask->index));
  return reply;
}

Session::Reply Session::on_set_irqs(Message& m) {
  auto set = m.as<vfio_user::SetIrqs>();
  if (!set) return failed(EINVAL);
  return failed(device_.set_irqs(*set, std::span(m.payload).subspan(sizeof *set), m.fds));
}

}  // namespace kz::softtpu
