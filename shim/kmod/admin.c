// SPDX-License-Identifier: GPL-2.0
/* The driver's own queue, context 0: one command at a time, waited for. */
#include <linux/slab.h>

#include "kz.h"

int kz_admin_init(struct kz_device *kz)
{
	struct kz_queue *q = kz_queue_alloc(kz, NULL, KZ_ADMIN_QUEUE, KZ_ADMIN_ORDER);

	if (IS_ERR(q))
		return PTR_ERR(q);
	kz->admin = q;
	kz_queue_publish(q);
	return 0;
}

void kz_admin_exit(struct kz_device *kz)
{
	kz_queue_unpublish(kz->admin);
	kz_queue_put(kz->admin);
}

/* The waiter leaves; the slot stays taken until the device or a reset ends it. False: it has ended just now. */
static bool kz_admin_abandon(struct kz_slot *s)
{
	unsigned long flags;
	bool running;

	spin_lock_irqsave(&s->q->lock, flags);
	running = s->state != KZ_SLOT_DONE;
	if (running)
		s->kind = KZ_SLOT_ORPHAN;
	spin_unlock_irqrestore(&s->q->lock, flags);
	return running;
}

/* Waits in steps, looking at the ring after each: an interrupt may have been lost. */
static bool kz_admin_wait(struct kz_queue *q, struct completion *done, u32 ms)
{
	unsigned long end = jiffies + msecs_to_jiffies(ms);

	while (time_before(jiffies, end)) {
		if (wait_for_completion_timeout(done, msecs_to_jiffies(KZ_LOOK_MS)))
			return true;
		kz_ring_poll(q, KZ_POLL_LATE);
	}
	return try_wait_for_completion(done);
}

static int kz_admin_run(struct kz_device *kz, const struct kz_cmd *cmd, u64 *result, u32 ms)
{
	DECLARE_COMPLETION_ONSTACK(done);
	struct kz_queue *q = kz->admin;
	unsigned long flags;
	struct kz_slot *s;
	int rc;

	s = kz_slot_get(q, KZ_SLOT_ADMIN, &rc);
	if (!s)
		return rc;
	s->cmd = *cmd;
	s->flags = 0;
	s->waiter = &done;
	rc = kz_slot_commit(s);
	if (rc) {
		kz_slot_release(s);
		return rc;
	}
	spin_lock_irqsave(&q->lock, flags);
	kz_ring_bell(q);
	spin_unlock_irqrestore(&q->lock, flags);
	if (!kz_admin_wait(q, &done, ms)) {
		if (kz_admin_abandon(s))
			return -ETIMEDOUT;
		wait_for_completion(&done); /* it has just ended */
	}
	rc = s->status;
	*result = s->result;
	kz_slot_release(s);
	return rc;
}

/*
 * Runs a command for a device of the given generation. Returns KZ_ST_* (>= 0), -ESTALE when that device has been
 * reset, -ETIMEDOUT when it did not answer: then it has been stopped, so memory of the command is safe, and a reset
 * is on its way.
 */
int kz_admin(struct kz_device *kz, u32 generation, const struct kz_cmd *cmd, u64 *result, u32 ms)
{
	u64 ignored;
	int rc = -ESTALE;

	mutex_lock(&kz->admin_lock);
	if (READ_ONCE(kz->generation) == generation && READ_ONCE(kz->up))
		rc = kz_admin_run(kz, cmd, result ?: &ignored, ms);
	mutex_unlock(&kz->admin_lock);
	if (rc == KZ_ST_LOST || (rc == -EBUSY && READ_ONCE(kz->generation) != generation))
		rc = -ESTALE;
	if (rc == -ETIMEDOUT) {
		dev_err(kz_dma(kz), "admin command 0x%02x not complete after %u ms\n", cmd->opcode, ms);
		kz_stop_old(kz, generation);
		kz_reset_schedule(kz, KZ_LEVEL_FUNCTION, "admin command over its time");
	}
	return rc;
}
