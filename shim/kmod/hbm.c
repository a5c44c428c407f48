// SPDX-License-Identifier: GPL-2.0
/*
 * HBM: the device's firmware allocates, the driver keeps the books for each file (quota, what to free, what may be
 * mapped) and clears pages between owners where the device does not. All under kf->lock.
 */
#include <linux/pm_runtime.h>
#include <linux/slab.h>

#include "kz.h"

static struct kz_hbm *kz_hbm_in(struct kz_context *c, u32 id)
{
	struct kz_hbm *h;

	list_for_each_entry(h, &c->hbm, node) {
		if (h->id == id)
			return h;
	}
	return NULL;
}

/* The file's allocation with that number, and its context. */
struct kz_hbm *kz_hbm_by_id(struct kz_file *kf, u32 id, struct kz_context **ctx)
{
	struct kz_hbm *h = kz_hbm_in(&kf->root, id);
	struct kz_context *c;
	unsigned long n;

	*ctx = &kf->root;
	if (h)
		return h;
	xa_for_each(&kf->ctxs, n, c) {
		h = kz_hbm_in(c, id);
		if (h) {
			*ctx = c;
			return h;
		}
	}
	return NULL;
}

static struct kz_hbm *kz_hbm_at(struct kz_context *c, u64 addr)
{
	struct kz_hbm *h;

	list_for_each_entry(h, &c->hbm, node) {
		if (h->addr == addr)
			return h;
	}
	return NULL;
}

static struct kz_hbm *kz_hbm_new(struct kz_file *kf, u64 len)
{
	struct kz_hbm *h = kzalloc(sizeof(*h), GFP_KERNEL_ACCOUNT);
	int id;

	if (!h)
		return ERR_PTR(-ENOMEM);
	id = ida_alloc_range(&kf->hbm_ids, 1, KZ_MAX_HBM, GFP_KERNEL);
	if (id < 0) {
		kfree(h);
		return ERR_PTR(id);
	}
	h->id = id;
	h->len = len;
	return h;
}

static void kz_hbm_delete(struct kz_file *kf, struct kz_hbm *h)
{
	ida_free(&kf->hbm_ids, h->id);
	kvfree(h->phys);
	kfree(h);
}

static void kz_hbm_drop(struct kz_file *kf, struct kz_hbm *h)
{
	list_del(&h->node);
	atomic64_sub(h->len, &kf->hbm_used);
	pm_runtime_put_autosuspend(kz_dma(kf->kz));
	kz_hbm_delete(kf, h);
}

/* The books only: the device has let go of it. */
void kz_hbm_forget(struct kz_file *kf, struct kz_context *c)
{
	struct kz_hbm *h, *next;

	list_for_each_entry_safe(h, next, &c->hbm, node) {
		kz_unmap_hbm(kf, h);
		kz_hbm_drop(kf, h);
	}
}

void kz_hbm_unmap_all(struct kz_file *kf, struct kz_context *c)
{
	struct kz_hbm *h;

	list_for_each_entry(h, &c->hbm, node)
		kz_unmap_hbm(kf, h);
}

int kz_hbm_query(struct kz_device *kz, const struct kz_context *c, u64 addr, u64 *phys, u32 *status)
{
	struct kz_cmd cmd = { .opcode = KZ_OP_HBM_QUERY, .u.alloc = { .addr = addr, .ctx = c->id } };
	int rc;

	*status = 0;
	if (c->id == KZ_CTX_ROOT) {
		*phys = addr;
		return addr < kz->hbm_bytes ? 0 : -EFAULT;
	}
	rc = kz_admin(kz, c->generation, &cmd, phys, KZ_ADMIN_MS);
	*status = rc > 0 ? rc : 0;
	if (!rc && *phys >= kz->hbm_bytes) {
		dev_err(kz_dma(kz), "device names physical HBM 0x%llx beyond its end\n", *phys);
		rc = -EIO;
	}
	return rc > 0 ? kz_status_errno(rc) : rc;
}

/* The physical page behind each page of the allocation, asked once. */
int kz_hbm_pages(struct kz_file *kf, struct kz_context *c, struct kz_hbm *h)
{
	u32 n = h->len / kf->kz->hbm_page, i, status;
	int rc = 0;
	u64 *phys;

	if (h->phys)
		return 0;
	phys = kvcalloc(n, sizeof(*phys), GFP_KERNEL_ACCOUNT);
	if (!phys)
		return -ENOMEM;
	for (i = 0; i < n && !rc; i++)
		rc = kz_hbm_query(kf->kz, c, h->addr + (u64)i * kf->kz->hbm_page, &phys[i], &status);
	if (rc) {
		kvfree(phys);
		return rc;
	}
	h->phys = phys;
	return 0;
}

/* Zeros over the allocation, in runs that are contiguous in physical HBM. */
static int kz_hbm_clear(struct kz_file *kf, struct kz_context *c, struct kz_hbm *h)
{
	struct kz_device *kz = kf->kz;
	u64 page = kz->hbm_page;
	u32 n = h->len / page, i, run;
	int rc = kz_hbm_pages(kf, c, h);

	for (i = 0; i < n && !rc; i += run) {
		struct kz_cmd cmd = { .opcode = KZ_OP_FILL };

		run = 1;
		while (i + run < n && h->phys[i + run] == h->phys[i] + run * page && (run + 1) * page <= kz->max_xfer)
			run++;
		cmd.u.fill.dst = h->phys[i];
		cmd.u.fill.len = run * page;
		cmd.u.fill.dst_space = KZ_SP_HBM;
		rc = kz_admin(kz, c->generation, &cmd, NULL, KZ_FW_MS);
		if (rc > 0)
			rc = kz_status_errno(rc);
	}
	return rc;
}

