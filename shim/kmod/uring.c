// SPDX-License-Identifier: GPL-2.0
/*
 * io_uring commands. A command is queued or refused at once, whatever the flags say: nothing here waits but for memory,
 * once a slot, so nothing is ever handed to a worker. It is completed from the interrupt through task work.
 *
 * A slot with a command holds a reference to its queue until io_uring has been told; the file is held by io_uring.
 *
 * Completions of a queue reach a ring in the order in which the device wrote them. Where io_uring would turn the order
 * of task work round, each of them starts the next one for the same ring and task.
 */
#include <linux/slab.h>

#include "kz.h"

struct kz_uring_pdu {
	struct kz_slot *slot;
};

static struct kz_uring_pdu *kz_pdu(struct io_uring_cmd *ioucmd)
{
	BUILD_BUG_ON(sizeof(struct kz_uring_pdu) > sizeof(ioucmd->pdu));
	return (struct kz_uring_pdu *)ioucmd->pdu;
}

/* Under q->lock: the first that waits to be told to the same ring and task. */
static struct kz_slot *kz_uring_first(struct kz_queue *q, const struct kz_slot *like)
{
	struct kz_slot *s;

	lockdep_assert_held(&q->lock);
	list_for_each_entry(s, &q->told, node) {
		if (s->ring == like->ring && s->task == like->task)
			return s;
	}
	return NULL;
}

/* Puts it behind those of its kind. True: one of them is on its way and will start it. */
static bool kz_uring_line_up(struct kz_slot *s)
{
	struct kz_queue *q = s->q;
	unsigned long flags;
	bool wait;

	if (!KZ_URING_LIFO)
		return false;
	spin_lock_irqsave(&q->lock, flags);
	wait = kz_uring_first(q, s);
	list_add_tail(&s->node, &q->told);
	spin_unlock_irqrestore(&q->lock, flags);
	return wait;
}

/* It is told now. The one behind it, if any. */
static struct kz_slot *kz_uring_step_out(struct kz_slot *s)
{
	struct kz_queue *q = s->q;
	struct kz_slot *next;
	unsigned long flags;

	if (!KZ_URING_LIFO)
		return NULL;
	spin_lock_irqsave(&q->lock, flags);
	list_del_init(&s->node);
	next = kz_uring_first(q, s);
	spin_unlock_irqrestore(&q->lock, flags);
	return next;
}

static void kz_uring_tell(struct kz_slot *s);

/* In the submitter's context, or in a worker when the submitter is gone. */
static void kz_uring_complete(struct io_uring_cmd *ioucmd, unsigned int issue_flags)
{
	struct kz_slot *s = kz_pdu(ioucmd)->slot;
	struct kz_slot *next = kz_uring_step_out(s);
	struct kz_queue *q = s->q;
	u64 result = s->result;
	bool cqe32 = s->cqe32;
	int status = s->status;

	kz_slot_release(s);
	if (!KZ_BUG(16) || !kz_user_leaves())
		kz_uring_done(ioucmd, status, result, cqe32, issue_flags);
	if (KZ_BUG_STRIKES(15))
		kz_uring_done(ioucmd, status, result, cqe32, issue_flags);
	if (next)
		kz_uring_tell(next);
	kz_queue_put(q);
}

KZ_URING_TASK_WORK(kz_uring_complete)

static void kz_uring_tell(struct kz_slot *s)
{
	io_uring_cmd_complete_in_task(s->ioucmd, kz_uring_complete_tw);
}

/* The slot has ended; any context. */
void kz_uring_finish(struct kz_slot *s)
{
	if (!kz_uring_line_up(s))
		kz_uring_tell(s);
}

/*
 * The ring gives the command up: its task or the ring is going away. The device goes on and the slot stays taken
 * until it has answered, but nobody is told.
 */
static void kz_uring_cancel(struct io_uring_cmd *ioucmd, unsigned int issue_flags)
{
	struct kz_slot *s = kz_pdu(ioucmd)->slot;
	struct kz_queue *q = s->q;
	unsigned long flags;
	bool mine;

	spin_lock_irqsave(&q->lock, flags);
	mine = s->kind == KZ_SLOT_URING && s->ioucmd == ioucmd &&
	       (s->state == KZ_SLOT_PENDING || s->state == KZ_SLOT_ISSUED);
	if (mine) {
		s->kind = KZ_SLOT_ORPHAN;
		s->ioucmd = NULL;
		q->stat.cancelled++;
	}
	spin_unlock_irqrestore(&q->lock, flags);
	if (!mine)
		return; /* it has ended, its completion is on its way */
	if (!KZ_BUG(16))
		kz_uring_done(ioucmd, -ECANCELED, 0, false, issue_flags);
	kz_queue_put(q);
}

