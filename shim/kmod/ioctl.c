// SPDX-License-Identifier: GPL-2.0
/* ioctl: the table of calls, the way of arguments in and out, and the calls that are not about queues. */
#include <linux/capability.h>
#include <linux/pm_runtime.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "kz.h"

union kz_args {
	struct {
		u32 argsz;
		u32 flags;
	};
	struct kz_info info;
	struct kz_ioc_ctx ctx;
	struct kz_ioc_queue queue;
	struct kz_ioc_queue_stat stat;
	struct kz_ioc_buf buf;
	struct kz_ioc_hbm hbm;
	struct kz_ioc_submit submit;
	struct kz_ioc_reap reap;
	struct kz_ioc_reset reset;
	struct kz_ioc_fw fw;
	struct kz_ioc_ecc ecc;
	struct kz_ioc_telemetry telemetry;
	struct kz_ioc_reg reg;
};

/* What a call needs of the device. KZ_SELF: it enters by itself. */
enum kz_need { KZ_SELF, KZ_THERE, KZ_LIVE };

static u64 kz_features(struct kz_device *kz)
{
	u64 f = KZ_DF_URING | KZ_DF_RESET_FUNCTION | KZ_DF_RESET_FIRMWARE;

	if (KZ_URING_CANCELS)
		f |= KZ_DF_URING_CANCEL;
	if (pci_resource_len(kz->pdev, KZ_BAR_HBM))
		f |= KZ_DF_MMAP;
	if (kz->feat & KZ_FEAT_FW_UPDATE)
		f |= KZ_DF_FW_UPDATE;
	if (kz->feat & KZ_FEAT_ECC_INJECT)
		f |= KZ_DF_ECC_INJECT;
	if (kz_can_reset_device(kz))
		f |= KZ_DF_RESET_DEVICE;
	if (kz->clears)
		f |= KZ_DF_CLEARS;
	return f;
}

static int kz_ioc_info(struct kz_file *kf, union kz_args *a)
{
	struct kz_device *kz = kf->kz;
	struct kz_info *i = &a->info;
	u32 argsz = i->argsz;

	WRITE_ONCE(kf->seen_generation, READ_ONCE(kz->generation));
	*i = (struct kz_info){
		.argsz = argsz,
		.driver_abi = KZ_DRIVER_ABI,
		.device_abi = kz->abi,
		.features = kz_features(kz),
		.cap = kz->cap,
		.feat = kz->feat,
		.hbm_bytes = kz->hbm_bytes,
		.hbm_quota = READ_ONCE(kz->hbm_quota),
		.hbm_used = atomic64_read(&kf->hbm_used),
		.pinned = atomic64_read(&kf->pinned),
		.max_xfer = kz->max_xfer,
		.serial = kz->serial,
		.hbm_page = kz->hbm_page,
		.hbm_geom = kz->hbm_geom,
		.max_dim = kz->max_dim,
		.dtypes = kz->dtypes,
		.fw_version = kz->fw_version,
		.reset_count = kz->reset_count,
		.queues_free = kz_queues_free(kz),
		.max_order = min_t(u32, KZ_CAP_MAX_ORDER(kz->cap), KZ_MAX_ORDER),
		.vectors = kz->nvectors,
		.state = kz_state(kz),
		.generation = kf->seen_generation,
		.pci_domain = pci_domain_nr(kz->pdev->bus),
		.pci_bus = kz->pdev->bus->number,
		.pci_devfn = kz->pdev->devfn,
	};
	memcpy(i->numeric, kz->numeric, sizeof(i->numeric));
	return 0;
}

static int kz_ioc_ctx_create(struct kz_file *kf, union kz_args *a)
{
	if (a->ctx.ctx || a->ctx.status)
		return -EINVAL;
	return kz_ctx_create(kf, &a->ctx.ctx, &a->ctx.status);
}

static int kz_ioc_ctx_destroy(struct kz_file *kf, union kz_args *a)
{
	if (a->ctx.status)
		return -EINVAL;
	return kz_ctx_destroy(kf, a->ctx.ctx, &a->ctx.status);
}

