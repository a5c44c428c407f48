// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Makes a device without a driver read commands from an address that nobody gave it: behind an IOMMU that must be refused.
 * usage: stray-dma BDF IOVA
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../shim/uapi/kz_regs.h"

static volatile uint32_t *regs;

static void wr(uint32_t reg, uint32_t value)
{
	regs[reg / 4] = value;
}

int main(int argc, char **argv)
{
	uint64_t iova = argc == 3 ? strtoull(argv[2], NULL, 0) : 0;
	uint32_t q = KZ_REG_QUEUE(1);
	char path[128];
	int fd, tries;

	if (!iova) {
		fprintf(stderr, "usage: stray-dma BDF IOVA\n");
		return 2;
	}
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource0", argv[1]);
	fd = open(path, O_RDWR);
	regs = fd < 0 ? MAP_FAILED : mmap(NULL, KZ_BAR0_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (regs == MAP_FAILED || regs[KZ_REG_MAGIC / 4] != KZ_MAGIC) {
		fprintf(stderr, "no registers at %s\n", path);
		return 1;
	}
	wr(KZ_REG_CTRL, KZ_CTRL_ENABLE);
	for (tries = 0; tries < 1000 && !(regs[KZ_REG_STATUS / 4] & KZ_STATUS_READY); tries++)
		usleep(10000);
	wr(q + KZ_Q_SQ_LO, iova);
	wr(q + KZ_Q_SQ_HI, iova >> 32);
	wr(q + KZ_Q_CQ_LO, iova + 0x10000);
	wr(q + KZ_Q_CQ_HI, (iova + 0x10000) >> 32);
	wr(q + KZ_Q_DBREC_LO, iova + 0x20000);
	wr(q + KZ_Q_DBREC_HI, (iova + 0x20000) >> 32);
	wr(q + KZ_Q_ORDER, 4);
	wr(q + KZ_Q_CONTEXT, 0);
	wr(q + KZ_Q_CTRL, KZ_QCTRL_ENABLE);
	usleep(200000);
	wr(KZ_REG_DOORBELL(1), 1);
	usleep(500000);
	printf("STATE 0x%x\n", (unsigned int)regs[(q + KZ_Q_STATE) / 4]);
	wr(q + KZ_Q_CTRL, KZ_QCTRL_RESET);
	usleep(200000);
	wr(KZ_REG_CTRL, 0);
	return 0;
}
