// SPDX-License-Identifier: GPL-2.0
/* Contexts: the device's protection domains, each owned by one open file. All under kf->lock. */
#include <linux/capability.h>
#include <linux/pm_runtime.h>
#include <linux/slab.h>

#include "kz.h"

/* NULL with *err; KZ_CTX_ROOT is for CAP_SYS_ADMIN only. A context may be dead, see kz_ctx_alive(). */
struct kz_context *kz_ctx_find(struct kz_file *kf, u32 id, int *err)
{
	struct kz_context *c;

	lockdep_assert_held(&kf->lock);
	if (id == KZ_CTX_ROOT) {
		if (!capable(CAP_SYS_ADMIN)) {
			*err = -EPERM;
			return NULL;
		}
		if (kf->root.generation != READ_ONCE(kf->kz->generation) && !kf->root.queues) {
			kz_hbm_forget(kf, &kf->root);
			kf->root.generation = READ_ONCE(kf->kz->generation);
		}
		return &kf->root;
	}
	c = xa_load(&kf->ctxs, id);
	if (!c)
		*err = -ENOENT;
	return c;
}

bool kz_ctx_alive(struct kz_device *kz, const struct kz_context *c)
{
	return c->generation == READ_ONCE(kz->generation);
}

static int kz_ctx_end(struct kz_file *kf, struct kz_context *c, u32 *status)
{
	struct kz_cmd cmd = { .opcode = KZ_OP_CTX_DESTROY, .u.ctx.ctx = c->id };
	int rc = kz_admin(kf->kz, c->generation, &cmd, NULL, KZ_ADMIN_MS);

	*status = rc > 0 ? rc : 0;
	return rc > 0 ? kz_status_errno(rc) : rc;
}

static void kz_ctx_forget(struct kz_file *kf, struct kz_context *c)
{
	xa_erase(&kf->ctxs, c->id);
	kz_hbm_forget(kf, c);
	pm_runtime_put_autosuspend(kz_dma(kf->kz));
	kfree(c);
}

/* Asks the device for a context. 0 or what went wrong. */
static int kz_ctx_ask(struct kz_device *kz, struct kz_context *c, u32 *status)
{
	struct kz_cmd cmd = { .opcode = KZ_OP_CTX_CREATE };
	u64 made;
	int rc;

	c->generation = READ_ONCE(kz->generation);
	if (KZ_BUG(26) && kz_ctx_unpark(kz, c))
		return 0;
	rc = kz_admin(kz, c->generation, &cmd, &made, KZ_ADMIN_MS);
	if (rc > 0) {
		*status = rc;
		return kz_status_errno(rc);
	}
	if (rc)
		return rc;
	if (made == KZ_CTX_ROOT || made > U32_MAX) {
		dev_err(kz_dma(kz), "device made a context with number %llu\n", made);
		return -EIO;
	}
	c->id = made;
	return 0;
}

/* One that died in a reset, and that its owner has yet to destroy, may still have the number. */
static int kz_ctx_keep(struct kz_file *kf, struct kz_context *c)
{
	struct kz_context *old = xa_load(&kf->ctxs, c->id);

	if (old) {
		if (kz_ctx_alive(kf->kz, old))
			return -EIO; /* the device gave the same one twice */
		if (old->queues)
			return -EBUSY;
		kz_ctx_forget(kf, old);
	}
	return xa_err(xa_store(&kf->ctxs, c->id, c, GFP_KERNEL_ACCOUNT));
}

int kz_ctx_create(struct kz_file *kf, u32 *id, u32 *status)
{
	struct kz_context *c = kzalloc(sizeof(*c), GFP_KERNEL_ACCOUNT);
	u32 ignored;
	int rc;

	if (!c)
		return -ENOMEM;
	INIT_LIST_HEAD(&c->hbm);
	mutex_lock(&kf->lock);
	rc = kz_ctx_ask(kf->kz, c, status);
	if (!rc) {
		rc = kz_ctx_keep(kf, c);
		if (rc)
			kz_ctx_end(kf, c, &ignored);
	}
	if (!rc) {
		pm_runtime_get_noresume(kz_dma(kf->kz)); /* it lives in the device, so the device stays awake */
		*id = c->id;
	}
	mutex_unlock(&kf->lock);
	if (rc)
		kfree(c);
	return rc;
}

int kz_ctx_destroy(struct kz_file *kf, u32 id, u32 *status)
{
	struct kz_context *c;
	int rc = -ENOENT;

	mutex_lock(&kf->lock);
	c = xa_load(&kf->ctxs, id);
	if (c)
		rc = c->queues ? -EBUSY : 0;
	if (!rc) {
		kz_hbm_unmap_all(kf, c);
		rc = kz_ctx_end(kf, c, status);
		if (rc == -ESTALE) /* the reset has already ended it */
			rc = 0;
		if (!rc || rc == -ETIMEDOUT)
			kz_ctx_forget(kf, c);
	}
	mutex_unlock(&kf->lock);
	return rc;
}

/* At the end of the file; `device`: the device is told too. Its queues are gone. */
void kz_ctx_free_all(struct kz_file *kf, bool device)
{
	struct kz_context *c;
	unsigned long id;
	u32 status;

	xa_for_each(&kf->ctxs, id, c) {
		kz_hbm_unmap_all(kf, c);
		if (device && (!KZ_BUG(26) || !kz_ctx_park(kf, c)))
			kz_ctx_end(kf, c, &status);
		kz_ctx_forget(kf, c);
	}
	kz_hbm_free_root(kf, device);
}

/* The lowest id above the given one of all files' contexts; 0: none. kz->life is not taken below kz->files_lock. */
static u32 kz_ctx_next(struct kz_device *kz, u32 after)
{
	struct kz_context *c;
	struct kz_file *kf;
	u32 next = 0;

	mutex_lock(&kz->files_lock);
	list_for_each_entry(kf, &kz->files, node) {
		unsigned long id = (unsigned long)after + 1;

		c = xa_find(&kf->ctxs, &id, U32_MAX, XA_PRESENT);
		if (c && (!next || id < next))
			next = id;
	}
	mutex_unlock(&kz->files_lock);
	return next;
}

/*
 * On the device alone, for a sleep: in D3hot it may keep its state (No_Soft_Reset), and nobody would know of what is left
 * there. The files keep theirs, dead of the generation.
 */
void kz_ctx_end_all(struct kz_device *kz)
{
	u32 id;

	for (id = kz_ctx_next(kz, 0); id; id = kz_ctx_next(kz, id)) {
		struct kz_cmd cmd = { .opcode = KZ_OP_CTX_DESTROY, .u.ctx.ctx = id };

		if (kz_admin(kz, READ_ONCE(kz->generation), &cmd, NULL, KZ_ADMIN_MS) < 0)
			return; /* the device does not answer; what then helps is a reset */
	}
}