static int kz_ioc_buf_register(struct kz_file *kf, union kz_args *a)
{
	if (a->buf.handle || a->buf.segments || a->buf.base)
		return -EINVAL;
	return kz_buf_register(kf, &a->buf);
}

static int kz_ioc_buf_unregister(struct kz_file *kf, union kz_args *a)
{
	if (a->buf.flags || a->buf.addr || a->buf.len || a->buf.segments || a->buf.base)
		return -EINVAL;
	return kz_buf_unregister(kf, a->buf.handle);
}

static int kz_ioc_hbm_alloc(struct kz_file *kf, union kz_args *a)
{
	if (a->hbm.addr || a->hbm.phys || a->hbm.map || a->hbm.status)
		return -EINVAL;
	return kz_hbm_alloc(kf, &a->hbm);
}

static int kz_ioc_hbm_free(struct kz_file *kf, union kz_args *a)
{
	if (a->hbm.len || a->hbm.phys || a->hbm.map || a->hbm.status)
		return -EINVAL;
	return kz_hbm_free(kf, &a->hbm);
}

static int kz_own_query(struct kz_file *kf, u32 ctx, u64 addr, u64 *phys, u32 *status)
{
	struct kz_context *c;
	int rc = 0;

	mutex_lock(&kf->lock);
	c = kz_ctx_find(kf, ctx, &rc);
	if (c)
		rc = kz_hbm_query(kf->kz, c, addr, phys, status);
	mutex_unlock(&kf->lock);
	return rc;
}

static int kz_ioc_hbm_query(struct kz_file *kf, union kz_args *a)
{
	if (a->hbm.len || a->hbm.phys || a->hbm.map || a->hbm.status)
		return -EINVAL;
	return kz_own_query(kf, a->hbm.ctx, a->hbm.addr, &a->hbm.phys, &a->hbm.status);
}

static int kz_ioc_reset(struct kz_file *kf, union kz_args *a)
{
	struct kz_device *kz = kf->kz;
	int rc;

	if (a->reset.rsvd || a->reset.kind < KZ_RESET_KIND_FUNCTION || a->reset.kind > KZ_RESET_KIND_FIRMWARE)
		return -EINVAL;
	pm_runtime_get_sync(kz_dma(kz)); /* a device that failed to wake is just what a reset is for */
	rc = kz_reset_now(kz, (enum kz_level)a->reset.kind, "asked for by a user", true);
	pm_runtime_put_autosuspend(kz_dma(kz));
	return rc;
}

static int kz_ioc_fw(struct kz_file *kf, union kz_args *a)
{
	int rc;

	if (a->fw.status || a->fw.rsvd || a->fw.len != (size_t)a->fw.len)
		return -EINVAL;
	rc = kz_fw_update(kf->kz, u64_to_user_ptr(a->fw.addr), NULL, a->fw.len, &a->fw.status);
	if (!rc && (a->fw.flags & KZ_FW_ACTIVATE))
		rc = kz_reset_now(kf->kz, KZ_LEVEL_FIRMWARE, "new firmware", true);
	return rc;
}

static int kz_ioc_ecc(struct kz_file *kf, union kz_args *a)
{
	struct kz_cmd cmd = { .opcode = KZ_OP_ECC_INJECT, .u.ecc.kind = a->ecc.kind };
	u32 generation = READ_ONCE(kf->kz->generation);
	u64 phys;
	int rc;

	if (a->ecc.status || a->ecc.rsvd || a->ecc.kind > KZ_ECC_UE || (a->ecc.addr & 7))
		return -EINVAL;
	rc = kz_own_query(kf, a->ecc.ctx, a->ecc.addr, &phys, &a->ecc.status);
	if (rc)
		return rc;
	cmd.u.ecc.addr = phys;
	rc = kz_admin(kf->kz, generation, &cmd, NULL, KZ_ADMIN_MS);
	a->ecc.status = rc > 0 ? rc : 0;
	return rc > 0 ? kz_status_errno(rc) : rc;
}

