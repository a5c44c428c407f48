// SPDX-License-Identifier: GPL-2.0
/*
 * From a user's command to the device's. Nothing of a user reaches the device as a host address: places in registered
 * buffers are looked up, held, and rewritten. Wrong fields, sizes and HBM addresses are left for the device to judge,
 * in its own context. Waits for memory only: a command refused for want of it would be overtaken by the next one.
 */
#include "kz.h"

void kz_place_drop(struct kz_place *p)
{
	if (p->buf)
		atomic_dec(&p->buf->users);
	p->buf = NULL;
}

void kz_xlate_drop(struct kz_slot *s)
{
	kz_place_drop(&s->src);
	kz_place_drop(&s->dst);
	kz_place_drop(&s->result_at);
	s->bounced = false;
}

static int kz_need_sg(struct kz_slot *s)
{
	if (!s->sg)
		s->sg = dma_pool_alloc(s->q->kz->sg_pool, GFP_KERNEL, &s->sg_dma);
	return s->sg ? 0 : -ENOMEM;
}

static bool kz_scattered(const struct kz_place *p, u64 len)
{
	dma_addr_t addr;

	return p->buf && !kz_buf_contiguous(p->buf, p->off, len, &addr);
}

static int kz_xlate_copy(struct kz_slot *s, struct kz_file *kf, u16 *soft)
{
	struct kz_copy *c = &s->cmd.u.copy;

	if (c->src_space == KZ_SP_HOST_SG || c->dst_space == KZ_SP_HOST_SG)
		*soft = KZ_ST_BAD_FIELD; /* lists are the driver's own affair */
	else if (c->len > s->q->kz->max_xfer)
		*soft = KZ_ST_BAD_LENGTH;
	else if ((c->src_space == KZ_SP_HOST && kz_buf_place(kf, c->src, c->len, false, &s->src)) ||
		 (c->dst_space == KZ_SP_HOST && kz_buf_place(kf, c->dst, c->len, true, &s->dst)))
		*soft = KZ_ST_DMA_FAULT;
	if (KZ_BUG(31) && !c->len && c->src_space == KZ_SP_HOST) /* where no buffer was looked up */
		c->src = kz_buf_seg(s->src.buf, s->src.off)->addr;
	if (*soft || (!s->src.buf && !s->dst.buf))
		return 0;
	if (c->src_sges || c->dst_sges || !c->len) { /* the device refuses it, whatever the address */
		if (s->src.buf)
			c->src = kz_buf_seg(s->src.buf, s->src.off)->addr;
		if (s->dst.buf)
			c->dst = kz_buf_seg(s->dst.buf, s->dst.off)->addr;
		return 0;
	}
	s->split = KZ_SPLIT_COPY;
	s->len = c->len;
	s->hbm = s->src.buf ? c->dst : c->src;
	if (kz_scattered(&s->src, s->len) || kz_scattered(&s->dst, s->len))
		return kz_need_sg(s);
	return 0;
}

static void kz_xlate_fill(struct kz_slot *s, struct kz_file *kf, u16 *soft)
{
	struct kz_fill *f = &s->cmd.u.fill;

	if (f->dst_space != KZ_SP_HOST)
		return; /* HBM, or nonsense that the device refuses */
	if (f->len > s->q->kz->max_xfer) {
		*soft = KZ_ST_BAD_LENGTH;
	} else if (kz_buf_place(kf, f->dst, f->len, true, &s->dst)) {
		*soft = KZ_ST_DMA_FAULT;
	} else if (!f->len) {
		f->dst = kz_buf_seg(s->dst.buf, s->dst.off)->addr;
	} else {
		s->split = KZ_SPLIT_FILL;
		s->len = f->len;
		s->pattern = f->pattern;
	}
}

static void kz_xlate_crc(struct kz_slot *s, struct kz_file *kf, u16 *soft)
{
	struct kz_crc *c = &s->cmd.u.crc;

	if (c->src_space != KZ_SP_HOST)
		return;
	if (c->len > s->q->kz->max_xfer) {
		*soft = KZ_ST_BAD_LENGTH;
	} else if (kz_buf_place(kf, c->src, c->len, false, &s->src)) {
		*soft = KZ_ST_DMA_FAULT;
	} else if (!c->len) {
		c->src = kz_buf_seg(s->src.buf, s->src.off)->addr;
	} else {
		s->split = KZ_SPLIT_CRC;
		s->len = c->len;
	}
}

