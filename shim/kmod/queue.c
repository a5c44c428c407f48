// SPDX-License-Identifier: GPL-2.0
/* Life of a queue: memory, the device's registers for it, reset, time limits, end. Commands are in ring.c, slot.c. */
#include <linux/delay.h>
#include <linux/iopoll.h>
#include <linux/slab.h>

#include "kz.h"

static size_t kz_sq_bytes(struct kz_queue *q)
{
	return PAGE_ALIGN(sizeof(struct kz_cmd) << q->order);
}

static size_t kz_cq_bytes(struct kz_queue *q)
{
	return PAGE_ALIGN(sizeof(struct kz_cqe) << q->order);
}

static void kz_queue_free_rings(struct kz_queue *q)
{
	struct device *dma = kz_dma(q->kz);
	u32 i;

	for (i = 0; i < 1u << q->order; i++)
		kz_slot_trim(&q->slot[i]);
	if (q->sq)
		dma_free_coherent(dma, kz_sq_bytes(q), q->sq, q->sq_dma);
	if (q->cq)
		dma_free_coherent(dma, kz_cq_bytes(q), q->cq, q->cq_dma);
	if (q->db && !KZ_BUG_HAS(3, 2))
		dma_free_coherent(dma, PAGE_SIZE, q->db, q->db_dma);
	q->sq = NULL;
	q->cq = NULL;
	q->db = NULL;
}

static int kz_queue_alloc_rings(struct kz_queue *q)
{
	struct device *dma = kz_dma(q->kz);

	q->sq = dma_alloc_coherent(dma, kz_sq_bytes(q), &q->sq_dma, GFP_KERNEL);
	q->cq = dma_alloc_coherent(dma, kz_cq_bytes(q), &q->cq_dma, GFP_KERNEL);
	q->db = dma_alloc_coherent(dma, PAGE_SIZE, &q->db_dma, GFP_KERNEL);
	if (q->sq && q->cq && q->db)
		return 0;
	kz_queue_free_rings(q);
	return -ENOMEM;
}

static void kz_queue_release(struct kref *ref)
{
	struct kz_queue *q = container_of(ref, struct kz_queue, ref);

	kvfree(q->slot);
	kfree_rcu(q, rcu);
}

void kz_queue_put(struct kz_queue *q)
{
	kref_put(&q->ref, kz_queue_release);
}

/* With rings, stopped, and not yet known to anybody. */
struct kz_queue *kz_queue_alloc(struct kz_device *kz, struct kz_file *kf, u32 id, u32 order)
{
	struct kz_queue *q = kzalloc(sizeof(*q), GFP_KERNEL_ACCOUNT);
	u32 i;

	if (!q)
		return ERR_PTR(-ENOMEM);
	kref_init(&q->ref);
	q->kz = kz;
	q->kf = kf;
	q->id = id;
	q->vector = id % kz->nvectors;
	q->order = order;
	q->timeout_ms = kz->timeout_ms;
	q->state = KZ_QUEUE_PAUSED;
	spin_lock_init(&q->lock);
	init_waitqueue_head(&q->wait);
	INIT_DELAYED_WORK(&q->timer, kz_queue_timer);
	INIT_LIST_HEAD(&q->free);
	INIT_LIST_HEAD(&q->pending);
	INIT_LIST_HEAD(&q->issued);
	INIT_LIST_HEAD(&q->done);
	INIT_LIST_HEAD(&q->told);
	q->slot = kvcalloc(1u << order, sizeof(*q->slot), GFP_KERNEL_ACCOUNT);
	for (i = 0; q->slot && i < 1u << order; i++) { /* before the rings, whose end looks at them */
		q->slot[i].q = q;
		q->slot[i].cid = i;
		list_add_tail(&q->slot[i].node, &q->free);
	}
	if (!q->slot || kz_queue_alloc_rings(q)) {
		kz_queue_put(q);
		return ERR_PTR(-ENOMEM);
	}
	return q;
}

static void kz_queue_program(struct kz_queue *q)
{
	struct kz_device *kz = q->kz;
	u32 base = KZ_REG_QUEUE(q->id);
	bool irq = !(q->flags & KZ_QUEUE_POLLED);

	kz_wr(kz, base + KZ_Q_SQ_LO, lower_32_bits(q->sq_dma));
	kz_wr(kz, base + KZ_Q_SQ_HI, upper_32_bits(q->sq_dma));
	kz_wr(kz, base + KZ_Q_CQ_LO, lower_32_bits(q->cq_dma));
	kz_wr(kz, base + KZ_Q_CQ_HI, upper_32_bits(q->cq_dma));
	kz_wr(kz, base + KZ_Q_DBREC_LO, lower_32_bits(q->db_dma));
	kz_wr(kz, base + KZ_Q_DBREC_HI, upper_32_bits(q->db_dma));
	kz_wr(kz, base + KZ_Q_ORDER, q->order);
	kz_wr(kz, base + KZ_Q_VECTOR, q->vector);
	kz_wr(kz, base + KZ_Q_CONTEXT, q->ctx);
	kz_wr(kz, base + KZ_Q_CTRL, KZ_QCTRL_ENABLE | (irq ? KZ_QCTRL_IRQ : 0));
}