struct kz_plug {
	struct blk_plug_cb cb; /* data: the queue, with a reference */
	bool armed;
};

static void kz_uring_unplug(struct blk_plug_cb *cb, bool from_schedule)
{
	struct kz_queue *q = cb->data;
	int idx;

	if (!kz_begin(q->kz, &idx)) {
		kz_queue_bell(q);
		kz_end(q->kz, idx);
	}
	kz_queue_put(q);
	kfree(container_of(cb, struct kz_plug, cb));
}

/* io_uring plugs while it submits several entries: one doorbell then stands for all of them. */
static void kz_uring_bell(struct kz_queue *q)
{
	struct blk_plug_cb *cb = blk_check_plugged(kz_uring_unplug, q, sizeof(struct kz_plug));
	struct kz_plug *plug;

	if (!cb) {
		kz_queue_bell(q);
		return;
	}
	plug = container_of(cb, struct kz_plug, cb);
	if (!plug->armed) { /* the first of the batch */
		plug->armed = true;
		kref_get(&q->ref);
	}
}

/* What the user asked for into the slot. Returns as kz_xlate(). */
static int kz_uring_fill(struct kz_slot *s, struct kz_file *kf, const struct kz_uring_cmd *u, u16 *soft)
{
	s->user_data = 0;
	if (u->timeout_ms)
		s->timeout_ms = u->timeout_ms;
	if (u->result_at) {
		if ((u->result_at & 7) || kz_buf_place(kf, u->result_at, 8, true, &s->result_at))
			return -EFAULT;
	}
	return kz_xlate(s, kf, &u->cmd, soft);
}

static int kz_uring_queue(struct kz_queue *q, struct kz_file *kf, const struct kz_uring_cmd *u,
			  struct io_uring_cmd *ioucmd, unsigned int issue_flags)
{
	struct kz_slot *s;
	u16 soft = 0;
	int rc;

	s = kz_slot_get(q, KZ_SLOT_URING, &rc);
	if (!s)
		return rc;
	rc = kz_uring_fill(s, kf, u, &soft);
	if (rc || soft) {
		kz_slot_refuse(s);
		return rc ?: soft;
	}
	s->cqe32 = issue_flags & IO_URING_F_CQE32;
	s->ioucmd = ioucmd;
	s->ring = kz_uring_ring(ioucmd);
	s->task = current;
	kz_pdu(ioucmd)->slot = s;
	kref_get(&q->ref);
	kz_uring_cancelable(ioucmd, issue_flags);
	rc = kz_slot_commit(s);
	if (rc) { /* once it can be cancelled, io_uring wants to be told rather than given a return value */
		kz_slot_refuse(s);
		kz_uring_done(ioucmd, rc, 0, false, issue_flags);
		kz_queue_put(q);
		return -EIOCBQUEUED;
	}
	kz_uring_bell(q);
	return -EIOCBQUEUED;
}

static int kz_uring_submit(struct kz_file *kf, struct io_uring_cmd *ioucmd, unsigned int issue_flags)
{
	struct kz_uring_cmd u;
	struct kz_queue *q;
	int rc;

	if (!(issue_flags & IO_URING_F_SQE128))
		return -EINVAL;
	memcpy(&u, kz_uring_payload(ioucmd), sizeof(u));
	if (u.timeout_ms > KZ_TIMEOUT_MAX_MS)
		return -EINVAL;
	q = kz_queue_find(kf, u.queue);
	if (!q)
		return -ENOENT;
	rc = q->flags & KZ_QUEUE_POLLED ? -EINVAL : kz_uring_queue(q, kf, &u, ioucmd, issue_flags);
	kz_queue_put(q);
	return rc;
}

int kz_uring_cmd(struct io_uring_cmd *ioucmd, unsigned int issue_flags)
{
	struct kz_file *kf = ioucmd->file->private_data;
	int idx, rc;

	if (kz_uring_is_cancel(issue_flags)) {
		kz_uring_cancel(ioucmd, issue_flags);
		return 0;
	}
	rc = kz_begin(kf->kz, &idx);
	if (rc)
		return rc;
	switch (ioucmd->cmd_op) {
	case KZ_URING_NOP:
		break;
	case KZ_URING_SUBMIT:
		rc = kz_uring_submit(kf, ioucmd, issue_flags);
		break;
	default:
		rc = -EOPNOTSUPP;
		break;
	}
	kz_end(kf->kz, idx);
	return rc;
}
