// SPDX-License-Identifier: GPL-2.0
/*
 * Commands whose host memory is not contiguous for the device. COPY takes a list of up to KZ_SG_MAX pieces; what
 * needs more, and FILL and CRC32C, which take no list, go out as several commands under one command id, one after
 * the other. Called under q->lock, from interrupts too.
 */
#include "kz.h"

#define KZ_CRC32C_POLY 0x82f63b78u /* Castagnoli, reflected; RFC 3720 B.4 */
#define KZ_SGE_MAX_LEN SZ_2G

bool kz_piece_more(const struct kz_slot *s)
{
	return s->pos + s->piece < s->len;
}

/* Lists what lies `skip` bytes into the place, at most `max` elements and `len` bytes. Returns the bytes covered. */
static u64 kz_place_list(const struct kz_place *p, u64 skip, u64 len, struct kz_sge *to, u32 max, u32 *n)
{
	u64 off = p->off + skip;
	const struct kz_seg *seg = kz_buf_seg(p->buf, off);
	u64 covered = 0;

	for (*n = 0; *n < max && covered < len; (*n)++) {
		u64 into = off + covered - seg->off;
		u64 part = min3(seg->len - into, len - covered, (u64)KZ_SGE_MAX_LEN);

		to[*n] = (struct kz_sge){ .addr = seg->addr + into, .len = part };
		covered += part;
		if (into + part == seg->len)
			seg++;
	}
	return covered;
}

/* One side of a COPY: its elements are in list[]; a single one needs no list. */
static void kz_copy_side(const struct kz_slot *s, const struct kz_sge *list, u32 n, u64 *addr, u8 *space, u16 *sges)
{
	if (n == 1) {
		*addr = list->addr;
		*space = KZ_SP_HOST;
		*sges = 0;
	} else {
		*addr = s->sg_dma + (u64)((const void *)list - (void *)s->sg);
		*space = KZ_SP_HOST_SG;
		*sges = n;
	}
}

static void kz_piece_copy(struct kz_slot *s)
{
	struct kz_copy *c = &s->cmd.u.copy;
	bool both = s->src.buf && s->dst.buf;
	u32 max = s->sg ? (both ? KZ_SG_MAX / 2 : KZ_SG_MAX) : 1;
	struct kz_sge one[2];
	struct kz_sge *from = s->sg ?: &one[0];
	struct kz_sge *to = s->sg ? s->sg + (both ? KZ_SG_MAX / 2 : 0) : &one[1];
	u64 len = s->len - s->pos;
	u32 nfrom = 0, nto = 0;

	if (s->src.buf)
		len = kz_place_list(&s->src, s->pos, len, from, max, &nfrom);
	if (s->dst.buf)
		len = kz_place_list(&s->dst, s->pos, len, to, max, &nto);
	if (both) /* the source's list may reach further than the destination's */
		len = kz_place_list(&s->src, s->pos, len, from, max, &nfrom);
	if (s->src.buf)
		kz_copy_side(s, from, nfrom, &c->src, &c->src_space, &c->src_sges);
	else
		c->src = s->hbm + s->pos;
	if (s->dst.buf)
		kz_copy_side(s, to, nto, &c->dst, &c->dst_space, &c->dst_sges);
	else
		c->dst = s->hbm + s->pos;
	c->len = len;
	s->piece = len;
}

static void kz_piece_fill(struct kz_slot *s)
{
	struct kz_sge one;
	u32 n;

	s->piece = kz_place_list(&s->dst, s->pos, s->len - s->pos, &one, 1, &n);
	s->cmd.u.fill.dst = one.addr;
	s->cmd.u.fill.len = s->piece;
	s->cmd.u.fill.pattern = ror64(s->pattern, 8 * (s->pos & 7)); /* its first byte lies at the very start */
}

static void kz_piece_crc(struct kz_slot *s)
{
	struct kz_sge one;
	u32 n;

	s->piece = kz_place_list(&s->src, s->pos, s->len - s->pos, &one, 1, &n);
	s->cmd.u.crc.src = one.addr;
	s->cmd.u.crc.len = s->piece;
}

/* Makes s->cmd the next piece of the command. */
void kz_piece_next(struct kz_slot *s)
{
	if (s->split == KZ_SPLIT_NONE)
		return;
	s->pos += s->piece;
	if (s->split == KZ_SPLIT_COPY)
		kz_piece_copy(s);
	else if (s->split == KZ_SPLIT_FILL)
		kz_piece_fill(s);
	else
		kz_piece_crc(s);
	s->cmd.flags = s->flags;
	if (s->pos)
		s->cmd.flags &= ~KZ_CMD_FENCE;
	if (kz_piece_more(s))
		s->cmd.flags &= ~KZ_CMD_NOIRQ;
}

static u32 kz_crc_multiply(u32 a, u32 b)
{
	u32 product = 0, bit;

	for (bit = 1u << 31; bit; bit >>= 1) {
		if (a & bit)
			product ^= b;
		b = (b >> 1) ^ (b & 1 ? KZ_CRC32C_POLY : 0);
	}
	return product;
}

/* The CRC of A followed by B from those of A and B: a times x^(8 len_b), plus b. */
static u32 kz_crc_join(u32 a, u32 b, u64 len_b)
{
	u32 power = 1u << 31; /* x^0 */
	u32 base = 1u << 23;  /* x^8 */

	for (; len_b; len_b >>= 1) {
		if (len_b & 1)
			power = kz_crc_multiply(power, base);
		base = kz_crc_multiply(base, base);
	}
	return kz_crc_multiply(power, a) ^ b;
}

void kz_piece_ended(struct kz_slot *s, u64 result)
{
	if (s->split == KZ_SPLIT_CRC && s->pos)
		s->result = kz_crc_join(s->result, result, s->piece);
	else
		s->result = result;
}