/* Empty rings, the device's queue enabled, commands let in. The device's queue must be off. */
int kz_queue_start(struct kz_queue *q)
{
	struct kz_device *kz = q->kz;
	unsigned long flags;
	u32 state;

	memset(q->sq, 0, kz_sq_bytes(q));
	if (!KZ_BUG(36) || !q->stat.resets)
		memset(q->cq, 0, kz_cq_bytes(q));
	memset(q->db, 0, sizeof(*q->db));
	kz_queue_program(q);
	readl_poll_timeout(kz->regs + KZ_REG_QUEUE(q->id) + KZ_Q_STATE, state, (state & 0xff) != KZ_QSTATE_OFF, 10,
			   KZ_QRESET_MS * 1000);
	if ((state & 0xff) != KZ_QSTATE_RUN) {
		dev_err(kz_dma(kz), "queue %u does not start: STATE 0x%08x\n", q->id, state);
		return -EIO;
	}
	spin_lock_irqsave(&q->lock, flags);
	q->sq_tail = 0;
	q->cq_head = 0;
	q->bell_due = false;
	q->state = KZ_QUEUE_RUN;
	spin_unlock_irqrestore(&q->lock, flags);
	return 0;
}

/* Stops the device's side. Afterwards it touches the rings and the commands' memory no more. */
int kz_queue_halt(struct kz_queue *q)
{
	u32 ctrl = KZ_REG_QUEUE(q->id) + KZ_Q_CTRL;

	kz_wr(q->kz, ctrl, KZ_QCTRL_RESET);
	return kz_wait_reg(q->kz, ctrl, KZ_QCTRL_RESET | KZ_QCTRL_ENABLE, 0, KZ_QRESET_MS);
}

/* No command enters the ring from here on. */
void kz_queue_seal(struct kz_queue *q)
{
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	if (q->state == KZ_QUEUE_RUN)
		q->state = KZ_QUEUE_PAUSED;
	spin_unlock_irqrestore(&q->lock, flags);
}

/* Ends all commands of a sealed queue that the device has let go of. Returns how many were lost. `expire`: those over
 * their time say so.
 */
u32 kz_queue_end(struct kz_queue *q, enum kz_queue_state state, bool expire)
{
	struct kz_slot *s, *next;
	LIST_HEAD(finished);
	unsigned long flags;
	u32 n = 0;

	spin_lock_irqsave(&q->lock, flags);
	if (KZ_BUG(8))
		msleep(kz_bug_arg);
	kz_ring_collect(q, false, &finished);
	list_splice_tail_init(&q->pending, &q->issued);
	list_for_each_entry_safe(s, next, &q->issued, node) {
		bool over = expire && time_after_eq(jiffies, s->deadline);

		kz_slot_end(s, over ? KZ_ST_EXPIRED : KZ_ST_LOST, &finished);
		n++;
	}
	q->state = state;
	q->wake = q->kf;
	spin_unlock_irqrestore(&q->lock, flags);
	kz_slots_finish(q, &finished);
	return n;
}

/* Interrupts find the queue by its number. Both under kz->life. */
void kz_queue_publish(struct kz_queue *q)
{
	rcu_assign_pointer(q->kz->hwq[q->id], q);
	__set_bit(q->id, q->kz->used);
}

void kz_queue_unpublish(struct kz_queue *q)
{
	rcu_assign_pointer(q->kz->hwq[q->id], NULL);
	__clear_bit(q->id, q->kz->used);
	synchronize_rcu(); /* no interrupt handler looks at it any more */
	kz_queue_free_rings(q);
}

static bool kz_queue_published(struct kz_queue *q)
{
	return rcu_access_pointer(q->kz->hwq[q->id]) == q;
}

int kz_queue_reset(struct kz_queue *q, u32 *dropped)
{
	struct kz_device *kz = q->kz;
	int rc;

	mutex_lock(&kz->life);
	rc = kz_queue_published(q) && !q->closing ? kz_queue_renew(q, false, dropped) : -ESTALE;
	mutex_unlock(&kz->life);
	if (rc && rc != -ESTALE)
		kz_reset_schedule(kz, KZ_LEVEL_FUNCTION, "queue did not reset");
	return rc;
}

/* The device does not let go of a queue: its memory stays until the device is off the bus, which it is then taken. */
void kz_queue_stuck(struct kz_queue *q, u32 generation)
{
	kz_stop_old(q->kz, generation);
	kz_reset_schedule(q->kz, KZ_LEVEL_FUNCTION, "queue did not stop");
}

/* What nobody has reaped and nobody can any more, out of the file's count too. A reaper that is still here takes his part. */
static void kz_queue_discard(struct kz_queue *q)
{
	struct kz_done some[8];

	while (kz_slots_reap(q, some, ARRAY_SIZE(some)))
		;
}

/* It can no longer be found. A call that has found it before may still be in it, and the device be working on it. */
void kz_queue_destroy(struct kz_queue *q)
{
	struct kz_device *kz = q->kz;
	bool stuck = false;
	u32 generation;

	mutex_lock(&kz->life);
	WRITE_ONCE(q->closing, true); /* no reset lets commands in again, the timer does nothing */
	kz_queue_seal(q);
	mutex_unlock(&kz->life);
	cancel_delayed_work_sync(&q->timer);
	mutex_lock(&kz->life);
	generation = kz->generation;
	if (kz_queue_published(q)) {
		stuck = kz_queue_halt(q) != 0;
		if (!stuck) {
			kz_queue_end(q, KZ_QUEUE_DEAD, false);
			kz_queue_unpublish(q);
		}
	}
	mutex_unlock(&kz->life);
	if (stuck)
		kz_queue_stuck(q, generation);
	kz_queue_discard(q);
	kz_queue_put(q);
}
