// SPDX-License-Identifier: GPL-2.0
/*
 * Time limits of commands. One delayed work a queue, running a few times a second while commands are in it: it takes
 * what an interrupt should have told of, and if a command is over its time, climbs the ladder: queue reset, then
 * function reset.
 */
#include "kz.h"

#define KZ_EXPIRIES_MAX 3 /* queue resets at the driver's own limit, no completion between, before the function is reset */

/* Runs the work at the deadline, or when it is time to look, or when it would have run anyway. */
static void kz_queue_wind(struct kz_queue *q, unsigned long deadline)
{
	unsigned long look = jiffies + msecs_to_jiffies(KZ_LOOK_MS);
	unsigned long at = time_before(deadline, look) ? deadline : look;

	if (q->timer_armed && time_before_eq(q->timer_at, at))
		return;
	q->timer_armed = true;
	q->timer_at = at;
	mod_delayed_work(q->kz->wq, &q->timer, time_after(at, jiffies) ? at - jiffies : 0);
}

/* Sets the deadline of a command that goes in now. Under q->lock. */
void kz_queue_arm(struct kz_queue *q, struct kz_slot *s)
{
	lockdep_assert_held(&q->lock);
	s->deadline = jiffies + msecs_to_jiffies(s->timeout_ms) + 1;
	if (q->kf && !KZ_BUG_HAS(14, 2)) /* commands of the admin queue are waited for with a limit */
		kz_queue_wind(q, s->deadline);
}

/* Under kz->life, of a published queue. */
int kz_queue_renew(struct kz_queue *q, bool expire, u32 *dropped)
{
	int rc;

	lockdep_assert_held(&q->kz->life);
	kz_queue_seal(q);
	rc = kz_queue_halt(q);
	if (rc)
		return rc;
	*dropped = kz_queue_end(q, KZ_QUEUE_PAUSED, expire);
	q->stat.resets++;
	q->kz->resets[KZ_LEVEL_QUEUE]++;
	return kz_queue_start(q);
}

/* Under q->lock: the command that is due first, if any. */
static struct kz_slot *kz_queue_first(struct kz_queue *q)
{
	struct list_head *lists[] = { &q->issued, &q->pending };
	struct kz_slot *s, *first = NULL;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(lists); i++) {
		list_for_each_entry(s, lists[i], node) {
			if (!first || time_before(s->deadline, first->deadline))
				first = s;
		}
	}
	return first;
}

/* Under q->lock: whether a command is over its time, told to the log; else the work is armed for the next one. */
static bool kz_queue_expired(struct kz_queue *q)
{
	struct kz_slot *first = kz_queue_first(q);

	if (!first)
		return false;
	if (time_before(jiffies, first->deadline)) {
		kz_queue_wind(q, first->deadline);
		return false;
	}
	if (first->timeout_ms >= READ_ONCE(q->kz->timeout_ms)) /* a user's own, shorter limit tells nothing of the device */
		q->expiries++;
	dev_err_ratelimited(kz_dma(q->kz), "queue %u: command 0x%02x, cid %u, not complete after %u ms\n", q->id,
			    first->cmd.opcode, first->cid, first->timeout_ms);
	return true;
}

/* Whether the oldest command is over its time. */
static bool kz_queue_overdue(struct kz_queue *q)
{
	struct kz_slot *s = kz_queue_first(q);

	return s && time_after_eq(jiffies, s->deadline);
}

/* A completion that is there: whether it has been for so long, or to the end of its command's time. */
static bool kz_queue_late(struct kz_queue *q, u32 head)
{
	unsigned long flags;
	bool overdue;

	if (!q->look_since || head != q->look_head) {
		q->look_head = head;
		q->look_since = jiffies ?: 1;
	}
	spin_lock_irqsave(&q->lock, flags);
	overdue = kz_queue_overdue(q);
	spin_unlock_irqrestore(&q->lock, flags);
	return overdue || time_after_eq(jiffies, q->look_since + msecs_to_jiffies(KZ_GRACE_MS));
}

/*
 * Takes a completion that has lost its interrupt, or was to have none. Where some are to have none nothing is waited for,
 * and nobody is said to be late. By the timer's work only.
 */
static void kz_queue_look(struct kz_queue *q)
{
	bool polled = q->flags & KZ_QUEUE_POLLED;
	bool late;
	u32 head;

	if (!kz_ring_waiting(q, &head)) {
		q->look_since = 0;
		return;
	}
	late = kz_queue_late(q, head);
	if (!late && !polled && !READ_ONCE(q->quiet))
		return;
	q->look_since = 0;
	kz_ring_poll(q, late && !polled ? KZ_POLL_LATE : KZ_POLL_LOOK);
}

/*
 * Seals the queue if a command is still over its time. It may have completed since it was seen to be late, and those
 * that came after it are not to be lost for it. Else the work is armed for what is there now.
 */
static bool kz_queue_seal_overdue(struct kz_queue *q)
{
	unsigned long flags;
	bool overdue;

	spin_lock_irqsave(&q->lock, flags);
	overdue = kz_queue_overdue(q);
	if (overdue && q->state == KZ_QUEUE_RUN)
		q->state = KZ_QUEUE_PAUSED;
	else if (kz_queue_first(q))
		kz_queue_wind(q, kz_queue_first(q)->deadline);
	spin_unlock_irqrestore(&q->lock, flags);
	return overdue;
}

static int kz_queue_recover(struct kz_queue *q)
{
	struct kz_device *kz = q->kz;
	u32 dropped;

	if (!kz_queue_seal_overdue(q))
		return 0;
	if (q->expiries >= KZ_EXPIRIES_MAX || !kz_hw_present(kz) || (kz_rd(kz, KZ_REG_STATUS) & KZ_STATUS_FATAL))
		return -EIO;
	return kz_queue_renew(q, true, &dropped);
}

void kz_queue_timer(struct work_struct *work)
{
	struct kz_queue *q = container_of(to_delayed_work(work), struct kz_queue, timer);
	struct kz_device *kz = q->kz;
	bool expired = false;
	unsigned long flags;
	int rc = 0;

	kz_queue_look(q);
	mutex_lock(&kz->life);
	spin_lock_irqsave(&q->lock, flags);
	q->timer_armed = false;
	if (q->state == KZ_QUEUE_RUN && !READ_ONCE(q->closing))
		expired = kz_queue_expired(q);
	spin_unlock_irqrestore(&q->lock, flags);
	if (expired) {
		kz_coredump_locked(kz, "command over its time");
		rc = kz_queue_recover(q);
	}
	mutex_unlock(&kz->life);
	if (rc)
		kz_reset_schedule(kz, KZ_LEVEL_FUNCTION, "queue cannot be recovered");
}
