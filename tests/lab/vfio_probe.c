// SPDX-License-Identifier: GPL-2.0-or-later
/* In a guest: takes a device over VFIO (type 1), maps memory, reads its first register, resets it.
 * usage: vfio-probe GROUP BDF BYTES
 */
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define MUST(what, ok)                          \
	do {                                    \
		if (!(ok)) {                    \
			perror(what);           \
			return 1;               \
		}                               \
	} while (0)

int main(int argc, char **argv)
{
	struct vfio_group_status status = { .argsz = sizeof(status) };
	struct vfio_region_info bar = { .argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX };
	struct vfio_iommu_type1_dma_map map = { .argsz = sizeof(map), .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE };
	struct vfio_iommu_type1_dma_unmap unmap = { .argsz = sizeof(unmap) };
	int container, group, device;
	uint16_t command;
	uint32_t magic = 0;
	char path[64];
	void *memory;

	if (argc < 4)
		return 2;
	snprintf(path, sizeof(path), "/dev/vfio/%s", argv[1]);
	MUST("open container", (container = open("/dev/vfio/vfio", O_RDWR)) >= 0);
	MUST("open group", (group = open(path, O_RDWR)) >= 0);
	MUST("group status", !ioctl(group, VFIO_GROUP_GET_STATUS, &status) && (status.flags & VFIO_GROUP_FLAGS_VIABLE));
	MUST("join container", !ioctl(group, VFIO_GROUP_SET_CONTAINER, &container));
	MUST("set IOMMU", !ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1_IOMMU));
	MUST("get device", (device = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, argv[2])) >= 0);
	map.size = strtoull(argv[3], NULL, 0);
	map.iova = 0x10000000;
	memory = mmap(NULL, map.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	MUST("mmap", memory != MAP_FAILED);
	map.vaddr = (uintptr_t)memory;
	MUST("map", !ioctl(container, VFIO_IOMMU_MAP_DMA, &map));
	printf("mapped %llu\n", (unsigned long long)map.size);
	MUST("region", !ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &bar));
	/* memory space on: Command register of config space */
	struct vfio_region_info config = { .argsz = sizeof(config), .index = VFIO_PCI_CONFIG_REGION_INDEX };
	MUST("config", !ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &config));
	MUST("command", pread(device, &command, 2, config.offset + 4) == 2);
	command |= 2;
	MUST("command", pwrite(device, &command, 2, config.offset + 4) == 2);
	MUST("read BAR0", pread(device, &magic, 4, bar.offset) == 4);
	printf("magic 0x%x %s\n", magic, magic != 0 && magic != ~0u ? "ok" : "bad");
	MUST("reset", !ioctl(device, VFIO_DEVICE_RESET));
	printf("reset ok\n");
	unmap.iova = map.iova;
	unmap.size = map.size;
	MUST("unmap", !ioctl(container, VFIO_IOMMU_UNMAP_DMA, &unmap) && unmap.size == map.size);
	return 0;
}