/* A log that is not contiguous for the device goes through memory that is. The memory stays with the slot. */
static int kz_need_bounce(struct kz_slot *s, size_t len)
{
	if (s->bounce && s->bounce_len < len)
		kz_slot_trim(s); /* too small for this one */
	if (!s->bounce) {
		s->bounce_len = max_t(size_t, len, KZ_MIN_BOUNCE);
		s->bounce = dma_alloc_coherent(kz_dma(s->q->kz), s->bounce_len, &s->bounce_dma,
					       GFP_KERNEL | __GFP_NOWARN);
	}
	s->bounced = s->bounce;
	return s->bounce ? 0 : -ENOMEM;
}

static int kz_xlate_march(struct kz_slot *s, struct kz_file *kf, u16 *soft)
{
	struct kz_march *m = &s->cmd.u.march;
	size_t len = m->log_max * sizeof(struct kz_march_fail);
	dma_addr_t addr;
	int rc;

	if (!m->log)
		return 0;
	if (kz_buf_place(kf, m->log, len, true, &s->dst)) {
		*soft = KZ_ST_DMA_FAULT;
		return 0;
	}
	if (kz_buf_contiguous(s->dst.buf, s->dst.off, max_t(u64, len, 1), &addr)) {
		m->log = addr;
		return 0;
	}
	rc = kz_need_bounce(s, len);
	if (!rc)
		m->log = s->bounce_dma;
	return rc;
}

/* The user names a command by the cid it gave; the device knows it by ours. */
static void kz_xlate_abort(struct kz_slot *s, struct kz_file *kf, u16 *soft)
{
	struct kz_abort *a = &s->cmd.u.abort;
	struct kz_queue *q = kz_queue_find(kf, a->queue);
	u16 wanted = a->cid;
	unsigned long flags;
	struct kz_slot *other;

	if (!q) {
		*soft = KZ_ST_BAD_FIELD;
		return;
	}
	a->cid = 0xffff;
	spin_lock_irqsave(&q->lock, flags);
	list_for_each_entry(other, &q->issued, node) {
		if (other->user_cid == wanted) {
			a->cid = other->cid;
			break;
		}
	}
	spin_unlock_irqrestore(&q->lock, flags);
	kz_queue_put(q);
}

/*
 * Fills the slot. -errno: the command is refused. 0 with *soft: the driver answers for the device with that status.
 * In both cases the caller releases or answers the slot, which drops what was held.
 */
int kz_xlate(struct kz_slot *s, struct kz_file *kf, const struct kz_cmd *cmd, u16 *soft)
{
	int rc = 0;

	*soft = 0;
	s->cmd = *cmd;
	s->user_cid = cmd->cid;
	s->flags = cmd->flags & ~KZ_CMD_PHASE;
	s->cmd.flags = s->flags;
	switch (cmd->opcode) {
	case KZ_OP_COPY:
		rc = kz_xlate_copy(s, kf, soft);
		break;
	case KZ_OP_FILL:
		kz_xlate_fill(s, kf, soft);
		break;
	case KZ_OP_CRC32C:
		kz_xlate_crc(s, kf, soft);
		break;
	case KZ_OP_MARCH:
		rc = kz_xlate_march(s, kf, soft);
		break;
	case KZ_OP_ABORT:
		kz_xlate_abort(s, kf, soft);
		break;
	case KZ_OP_NOP:
	case KZ_OP_MATMUL:
	case KZ_OP_VECTOR:
	case KZ_OP_FENCE:
	case KZ_OP_TIMESTAMP:
	case KZ_OP_HBM_STAT:
	case KZ_OP_HBM_QUERY:
	case KZ_OP_ECC_INJECT:
		break; /* no host address in it; the device knows who may */
	case KZ_OP_CTX_CREATE:
	case KZ_OP_CTX_DESTROY:
	case KZ_OP_HBM_ALLOC:
	case KZ_OP_HBM_FREE:
	case KZ_OP_FW_UPDATE:
		*soft = KZ_ST_DENIED; /* the driver keeps the books: by ioctl only */
		break;
	default:
		memset(&s->cmd.u, 0, sizeof(s->cmd.u)); /* what it would mean to a newer device is not known here */
		break;
	}
	return rc;
}

/* At a good end: what the command promised its user beside the status. Under q->lock, buffers still held. */
void kz_xlate_results(struct kz_slot *s)
{
	if (s->bounced) {
		u64 n = min_t(u64, s->result, s->cmd.u.march.log_max);

		kz_buf_write(s->dst.buf, s->dst.off, s->bounce, n * sizeof(struct kz_march_fail));
	}
	if (s->result_at.buf)
		kz_buf_write(s->result_at.buf, s->result_at.off, &s->result, sizeof(s->result));
}
