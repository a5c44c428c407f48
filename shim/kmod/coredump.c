// SPDX-License-Identifier: GPL-2.0
/*
 * What the device looked like before a reset, as text in /sys/class/devcoredump. Says registers, telemetry, queues and
 * what was outstanding in them; no memory of any user.
 */
#include <linux/devcoredump.h>
#include <linux/ktime.h>
#include <linux/vmalloc.h>

#include "kz.h"

#define KZ_DUMP_BYTES SZ_32K
#define KZ_DUMP_SLOTS 16 /* of each queue */

struct kz_dump {
	char *text;
	size_t len;
};

static __printf(2, 3) void kz_put(struct kz_dump *d, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	d->len += vscnprintf(d->text + d->len, KZ_DUMP_BYTES - d->len, format, args);
	va_end(args);
}

static void kz_dump_regs(struct kz_device *kz, struct kz_dump *d)
{
	const char *name;
	unsigned int i;

	for (i = 0; i < kz_reg_count(); i++) {
		u32 reg = kz_reg_at(i, &name);

		kz_put(d, "reg %-12s 0x%04x 0x%08x\n", name, reg, kz_rd(kz, reg));
	}
}

static void kz_dump_telemetry(struct kz_device *kz, struct kz_dump *d)
{
	struct kz_telemetry t;
	unsigned int i;

	if (kz_hw_telemetry(kz, &t)) {
		kz_put(d, "telemetry inconsistent\n");
		return;
	}
	kz_put(d, "telemetry time %llu core %d hbm %d limit %d power %u clock %u throttle 0x%x heartbeat %u\n", t.time_ns,
	       t.temp_core_mc, t.temp_hbm_mc, t.temp_limit_mc, t.power_mw, t.clock_khz, t.throttle, t.heartbeat);
	kz_put(d, "telemetry resets %u reason %u hbm free %llu contexts %u retired %u commands %llu\n", t.reset_count,
	       t.reset_reason, t.hbm_free_bytes, t.contexts, t.pages_retired, t.commands);
	for (i = 0; i < min_t(u32, t.ecc_channels, KZ_TEL_CHANNELS); i++) {
		if (t.ecc_ce[i] || t.ecc_ue[i])
			kz_put(d, "ecc channel %u corrected %u uncorrected %u\n", i, t.ecc_ce[i], t.ecc_ue[i]);
	}
}

static void kz_dump_slots(struct kz_queue *q, struct kz_dump *d)
{
	struct kz_slot *s;
	unsigned int n = 0;

	list_for_each_entry(s, &q->issued, node) {
		if (n++ == KZ_DUMP_SLOTS)
			break;
		kz_put(d, "queue %u cid %u opcode 0x%02x piece %llu+%llu of %llu due in %d ms\n", q->id, s->cid,
		       s->cmd.opcode, s->pos, s->piece, s->len,
		       (int)jiffies_to_msecs(1) * (int)(long)(s->deadline - jiffies));
	}
}

static void kz_dump_queue(struct kz_queue *q, struct kz_dump *d)
{
	u32 base = KZ_REG_QUEUE(q->id);
	unsigned long flags;

	kz_put(d, "queue %u hw ctrl 0x%x state 0x%x sq_head %u cq_tail %u\n", q->id, kz_rd(q->kz, base + KZ_Q_CTRL),
	       kz_rd(q->kz, base + KZ_Q_STATE), kz_rd(q->kz, base + KZ_Q_SQ_HEAD),
	       kz_rd(q->kz, base + KZ_Q_CQ_TAIL));
	spin_lock_irqsave(&q->lock, flags);
	kz_put(d, "queue %u ctx %u order %u sq_tail %u cq_head %u outstanding %u unreaped %u submitted %llu completed %llu\n",
	       q->id, q->ctx, q->order, q->sq_tail, q->cq_head, q->outstanding, q->ndone, q->stat.submitted,
	       q->stat.completed);
	kz_dump_slots(q, d);
	spin_unlock_irqrestore(&q->lock, flags);
}

static void kz_dump_queues(struct kz_device *kz, struct kz_dump *d)
{
	unsigned int id;

	for (id = 0; id < kz->nqueues; id++) {
		struct kz_queue *q = rcu_dereference_protected(kz->hwq[id], lockdep_is_held(&kz->life));

		if (q)
			kz_dump_queue(q, d);
	}
}

/* Under kz->life, or where the caller says so with the name without _locked, takes it. */
void kz_coredump_locked(struct kz_device *kz, const char *why)
{
	struct kz_dump d = { .text = vmalloc(KZ_DUMP_BYTES) };

	lockdep_assert_held(&kz->life);
	if (!d.text)
		return;
	kz_put(&d, "kz_accel coredump 1\ndevice %s %s\nreason %s\ntime %lld\nstate %u generation %u\n",
	       pci_name(kz->pdev), dev_name(&kz->dev), why, ktime_get_real_seconds(), kz_state(kz), kz->generation);
	kz_dump_regs(kz, &d);
	kz_dump_telemetry(kz, &d);
	kz_dump_queues(kz, &d);
	dev_coredumpv(kz_dma(kz), d.text, d.len, GFP_KERNEL); /* owns the text from here on */
}

void kz_coredump(struct kz_device *kz, const char *why)
{
	mutex_lock(&kz->life);
	kz_coredump_locked(kz, why);
	mutex_unlock(&kz->life);
}