static int kz_ioc_telemetry(struct kz_file *kf, union kz_args *a)
{
	return kz_hw_telemetry(kf->kz, &a->telemetry.t);
}

static int kz_ioc_reg_read(struct kz_file *kf, union kz_args *a)
{
	if (a->reg.value)
		return -EINVAL;
	if (!kz_reg_readable(a->reg.offset))
		return -EACCES;
	a->reg.value = kz_rd(kf->kz, a->reg.offset);
	return 0;
}

static int kz_ioc_reg_write(struct kz_file *kf, union kz_args *a)
{
	if (!kz_reg_writable(a->reg.offset))
		return -EACCES;
	kz_wr(kf->kz, a->reg.offset, a->reg.value);
	if (a->reg.offset == KZ_REG_WATCHDOG_MS)
		WRITE_ONCE(kf->kz->watchdog_ms, a->reg.value); /* survives resets */
	return 0;
}

static int kz_ioc_queue_create(struct kz_file *kf, union kz_args *a)
{
	return kz_queue_open(kf, &a->queue);
}

static int kz_ioc_queue_destroy(struct kz_file *kf, union kz_args *a)
{
	return kz_queue_close(kf, &a->queue);
}

static int kz_ioc_queue_reset(struct kz_file *kf, union kz_args *a)
{
	return kz_queue_renew_call(kf, &a->queue);
}

static int kz_ioc_queue_stat(struct kz_file *kf, union kz_args *a)
{
	return kz_queue_stat(kf, &a->stat);
}

static int kz_ioc_submit(struct kz_file *kf, union kz_args *a)
{
	return kz_submit(kf, &a->submit);
}

static int kz_ioc_reap(struct kz_file *kf, union kz_args *a)
{
	return kz_reap(kf, &a->reap);
}

#define KZ_CALL(nr, type, known, what, cap, fn) \
	[_IOC_NR(nr)] = { nr, sizeof(struct type), known, what, cap, fn }

static const struct kz_call {
	unsigned int cmd;
	unsigned int size;
	u32 flags; /* known ones */
	enum kz_need need;
	bool admin; /* CAP_SYS_ADMIN */
	int (*fn)(struct kz_file *kf, union kz_args *a);
} kz_calls[] = {
	KZ_CALL(KZ_IOC_INFO, kz_info, 0, KZ_THERE, false, kz_ioc_info),
	KZ_CALL(KZ_IOC_CTX_CREATE, kz_ioc_ctx, 0, KZ_LIVE, false, kz_ioc_ctx_create),
	KZ_CALL(KZ_IOC_CTX_DESTROY, kz_ioc_ctx, 0, KZ_THERE, false, kz_ioc_ctx_destroy),
	KZ_CALL(KZ_IOC_QUEUE_CREATE, kz_ioc_queue, KZ_QUEUE_POLLED, KZ_LIVE, false, kz_ioc_queue_create),
	KZ_CALL(KZ_IOC_QUEUE_DESTROY, kz_ioc_queue, 0, KZ_THERE, false, kz_ioc_queue_destroy),
	KZ_CALL(KZ_IOC_QUEUE_RESET, kz_ioc_queue, 0, KZ_LIVE, false, kz_ioc_queue_reset),
	KZ_CALL(KZ_IOC_QUEUE_STAT, kz_ioc_queue_stat, 0, KZ_THERE, false, kz_ioc_queue_stat),
	KZ_CALL(KZ_IOC_BUF_REGISTER, kz_ioc_buf, KZ_BUF_DEVICE_READS | KZ_BUF_DEVICE_WRITES, KZ_THERE, false,
		kz_ioc_buf_register),
	KZ_CALL(KZ_IOC_BUF_UNREGISTER, kz_ioc_buf, 0, KZ_THERE, false, kz_ioc_buf_unregister),
	KZ_CALL(KZ_IOC_HBM_ALLOC, kz_ioc_hbm, 0, KZ_LIVE, false, kz_ioc_hbm_alloc),
	KZ_CALL(KZ_IOC_HBM_FREE, kz_ioc_hbm, 0, KZ_LIVE, false, kz_ioc_hbm_free),
	KZ_CALL(KZ_IOC_HBM_QUERY, kz_ioc_hbm, 0, KZ_LIVE, true, kz_ioc_hbm_query),
	KZ_CALL(KZ_IOC_SUBMIT, kz_ioc_submit, 0, KZ_THERE, false, kz_ioc_submit),
	KZ_CALL(KZ_IOC_REAP, kz_ioc_reap, 0, KZ_SELF, false, kz_ioc_reap),
	KZ_CALL(KZ_IOC_RESET, kz_ioc_reset, 0, KZ_THERE, true, kz_ioc_reset),
	KZ_CALL(KZ_IOC_FW_UPDATE, kz_ioc_fw, KZ_FW_ACTIVATE, KZ_LIVE, true, kz_ioc_fw),
	KZ_CALL(KZ_IOC_ECC_INJECT, kz_ioc_ecc, 0, KZ_LIVE, true, kz_ioc_ecc),
	KZ_CALL(KZ_IOC_TELEMETRY, kz_ioc_telemetry, 0, KZ_LIVE, false, kz_ioc_telemetry),
	KZ_CALL(KZ_IOC_REG_READ, kz_ioc_reg, 0, KZ_LIVE, false, kz_ioc_reg_read),
	KZ_CALL(KZ_IOC_REG_WRITE, kz_ioc_reg, 0, KZ_LIVE, true, kz_ioc_reg_write),
};

