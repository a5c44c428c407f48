// SPDX-License-Identifier: GPL-2.0-or-later
// Messages of the vfio-user protocol, version 0.1, as both ends of this project speak it.
// Source: QEMU, docs/interop/vfio-user.rst. All fields are little-endian (host order on the machines we run on); file
// descriptors travel beside a message as SCM_RIGHTS. A reply repeats id and command; an error reply is the header only.
#pragma once

#include <bit>
#include <cstdint>

namespace kz::vfio_user {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint16_t version_major = 0;
inline constexpr uint16_t version_minor = 1;
inline constexpr uint32_t max_message = 16 + 16 + (1u << 20);  // header, transfer header, 1 MiB of data
inline constexpr uint32_t max_data = 1u << 20;                 // default of the capability max_data_xfer_size
inline constexpr uint32_t max_fds = 16;                        // we send at most this many with one message

enum Command : uint16_t {
  cmd_version = 1,
  cmd_dma_map = 2,
  cmd_dma_unmap = 3,
  cmd_get_info = 4,
  cmd_get_region_info = 5,
  cmd_get_region_io_fds = 6,
  cmd_get_irq_info = 7,
  cmd_set_irqs = 8,
  cmd_region_read = 9,
  cmd_region_write = 10,
  cmd_dma_read = 11,   // server to client
  cmd_dma_write = 12,  // server to client
  cmd_device_reset = 13,
  cmd_region_write_multi = 15,
};

inline constexpr uint32_t flag_reply = 0x1;  // low 4 bits are the type: 0 command, 1 reply
inline constexpr uint32_t flag_type_mask = 0xf;
inline constexpr uint32_t flag_no_reply = 0x10;
inline constexpr uint32_t flag_error = 0x20;

struct Header {
  uint16_t id;
  uint16_t command;
  uint32_t size;  // of the whole message, this header included
  uint32_t flags;
  uint32_t error;  // errno, in replies with flag_error
};
static_assert(sizeof(Header) == 16);

struct Version {  // then a NUL-terminated JSON text
  uint16_t major;
  uint16_t minor;
};
static_assert(sizeof(Version) == 4);

inline constexpr uint32_t dma_read_ok = 1;
inline constexpr uint32_t dma_write_ok = 2;
struct DmaMap {  // with at most one fd
  uint32_t argsz;
  uint32_t flags;
  uint64_t offset;
  uint64_t address;
  uint64_t size;
};
static_assert(sizeof(DmaMap) == 32);

inline constexpr uint32_t unmap_all = 1u << 1;
struct DmaUnmap {
  uint32_t argsz;
  uint32_t flags;
  uint64_t address;
  uint64_t size;
};
static_assert(sizeof(DmaUnmap) == 24);

inline constexpr uint32_t device_reset_ok = 1;
inline constexpr uint32_t device_is_pci = 2;
struct DeviceInfo {
  uint32_t argsz;
  uint32_t flags;
  uint32_t regions;
  uint32_t irqs;
};
static_assert(sizeof(DeviceInfo) == 16);

// Region and interrupt indices of a PCI device, as in <linux/vfio.h>.
inline constexpr uint32_t region_bar0 = 0;
inline constexpr uint32_t region_rom = 6;
inline constexpr uint32_t region_config = 7;
inline constexpr uint32_t region_vga = 8;
inline constexpr uint32_t region_count = 9;
inline constexpr uint32_t irq_intx = 0;
inline constexpr uint32_t irq_msi = 1;
inline constexpr uint32_t irq_msix = 2;
inline constexpr uint32_t irq_err = 3;
inline constexpr uint32_t irq_req = 4;
inline constexpr uint32_t irq_count = 5;

inline constexpr uint32_t region_readable = 1;
inline constexpr uint32_t region_writable = 2;
inline constexpr uint32_t region_mappable = 4;
inline constexpr uint32_t region_has_caps = 8;
struct RegionInfo {  // then capabilities where argsz has room; one fd when mappable
  uint32_t argsz;
  uint32_t flags;
  uint32_t index;
  uint32_t cap_offset;
  uint64_t size;
  uint64_t offset;  // in the fd
};
static_assert(sizeof(RegionInfo) == 32);

struct CapHeader {
  uint16_t id;  // 1 sparse mmap, 3 MSI-X mappable
  uint16_t version;
  uint32_t next;  // offset from the start of RegionInfo, 0: last
};
inline constexpr uint16_t cap_sparse_mmap = 1;
inline constexpr uint16_t cap_msix_mappable = 3;
struct SparseMmap {  // then `areas` times Area
  CapHeader header;
  uint32_t areas;
  uint32_t reserved;
};
struct Area {
  uint64_t offset;
  uint64_t size;
};
static_assert(sizeof(SparseMmap) == 16 && sizeof(Area) == 16);

struct RegionIoFds {  // then `count` times IoFd; fds beside it
  uint32_t argsz;
  uint32_t flags;  // 0
  uint32_t index;
  uint32_t count;
};
inline constexpr uint32_t io_fd_ioeventfd = 0;
inline constexpr uint32_t io_fd_ioregionfd = 1;
inline constexpr uint32_t io_fd_ioeventfd_shadow = 2;
struct IoFd {
  uint64_t offset;  // in the region
  uint64_t size;
  uint32_t fd_index;
  uint32_t type;
  uint32_t flags;
  uint32_t reserved;
  uint64_t datamatch;
};
static_assert(sizeof(RegionIoFds) == 16 && sizeof(IoFd) == 40);

inline constexpr uint32_t irq_eventfd = 1;
inline constexpr uint32_t irq_maskable = 2;
inline constexpr uint32_t irq_automasked = 4;
inline constexpr uint32_t irq_noresize = 8;
struct IrqInfo {
  uint32_t argsz;
  uint32_t flags;
  uint32_t index;
  uint32_t count;
};
static_assert(sizeof(IrqInfo) == 16);

inline constexpr uint32_t set_data_none = 1;
inline constexpr uint32_t set_data_bool = 2;
inline constexpr uint32_t set_data_eventfd = 4;
inline constexpr uint32_t set_action_mask = 8;
inline constexpr uint32_t set_action_unmask = 16;
inline constexpr uint32_t set_action_trigger = 32;
struct SetIrqs {  // then data; fds beside it. eventfd and no fds: unset
  uint32_t argsz;
  uint32_t flags;
  uint32_t index;
  uint32_t start;
  uint32_t count;
};
static_assert(sizeof(SetIrqs) == 20);

struct RegionAccess {  // then data in a write request and a read reply
  uint64_t offset;
  uint32_t region;
  uint32_t count;
};
static_assert(sizeof(RegionAccess) == 16);

struct DmaAccess {  // then data in a write request and a read reply
  uint64_t address;
  uint64_t count;
};
static_assert(sizeof(DmaAccess) == 16);

}  // namespace kz::vfio_user
