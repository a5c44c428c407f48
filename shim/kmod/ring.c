// SPDX-License-Identifier: GPL-2.0
/* Commands into the submission ring, completions out of the completion ring. All under q->lock. */
#include "kz.h"

static void kz_ring_write(struct kz_queue *q, struct kz_slot *s)
{
	u32 mask = (1u << q->order) - 1;
	struct kz_cmd *at = &q->sq[q->sq_tail & mask];
	u8 phase = (q->sq_tail >> q->order) & 1 ? 0 : KZ_CMD_PHASE;
	u8 flags = (s->cmd.flags & ~KZ_CMD_PHASE) | phase;

	/* The old contents have the other phase; the byte with the phase goes last. */
	s->cmd.cid = s->cid;
	at->opcode = s->cmd.opcode;
	at->cid = s->cmd.cid;
	at->rsvd = s->cmd.rsvd;
	memcpy(&at->u, &s->cmd.u, sizeof(at->u));
	dma_wmb();
	WRITE_ONCE(at->flags, flags);
	q->sq_tail++;
	q->bell_due = true;
}

/*
 * Moves what is pending to the device, in order. A command in pieces stays at the head until its last piece is out:
 * nothing may start before something that came earlier.
 */
void kz_ring_pump(struct kz_queue *q)
{
	lockdep_assert_held(&q->lock);
	while (q->state == KZ_QUEUE_RUN && !list_empty(&q->pending)) {
		struct kz_slot *s = list_first_entry(&q->pending, struct kz_slot, node);

		if (s->state == KZ_SLOT_ISSUED)
			break;
		kz_piece_next(s);
		kz_ring_write(q, s);
		s->state = KZ_SLOT_ISSUED;
		if (kz_piece_more(s))
			break;
		list_move_tail(&s->node, &q->issued);
	}
}

/* Shows the device what kz_ring_pump() wrote. */
void kz_ring_bell(struct kz_queue *q)
{
	lockdep_assert_held(&q->lock);
	if (!q->bell_due || q->state != KZ_QUEUE_RUN)
		return;
	q->bell_due = false;
	dma_wmb();
	WRITE_ONCE(q->db->sq_tail, q->sq_tail);
	kz_wr(q->kz, KZ_REG_DOORBELL(q->id), q->sq_tail); /* writel orders it after the record */
}

static struct kz_slot *kz_ring_slot(struct kz_queue *q, const struct kz_cqe *c)
{
	struct kz_slot *s;

	if (c->queue != q->id) {
		q->stat.wrong_queue++;
		return NULL;
	}
	if ((u16)(q->sq_tail - c->sq_head) > 1u << q->order)
		q->stat.bad_sq_head++;
	if (c->cid >= 1u << q->order) {
		q->stat.unknown_cid++;
		return NULL;
	}
	s = &q->slot[c->cid];
	if (s->state != KZ_SLOT_ISSUED) {
		q->stat.repeated_cid++;
		return NULL;
	}
	return s;
}

/* What is owed for too long is lost. */
void kz_ring_judge(struct kz_queue *q)
{
	lockdep_assert_held(&q->lock);
	if (!q->owed || time_before(jiffies, q->owed_since + msecs_to_jiffies(KZ_OWED_MS)))
		return;
	q->stat.interrupts_lost += q->owed;
	q->owed = 0;
}

static void kz_ring_late(struct kz_queue *q)
{
	kz_ring_judge(q);
	q->stat.found_late++;
	q->owed++;
	q->owed_since = jiffies;
}

static void kz_ring_take(struct kz_queue *q, const struct kz_cqe *c, bool late, struct list_head *finished)
{
	struct kz_slot *s = kz_ring_slot(q, c);
	u16 status = KZ_CQE_CODE(c->status);

	q->stat.entries++;
	if (!s)
		return;
	if (late && !(s->flags & KZ_CMD_NOIRQ))
		kz_ring_late(q);
	kz_piece_ended(s, c->result);
	if (status == KZ_ST_OK && kz_piece_more(s)) {
		s->state = KZ_SLOT_PENDING;
		return;
	}
	q->expiries = 0;
	kz_slot_end(s, status, finished);
}

static bool kz_ring_ready(struct kz_queue *q)
{
	u16 phase = (q->cq_head >> q->order) & 1 ? 0 : 1;

	return KZ_CQE_PHASE(READ_ONCE(q->cq[q->cq_head & ((1u << q->order) - 1)].status)) == phase;
}

/* Whether a completion is there that nobody has taken; `head` says which. */
bool kz_ring_waiting(struct kz_queue *q, u32 *head)
{
	unsigned long flags;
	bool ready;

	spin_lock_irqsave(&q->lock, flags);
	ready = q->state == KZ_QUEUE_RUN && kz_ring_ready(q);
	*head = q->cq_head;
	spin_unlock_irqrestore(&q->lock, flags);
	return ready;
}

/* Takes all completions that are there. Returns their number. */
unsigned int kz_ring_collect(struct kz_queue *q, bool late, struct list_head *finished)
{
	u32 size = 1u << q->order;
	unsigned int n;

	lockdep_assert_held(&q->lock);
	if (!q->cq)
		return 0;
	for (n = 0; n < size && kz_ring_ready(q); n++) {
		struct kz_cqe *at = &q->cq[q->cq_head & (size - 1)];
		struct kz_cqe c;

		dma_rmb();
		c.status = at->status;
		c.result = at->result;
		c.sq_head = at->sq_head;
		c.queue = at->queue;
		c.cid = at->cid;
		q->cq_head++;
		kz_ring_take(q, &c, late, finished);
	}
	if (n) {
		dma_wmb();
		WRITE_ONCE(q->db->cq_head, q->cq_head);
		kz_ring_pump(q);
		kz_ring_bell(q);
	}
	return n;
}

/* Takes completions and hands them on. Any context. */
unsigned int kz_ring_poll(struct kz_queue *q, enum kz_poll how)
{
	LIST_HEAD(finished);
	unsigned long flags;
	unsigned int n = 0;

	spin_lock_irqsave(&q->lock, flags);
	if (q->state == KZ_QUEUE_RUN)
		n = kz_ring_collect(q, how == KZ_POLL_LATE, &finished);
	if (n && how == KZ_POLL_IRQ) {
		q->stat.interrupts++;
	} else if (how == KZ_POLL_IRQ) { /* for what has been taken before; several may have been merged on the way */
		kz_ring_judge(q);
		q->owed = 0;
	}
	spin_unlock_irqrestore(&q->lock, flags);
	if (n)
		kz_slots_finish(q, &finished);
	return n;
}

void kz_ring_idle_irq(struct kz_queue *q)
{
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	q->stat.interrupts++;
	q->stat.idle_interrupts++;
	spin_unlock_irqrestore(&q->lock, flags);
}
