// SPDX-License-Identifier: GPL-2.0
/* The calls about queues: create and end, submit a batch, reap. */
#include <linux/hrtimer.h>
#include <linux/pm_runtime.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "kz.h"

#define KZ_REAP_BATCH 8
#define KZ_POLL_US 20

/* The caller puts it. Any context. */
struct kz_queue *kz_queue_find(struct kz_file *kf, u32 id)
{
	struct kz_queue *q;

	rcu_read_lock();
	q = xa_load(&kf->queues, id);
	if (q && !kref_get_unless_zero(&q->ref))
		q = NULL;
	rcu_read_unlock();
	return q;
}

u32 kz_queues_free(struct kz_device *kz)
{
	return kz->nqueues - bitmap_weight(kz->used, kz->nqueues);
}

/* One that the device has free, and that no dead queue of the file still has. */
static u32 kz_queue_pick(struct kz_file *kf)
{
	struct kz_device *kz = kf->kz;
	u32 id;

	for (id = KZ_ADMIN_QUEUE + 1; id < kz->nqueues; id++) {
		if (!test_bit(id, kz->used) && !xa_load(&kf->queues, id))
			break;
	}
	return id;
}

/* Under kf->lock, of a live context: a queue of the device for it, running. */
static struct kz_queue *kz_queue_make(struct kz_file *kf, struct kz_context *c, const struct kz_ioc_queue *a)
{
	struct kz_device *kz = kf->kz;
	bool stuck = false;
	struct kz_queue *q;
	u32 id;
	int rc;

	rc = kz_life_lock(kz, c->generation);
	if (rc)
		return ERR_PTR(rc);
	id = kz_queue_pick(kf);
	q = id < kz->nqueues ? kz_queue_alloc(kz, kf, id, a->order) : ERR_PTR(-ENOSPC);
	if (IS_ERR(q)) {
		mutex_unlock(&kz->life);
		return q;
	}
	q->ctx = c->id;
	q->owner = c;
	q->flags = a->flags;
	if (a->timeout_ms)
		q->timeout_ms = a->timeout_ms;
	kz_queue_publish(q);
	rc = kz_queue_halt(q); /* whatever its last user left */
	if (!rc) {
		rc = kz_queue_start(q);
		stuck = rc && kz_queue_halt(q); /* the device knows where the rings are, and may start late */
	}
	if (rc && !stuck)
		kz_queue_unpublish(q);
	mutex_unlock(&kz->life);
	if (stuck)
		kz_queue_stuck(q, c->generation);
	if (rc) {
		kz_queue_put(q);
		q = ERR_PTR(rc);
	}
	return q;
}

int kz_queue_open(struct kz_file *kf, struct kz_ioc_queue *a)
{
	struct kz_device *kz = kf->kz;
	struct kz_context *c;
	struct kz_queue *q;
	int rc = 0;

	if (a->queue || a->dropped || a->vector || !a->order ||
	    a->order > min_t(u32, KZ_CAP_MAX_ORDER(kz->cap), KZ_MAX_ORDER) || a->timeout_ms > KZ_TIMEOUT_MAX_MS)
		return -EINVAL;
	mutex_lock(&kf->lock);
	c = kz_ctx_find(kf, a->ctx, &rc);
	if (!c)
		goto out;
	q = kz_ctx_alive(kz, c) ? kz_queue_make(kf, c, a) : ERR_PTR(-ESTALE);
	rc = PTR_ERR_OR_ZERO(q);
	if (rc)
		goto out;
	a->queue = q->id;
	a->vector = q->vector;
	a->timeout_ms = q->timeout_ms;
	rc = xa_insert(&kf->queues, q->id, q, GFP_KERNEL_ACCOUNT);
	if (rc) {
		kz_queue_destroy(q);
		a->queue = 0;
		goto out;
	}
	c->queues++;
	pm_runtime_get_noresume(kz_dma(kz));
out:
	mutex_unlock(&kf->lock);
	return rc;
}