static int kz_hbm_give_back(struct kz_device *kz, const struct kz_context *c, u64 addr, u32 *status)
{
	struct kz_cmd cmd = { .opcode = KZ_OP_HBM_FREE, .u.alloc = { .addr = addr, .ctx = c->id } };
	int rc = kz_admin(kz, c->generation, &cmd, NULL, KZ_ADMIN_MS);

	*status = rc > 0 ? rc : 0;
	return rc > 0 ? kz_status_errno(rc) : rc;
}

/* What the quota has left is taken before the device is asked, so that two threads cannot both have it. */
static int kz_hbm_charge(struct kz_file *kf, u64 len)
{
	u64 used = atomic64_add_return(len, &kf->hbm_used);

	if (used <= READ_ONCE(kf->kz->hbm_quota))
		return 0;
	atomic64_sub(len, &kf->hbm_used);
	return -EDQUOT;
}

static int kz_hbm_take(struct kz_file *kf, struct kz_context *c, struct kz_ioc_hbm *a)
{
	struct kz_cmd cmd = { .opcode = KZ_OP_HBM_ALLOC, .u.alloc = { .len = a->len, .ctx = c->id } };
	struct kz_device *kz = kf->kz;
	struct kz_hbm *h = kz_hbm_new(kf, a->len);
	u32 ignored;
	int rc;

	if (IS_ERR(h))
		return PTR_ERR(h);
	if (KZ_BUG(26) && kz_hbm_reuse(c, a->len, &h->addr))
		rc = 0;
	else
		rc = kz_admin(kz, c->generation, &cmd, &h->addr, KZ_ADMIN_MS);
	if (rc) {
		a->status = rc > 0 ? rc : 0;
		kz_hbm_delete(kf, h);
		return rc > 0 ? kz_status_errno(rc) : rc;
	}
	rc = kz->clears ? kz_hbm_clear(kf, c, h) : 0;
	if (rc) { /* never hand out what another owner may have left */
		kz_hbm_give_back(kz, c, h->addr, &ignored);
		kz_hbm_delete(kf, h);
		return rc;
	}
	pm_runtime_get_noresume(kz_dma(kz)); /* its contents need the power */
	list_add_tail(&h->node, &c->hbm);
	a->addr = h->addr;
	a->map = (u64)h->id << KZ_MMAP_SHIFT;
	return 0;
}

int kz_hbm_alloc(struct kz_file *kf, struct kz_ioc_hbm *a)
{
	u64 page = kf->kz->hbm_page;
	struct kz_context *c;
	int rc = 0;

	if (!a->len)
		return -EINVAL;
	if (a->len > kf->kz->hbm_bytes) {
		a->status = KZ_ST_NO_MEMORY;
		return -ENOMEM;
	}
	a->len = round_up(a->len, page);
	mutex_lock(&kf->lock);
	c = kz_ctx_find(kf, a->ctx, &rc);
	if (c)
		rc = kz_ctx_alive(kf->kz, c) ? kz_hbm_charge(kf, a->len) : -ESTALE;
	if (!rc) {
		rc = kz_hbm_take(kf, c, a);
		if (rc)
			atomic64_sub(a->len, &kf->hbm_used);
	}
	mutex_unlock(&kf->lock);
	return rc;
}

/* The device judges an address that is in no book of ours: it knows the context. */
int kz_hbm_free(struct kz_file *kf, struct kz_ioc_hbm *a)
{
	struct kz_context *c;
	struct kz_hbm *h;
	int rc = 0;

	mutex_lock(&kf->lock);
	c = kz_ctx_find(kf, a->ctx, &rc);
	if (!c)
		goto out;
	h = kz_hbm_at(c, a->addr);
	if (h)
		kz_unmap_hbm(kf, h);
	if (!h && c->id == KZ_CTX_ROOT) { /* somebody else's memory, maybe: context 0 may free anything */
		a->status = KZ_ST_HBM_FAULT;
		rc = -EFAULT;
		goto out;
	}
	rc = kz_ctx_alive(kf->kz, c) ? kz_hbm_give_back(kf->kz, c, a->addr, &a->status) : -ESTALE;
	if (h && (!rc || rc == -ESTALE))
		kz_hbm_drop(kf, h);
out:
	mutex_unlock(&kf->lock);
	return rc;
}

/* What a privileged user took in context 0 and did not free. */
void kz_hbm_free_root(struct kz_file *kf, bool device)
{
	struct kz_hbm *h;
	u32 status;

	if (device) {
		list_for_each_entry(h, &kf->root.hbm, node) {
			kz_unmap_hbm(kf, h);
			kz_hbm_give_back(kf->kz, &kf->root, h->addr, &status);
		}
	}
	kz_hbm_forget(kf, &kf->root);
}
