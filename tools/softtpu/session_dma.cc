// SPDX-License-Identifier: GPL-2.0-or-later
// DMA_MAP and DMA_UNMAP.
#include <cerrno>

#include "tools/softtpu/session.h"

namespace kz::softtpu {

Session::Reply Session::on_dma_map(Message& m) {
  auto map = m.as<vfio_user::DmaMap>();
  if (!map || map->argsz < sizeof *map || m.payload.size() != sizeof *map || m.fds.size() > 1)
    return failed(EINVAL);
  const Fd* fd = m.fds.empty() ? nullptr : &m.fds[0];
  return failed(device_.dma().map(map->address, map->size, map->flags, map->offset, fd));  // 0 is success
}

std::optional<Session::Reply> Session::on_dma_unmap(Message& m) {
  auto unmap = m.as<vfio_user::DmaUnmap>();
  if (!unmap || unmap->argsz < sizeof *unmap || m.payload.size() != sizeof *unmap) return failed(EINVAL);
  Unmapping work{{}, {}, *unmap};
  if (unmap->flags == vfio_user::unmap_all) {
    if (unmap->address != 0 || unmap->size != 0) return failed(EINVAL);
    device_.dma().unmap_all(work.dying);
  } else if (unmap->flags != 0) {
    return failed(EINVAL);
  } else if (int err = device_.dma().unmap(unmap->address, unmap->size, work.dying); err != 0) {
    return failed(err);
  }
  work.message.header = m.header;
  unmapping_ = std::move(work);
  resume_unmap();
  return std::nullopt;
}

}  // namespace kz::softtpu