/* Of a queue that has been taken out of kf->queues. Under kf->lock. */
void kz_queue_drop(struct kz_file *kf, struct kz_queue *q)
{
	q->owner->queues--;
	kz_queue_destroy(q);
	pm_runtime_put_autosuspend(kz_dma(kf->kz));
}

int kz_queue_close(struct kz_file *kf, struct kz_ioc_queue *a)
{
	struct kz_queue *q;

	if (a->ctx || a->order || a->timeout_ms || a->dropped || a->vector)
		return -EINVAL;
	mutex_lock(&kf->lock);
	q = xa_erase(&kf->queues, a->queue);
	if (q)
		kz_queue_drop(kf, q);
	mutex_unlock(&kf->lock);
	return q ? 0 : -ENOENT;
}

int kz_queue_renew_call(struct kz_file *kf, struct kz_ioc_queue *a)
{
	struct kz_queue *q;
	int rc;

	if (a->ctx || a->order || a->timeout_ms || a->dropped || a->vector)
		return -EINVAL;
	q = kz_queue_find(kf, a->queue);
	if (!q)
		return -ENOENT;
	rc = kz_queue_reset(q, &a->dropped);
	kz_queue_put(q);
	return rc;
}

int kz_queue_stat(struct kz_file *kf, struct kz_ioc_queue_stat *a)
{
	struct kz_queue *q = kz_queue_find(kf, a->queue);
	u32 argsz = a->argsz, id = a->queue;
	unsigned long flags;

	if (!q)
		return -ENOENT;
	spin_lock_irqsave(&q->lock, flags);
	kz_ring_judge(q);
	*a = q->stat;
	a->interrupts_owed = q->owed;
	a->outstanding = q->outstanding - q->ndone;
	spin_unlock_irqrestore(&q->lock, flags);
	a->argsz = argsz;
	a->queue = id;
	kz_queue_put(q);
	return 0;
}

static int kz_submit_one(struct kz_file *kf, struct kz_queue *q, const struct kz_entry *e)
{
	struct kz_slot *s;
	u16 soft;
	int rc;

	if (e->rsvd || e->timeout_ms > KZ_TIMEOUT_MAX_MS)
		return -EINVAL;
	s = kz_slot_get(q, KZ_SLOT_IOCTL, &rc);
	if (!s)
		return rc;
	s->user_data = e->user_data;
	if (e->timeout_ms)
		s->timeout_ms = e->timeout_ms;
	rc = kz_xlate(s, kf, &e->cmd, &soft);
	if (!rc)
		rc = soft ? kz_slot_answer(s, soft) : kz_slot_commit(s);
	if (rc)
		kz_slot_refuse(s);
	return rc;
}

void kz_queue_bell(struct kz_queue *q)
{
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	kz_ring_bell(q);
	spin_unlock_irqrestore(&q->lock, flags);
}

/* A queue in a reset holds commands off for a moment; the reset holds kz->life. */
static int kz_submit_wait(struct kz_file *kf, struct kz_queue *q, const struct kz_entry *e)
{
	int rc = kz_submit_one(kf, q, e);

	if (rc != -EBUSY || READ_ONCE(q->state) != KZ_QUEUE_PAUSED)
		return rc;
	if (mutex_lock_killable(&kf->kz->life))
		return -EINTR;
	mutex_unlock(&kf->kz->life);
	return kz_submit_one(kf, q, e);
}

int kz_submit(struct kz_file *kf, struct kz_ioc_submit *a)
{
	const struct kz_entry __user *from = u64_to_user_ptr(a->entries);
	struct kz_queue *q;
	int rc = 0;

	if (a->done || a->error)
		return -EINVAL;
	q = kz_queue_find(kf, a->queue);
	if (!q)
		return -ENOENT;
	if (KZ_BUG(9))
		mutex_lock(&kf->lock);
	if (KZ_BUG(32))
		kz_check_batch(from, a->count);
	while (a->done < a->count) {
		struct kz_entry e;

		if (kz_state(kf->kz) == KZ_STATE_GONE || fatal_signal_pending(current)) { /* remove waits for us */
			rc = kz_state(kf->kz) == KZ_STATE_GONE ? -ENODEV : -EINTR;
			break;
		}
		cond_resched();
		rc = copy_from_user(&e, from + a->done, sizeof(e)) ? -EFAULT : kz_submit_wait(kf, q, &e);
		if (rc)
			break;
		a->done++;
	}
	kz_queue_bell(q);
	if (KZ_BUG(9))
		mutex_unlock(&kf->lock);
	kz_queue_put(q);
	a->error = rc;
	return a->done ? 0 : rc;
}