static int kz_args_in(union kz_args *a, const struct kz_call *call, const void __user *user)
{
	u32 argsz, known;
	int rc;

	if (get_user(argsz, (const u32 __user *)user))
		return -EFAULT;
	if (argsz < call->size)
		return -EINVAL;
	if (argsz > PAGE_SIZE)
		return -E2BIG;
	rc = copy_struct_from_user(a, call->size, user, argsz);
	if (rc)
		return rc;
	a->argsz = call->size;
	known = call->flags | (call->need == KZ_LIVE ? KZ_CALL_NOWAIT : 0);
	if (KZ_BUG(12))
		known |= kz_bug_arg;
	return a->flags & ~known ? -EINVAL : 0;
}

static int kz_call(struct kz_file *kf, const struct kz_call *call, union kz_args *a)
{
	u32 nowait = a->flags & KZ_CALL_NOWAIT;
	int idx, rc;

	switch (call->need) {
	case KZ_LIVE:
		rc = kz_begin_live(kf->kz, &idx, !nowait);
		if (rc)
			return rc;
		a->flags &= ~KZ_CALL_NOWAIT;
		rc = call->fn(kf, a);
		a->flags |= nowait;
		kz_end_live(kf->kz, idx);
		return rc;
	case KZ_THERE:
		rc = kz_begin(kf->kz, &idx);
		if (rc)
			return rc;
		rc = call->fn(kf, a);
		kz_end(kf->kz, idx);
		return rc;
	default:
		return call->fn(kf, a);
	}
}

long kz_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct kz_file *kf = file->private_data;
	void __user *user = (void __user *)arg;
	const struct kz_call *call;
	union kz_args a;
	int rc;

	if (_IOC_NR(cmd) >= ARRAY_SIZE(kz_calls) || kz_calls[_IOC_NR(cmd)].cmd != cmd)
		return -ENOTTY;
	if (kz_state(kf->kz) == KZ_STATE_GONE)
		return -ENODEV;
	call = &kz_calls[_IOC_NR(cmd)];
	if (call->admin && !KZ_BUG_HAS(13, 2) && !capable(CAP_SYS_ADMIN))
		return -EPERM;
	memset(&a, 0, sizeof(a));
	rc = kz_args_in(&a, call, user);
	if (rc)
		return rc;
	rc = kz_call(kf, call, &a);
	/* Also after an error: the device's status is in it. */
	if (copy_to_user(user, &a, KZ_BUG(11) ? min_t(size_t, sizeof(a), call->size + kz_bug_arg) : call->size))
		return -EFAULT;
	return rc;
}
