// SPDX-License-Identifier: GPL-2.0
/*
 * /sys/kernel/debug/kz_accel/<pci name>: registers, queues, files (with their contexts and buffers), vectors. Root
 * only, by debugfs' own mode. Removing the folder waits for readers.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "kz.h"

static int registers_show(struct seq_file *m, void *unused)
{
	struct kz_device *kz = m->private;
	unsigned int i;
	int idx, rc;

	rc = kz_begin_live(kz, &idx, false);
	if (rc)
		return rc;
	for (i = 0; i < kz_reg_count(); i++) {
		const char *name;
		u32 reg = kz_reg_at(i, &name);

		seq_printf(m, "0x%04x %-12s 0x%08x\n", reg, name, kz_rd(kz, reg));
	}
	kz_end_live(kz, idx);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(registers);

static void kz_show_queue(struct seq_file *m, struct kz_queue *q)
{
	struct kz_ioc_queue_stat s;
	unsigned long flags;
	u32 outstanding, ndone, tail, head;

	spin_lock_irqsave(&q->lock, flags);
	s = q->stat;
	outstanding = q->outstanding;
	ndone = q->ndone;
	tail = q->sq_tail;
	head = q->cq_head;
	spin_unlock_irqrestore(&q->lock, flags);
	seq_printf(m, "%u: ctx %u order %u vector %u pid %d sq_tail %u cq_head %u outstanding %u unreaped %u\n", q->id,
		   q->ctx, q->order, q->vector, q->kf ? q->kf->pid : 0, tail, head, outstanding, ndone);
	seq_printf(m, "   submitted %llu completed %llu lost %llu cancelled %llu interrupts %llu idle %llu late %llu unheard %llu\n",
		   s.submitted, s.completed, s.lost, s.cancelled, s.interrupts, s.idle_interrupts, s.found_late,
		   s.interrupts_lost);
	seq_printf(m, "   unknown_cid %llu repeated_cid %llu wrong_queue %llu bad_sq_head %llu resets %llu\n", s.unknown_cid,
		   s.repeated_cid, s.wrong_queue,
		   s.bad_sq_head, s.resets);
}

static int queues_show(struct seq_file *m, void *unused)
{
	struct kz_device *kz = m->private;
	unsigned int id;

	mutex_lock(&kz->life);
	for (id = 0; id < kz->nqueues; id++) {
		struct kz_queue *q = rcu_dereference_protected(kz->hwq[id], lockdep_is_held(&kz->life));

		if (q)
			kz_show_queue(m, q);
	}
	mutex_unlock(&kz->life);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(queues);

static int files_show(struct seq_file *m, void *unused)
{
	struct kz_device *kz = m->private;
	struct kz_file *kf;

	mutex_lock(&kz->files_lock);
	list_for_each_entry(kf, &kz->files, node) {
		struct kz_context *c;
		unsigned long id;

		seq_printf(m, "pid %d (%s): hbm %lld pinned %lld unreaped %d\n", kf->pid, kf->comm,
			   atomic64_read(&kf->hbm_used), atomic64_read(&kf->pinned), atomic_read(&kf->ndone));
		xa_lock(&kf->ctxs); /* contexts are freed after they are erased under this lock */
		xa_for_each(&kf->ctxs, id, c)
			seq_printf(m, "   context %lu queues %u %s\n", id, c->queues,
				   kz_ctx_alive(kz, c) ? "alive" : "dead");
		xa_unlock(&kf->ctxs);
	}
	mutex_unlock(&kz->files_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(files);

static int vectors_show(struct seq_file *m, void *unused)
{
	struct kz_device *kz = m->private;
	unsigned int i;

	for (i = 0; i < kz->nvectors; i++)
		seq_printf(m, "%u: irq %d count %llu\n", i, kz->vec[i].irq, READ_ONCE(kz->vec[i].count));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vectors);

void kz_debugfs_init(struct kz_device *kz)
{
	kz->debugfs = debugfs_create_dir(pci_name(kz->pdev), kz_debugfs_root);
	debugfs_create_file("registers", 0400, kz->debugfs, kz, &registers_fops);
	debugfs_create_file("queues", 0400, kz->debugfs, kz, &queues_fops);
	debugfs_create_file("files", 0400, kz->debugfs, kz, &files_fops);
	debugfs_create_file("vectors", 0400, kz->debugfs, kz, &vectors_fops);
}

void kz_debugfs_exit(struct kz_device *kz)
{
	debugfs_remove_recursive(kz->debugfs);
}