/* True when nothing more will come, or enough is there. */
static bool kz_reap_ready(struct kz_queue *q, u32 min)
{
	return READ_ONCE(q->ndone) >= min || READ_ONCE(q->state) == KZ_QUEUE_DEAD ||
	       kz_state(q->kz) == KZ_STATE_GONE;
}

static bool kz_reap_polls(struct kz_queue *q)
{
	return (q->flags & KZ_QUEUE_POLLED) || READ_ONCE(q->quiet);
}

/* Looks at the ring, where no interrupt is to be expected and the device is not gone. */
static void kz_reap_look(struct kz_queue *q)
{
	int idx;

	if (!kz_reap_polls(q) || kz_begin(q->kz, &idx))
		return;
	kz_ring_poll(q, KZ_POLL_LOOK);
	kz_end(q->kz, idx);
}

/* Waits for `min`. 0 or -EINTR; what the wait was good for is seen by reaping. */
static int kz_reap_wait(struct kz_queue *q, u32 min, s64 timeout_ns)
{
	ktime_t end = timeout_ns < 0 ? KTIME_MAX : ktime_add_safe(ktime_get(), ns_to_ktime(timeout_ns));

	if (KZ_BUG_HAS(14, 1) && !kz_reap_polls(q))
		wait_event(q->wait, kz_reap_ready(q, min));
	while (!kz_reap_ready(q, min)) {
		ktime_t left = timeout_ns < 0 ? KTIME_MAX : ktime_sub(end, ktime_get());
		int rc;

		if (left <= 0)
			return 0;
		if (kz_reap_polls(q))
			left = min_t(ktime_t, left, KZ_POLL_US * NSEC_PER_USEC);
		rc = wait_event_interruptible_hrtimeout(q->wait, kz_reap_ready(q, min), left);
		if (rc == -ERESTARTSYS)
			return -EINTR;
		kz_reap_look(q);
	}
	return 0;
}

static int kz_reap_out(struct kz_queue *q, struct kz_ioc_reap *a)
{
	struct kz_done __user *to = u64_to_user_ptr(a->entries);

	while (a->count < a->max) {
		struct kz_done some[KZ_REAP_BATCH];
		u32 n = kz_slots_reap(q, some, min_t(u32, a->max - a->count, KZ_REAP_BATCH));

		if (!n)
			return 0;
		if (copy_to_user(to + a->count, some, n * sizeof(*some)))
			return -EFAULT; /* the caller's loss: they are gone from the books as delivered */
		a->count += n;
	}
	return 0;
}

/* Waits outside the device's read section, so that remove need not wait for it. */
int kz_reap(struct kz_file *kf, struct kz_ioc_reap *a)
{
	struct kz_queue *q;
	int rc, rc_out;

	if (a->count || !a->max || a->min > a->max)
		return -EINVAL;
	q = kz_queue_find(kf, a->queue);
	if (!q)
		return kz_state(kf->kz) == KZ_STATE_GONE ? -ENODEV : -ENOENT;
	kz_reap_look(q);
	rc = kz_reap_wait(q, min_t(u32, a->min, 1u << q->order), a->timeout_ns);
	rc_out = kz_reap_out(q, a);
	if (rc_out)
		rc = rc_out;
	else if (a->count)
		rc = 0;
	else if (kz_state(kf->kz) == KZ_STATE_GONE)
		rc = -ENODEV;
	else if (READ_ONCE(q->state) == KZ_QUEUE_DEAD)
		rc = -ESTALE;
	kz_queue_put(q);
	return rc;
}
