/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * How a physical HBM address falls into channel, pseudo channel, bank, column and row.
 *
 * From the least significant bit up: 6 bits byte in the 64-byte line, then the fields channel, pseudo channel, bank,
 * column with the widths of KZ_REG_HBM_GEOM, and the row in all bits above. The default (3,1,4,5) interleaves lines
 * over 8 channels and puts a row of 32 lines into a bank.
 */
#ifndef KZ_HBM_H
#define KZ_HBM_H

#include "kz_types.h"

#define KZ_GEOM(ch, pc, bank, col) ((ch) | ((pc) << 4) | ((bank) << 8) | ((col) << 12))
#define KZ_GEOM_CH(g) ((g) & 0xfu)
#define KZ_GEOM_PC(g) (((g) >> 4) & 0xfu)
#define KZ_GEOM_BANK(g) (((g) >> 8) & 0xfu)
#define KZ_GEOM_COL(g) (((g) >> 12) & 0xfu)
#define KZ_GEOM_DEFAULT KZ_GEOM(3u, 1u, 4u, 5u)
#define KZ_HBM_LINE_SHIFT 6

struct kz_hbm_place {
	__u32 channel;
	__u32 pseudo;
	__u32 bank;
	__u32 column;
	__u32 row;
	__u32 byte; /* in the line */
};

static inline __u32 kz_hbm_field(__u64 *rest, __u32 width)
{
	__u32 v = (__u32)(*rest & ((1u << width) - 1u));

	*rest >>= width;
	return v;
}

static inline struct kz_hbm_place kz_hbm_split(__u64 addr, __u32 geom)
{
	struct kz_hbm_place p;

	p.byte = kz_hbm_field(&addr, KZ_HBM_LINE_SHIFT);
	p.channel = kz_hbm_field(&addr, KZ_GEOM_CH(geom));
	p.pseudo = kz_hbm_field(&addr, KZ_GEOM_PC(geom));
	p.bank = kz_hbm_field(&addr, KZ_GEOM_BANK(geom));
	p.column = kz_hbm_field(&addr, KZ_GEOM_COL(geom));
	p.row = (__u32)addr;
	return p;
}

static inline __u64 kz_hbm_join(struct kz_hbm_place p, __u32 geom)
{
	__u64 a = p.row;

	a = (a << KZ_GEOM_COL(geom)) | p.column;
	a = (a << KZ_GEOM_BANK(geom)) | p.bank;
	a = (a << KZ_GEOM_PC(geom)) | p.pseudo;
	a = (a << KZ_GEOM_CH(geom)) | p.channel;
	return (a << KZ_HBM_LINE_SHIFT) | p.byte;
}

#endif
