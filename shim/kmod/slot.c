// SPDX-License-Identifier: GPL-2.0
/*
 * Slots: one for each command id of a queue. A slot is taken (SETUP, nobody else touches it), filled by kz_xlate(),
 * committed (PENDING, ISSUED) and ended exactly once, under q->lock; what follows depends on who waits for it.
 */
#include <linux/ktime.h>

#include "kz.h"

/* NULL with *err: -EBUSY full or paused, -ESTALE ended for good. */
struct kz_slot *kz_slot_get(struct kz_queue *q, enum kz_slot_kind kind, int *err)
{
	struct kz_slot *s = NULL;
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	if (q->state == KZ_QUEUE_DEAD) {
		*err = -ESTALE;
	} else if (q->state != KZ_QUEUE_RUN || list_empty(&q->free)) {
		*err = -EBUSY;
	} else {
		s = list_first_entry(&q->free, struct kz_slot, node);
		list_del_init(&s->node);
		q->outstanding++;
		s->state = KZ_SLOT_SETUP;
		s->kind = kind;
	}
	spin_unlock_irqrestore(&q->lock, flags);
	if (s) {
		s->ioucmd = NULL;
		s->waiter = NULL;
		s->result = 0;
		s->pos = 0;
		s->piece = 0;
		s->len = 0;
		s->split = KZ_SPLIT_NONE;
		s->timeout_ms = q->timeout_ms;
	}
	return s;
}

static void kz_slot_free_locked(struct kz_slot *s)
{
	struct kz_queue *q = s->q;

	s->state = KZ_SLOT_FREE;
	s->kind = KZ_SLOT_ORPHAN;
	list_add_tail(&s->node, &q->free);
	q->outstanding--;
}

/*
 * Lets go of the slot's DMA memory. By the end of a dead queue's rings, which passes over slots in SETUP too, and by who
 * has such a slot and finds the queue dead: each takes what the other has not. Process context.
 */
void kz_slot_trim(struct kz_slot *s)
{
	struct kz_device *kz = s->q->kz;
	struct kz_sge *sg = xchg(&s->sg, NULL);
	void *bounce = xchg(&s->bounce, NULL);

	if (sg)
		dma_pool_free(kz->sg_pool, sg, s->sg_dma);
	if (bounce)
		dma_free_coherent(kz_dma(kz), s->bounce_len, bounce, s->bounce_dma);
}

/* Of a slot in SETUP or DONE that is in no list. */
void kz_slot_release(struct kz_slot *s)
{
	unsigned long flags;

	kz_xlate_drop(s);
	spin_lock_irqsave(&s->q->lock, flags);
	kz_slot_free_locked(s);
	spin_unlock_irqrestore(&s->q->lock, flags);
}

/* Of a slot in SETUP, by who fills it. */
void kz_slot_refuse(struct kz_slot *s)
{
	if (READ_ONCE(s->q->state) == KZ_QUEUE_DEAD) /* and its memory gone, or going */
		kz_slot_trim(s);
	kz_slot_release(s);
}

/* Hands the slot to the queue. On an error the caller still owns it. The doorbell is the caller's. */
int kz_slot_commit(struct kz_slot *s)
{
	struct kz_queue *q = s->q;
	unsigned long flags;
	int rc = 0;

	spin_lock_irqsave(&q->lock, flags);
	if (q->state != KZ_QUEUE_RUN) {
		rc = q->state == KZ_QUEUE_DEAD ? -ESTALE : -EBUSY;
	} else {
		s->state = KZ_SLOT_PENDING;
		list_add_tail(&s->node, &q->pending);
		q->stat.submitted++;
		q->quiet += !!(s->flags & KZ_CMD_NOIRQ);
		kz_queue_arm(q, s);
		kz_ring_pump(q);
	}
	spin_unlock_irqrestore(&q->lock, flags);
	return rc;
}

/*
 * For a command that the driver answers itself: as if the device had. Only for those that are reaped; of a dead queue
 * nobody may any more, and the caller still owns the slot.
 */
int kz_slot_answer(struct kz_slot *s, u16 status)
{
	struct kz_queue *q = s->q;
	LIST_HEAD(finished);
	unsigned long flags;
	int rc = 0;

	spin_lock_irqsave(&q->lock, flags);
	if (q->state == KZ_QUEUE_DEAD) {
		rc = -ESTALE;
	} else {
		q->stat.submitted++;
		kz_slot_end(s, status, &finished);
	}
	spin_unlock_irqrestore(&q->lock, flags);
	kz_slots_finish(q, &finished);
	return rc;
}

/*
 * The end of a command, under q->lock, in any context. Results go to memory here, while its buffers are held; then
 * they are let go, so that a buffer is idle when its last command has been seen to end.
 */
void kz_slot_end(struct kz_slot *s, u16 status, struct list_head *finished)
{
	struct kz_queue *q = s->q;

	lockdep_assert_held(&q->lock);
	list_del_init(&s->node);
	if (s->state != KZ_SLOT_SETUP)
		q->quiet -= !!(s->flags & KZ_CMD_NOIRQ);
	s->state = KZ_SLOT_DONE;
	s->status = status;
	s->done_ns = ktime_get_ns();
	if (status == KZ_ST_LOST || status == KZ_ST_EXPIRED)
		q->stat.lost++;
	else
		q->stat.completed++;
	if (status == KZ_ST_OK)
		kz_xlate_results(s);
	kz_xlate_drop(s);
	if (s->kind != KZ_SLOT_IOCTL) {
		list_add_tail(&s->node, finished);
		return;
	}
	list_add_tail(&s->node, &q->done);
	q->ndone++;
	q->wake = true;
	atomic_inc(&q->kf->ndone);
}

/* What must not be done under q->lock: tells those who wait. */
void kz_slots_finish(struct kz_queue *q, struct list_head *finished)
{
	struct kz_slot *s, *next;

	list_for_each_entry_safe(s, next, finished, node) {
		list_del_init(&s->node);
		if (s->kind == KZ_SLOT_URING)
			kz_uring_finish(s);
		else if (s->kind == KZ_SLOT_ADMIN)
			complete(s->waiter);
		else
			kz_slot_release(s);
	}
	if (READ_ONCE(q->wake)) {
		WRITE_ONCE(q->wake, false);
		if (KZ_BUG(14)) /* who waits there does not listen to signals */
			wake_up(&q->wait);
		wake_up_interruptible(&q->wait);
		wake_up_interruptible(&q->kf->wait);
	}
}

/* Up to `max` ended commands in order; their slots are free again. The caller gives back what it could not deliver. */
u32 kz_slots_reap(struct kz_queue *q, struct kz_done *to, u32 max)
{
	unsigned long flags;
	u32 n = 0;

	spin_lock_irqsave(&q->lock, flags);
	while (n < max && !list_empty(&q->done)) {
		struct kz_slot *s = list_first_entry(&q->done, struct kz_slot, node);

		to[n++] = (struct kz_done){
			.user_data = s->user_data,
			.result = s->result,
			.time_ns = s->done_ns,
			.status = s->status,
			.cid = s->user_cid,
		};
		if (KZ_BUG_STRIKES(10)) /* filled in over what lay there, of which this is left */
			to[n - 1].rsvd = lower_32_bits((unsigned long)s);
		list_del_init(&s->node);
		q->ndone--;
		atomic_dec(&q->kf->ndone);
		kz_slot_free_locked(s);
	}
	spin_unlock_irqrestore(&q->lock, flags);
	return n;
}
