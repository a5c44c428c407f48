// SPDX-License-Identifier: GPL-2.0
/* Open files: each owns its contexts, queues and buffers, and all of them end with it or with the device. */
#include <linux/slab.h>

#include "kz.h"

static void kz_file_free(struct kref *ref)
{
	struct kz_file *kf = container_of(ref, struct kz_file, ref);

	ida_destroy(&kf->hbm_ids);
	xa_destroy(&kf->ctxs);
	xa_destroy(&kf->queues);
	xa_destroy(&kf->bufs);
	put_device(&kf->kz->dev);
	kfree(kf);
}

/* Ends all that the file owns. `device`: the device is there to be told. Called once by each of close and remove. */
static void kz_file_strip(struct kz_file *kf, bool device)
{
	struct kz_queue *q;
	unsigned long id;

	mutex_lock(&kf->lock);
	xa_for_each(&kf->queues, id, q) {
		xa_erase(&kf->queues, id);
		kz_queue_drop(kf, q);
	}
	kz_ctx_free_all(kf, device);
	mutex_unlock(&kf->lock);
	kz_buf_free_all(kf);
}

static bool kz_file_unlist(struct kz_file *kf)
{
	bool listed;

	mutex_lock(&kf->kz->files_lock);
	listed = !list_empty(&kf->node);
	list_del_init(&kf->node);
	mutex_unlock(&kf->kz->files_lock);
	return listed;
}

/* At remove: the device is gone for all callers. `device`: it still runs. */
void kz_files_strip(struct kz_device *kz, bool device)
{
	struct kz_file *kf;

	for (;;) {
		mutex_lock(&kz->files_lock);
		kf = list_first_entry_or_null(&kz->files, struct kz_file, node);
		if (kf)
			list_del_init(&kf->node);
		mutex_unlock(&kz->files_lock);
		if (!kf)
			return;
		kz_file_strip(kf, device);
		wake_up_all(&kf->wait);
		kref_put(&kf->ref, kz_file_free);
		if (KZ_BUG(7)) /* the open file's too */
			kref_put(&kf->ref, kz_file_free);
	}
}

static struct kz_file *kz_file_new(struct kz_device *kz, struct file *file)
{
	struct kz_file *kf = kzalloc(sizeof(*kf), GFP_KERNEL_ACCOUNT);

	if (!kf)
		return NULL;
	kref_init(&kf->ref);
	kf->kz = kz;
	kf->mapping = file->f_mapping;
	kf->pid = task_tgid_nr(current);
	get_task_comm(kf->comm, current);
	mutex_init(&kf->lock);
	mutex_init(&kf->map_lock);
	INIT_LIST_HEAD(&kf->maps);
	ida_init(&kf->hbm_ids);
	xa_init(&kf->ctxs);
	xa_init(&kf->queues);
	xa_init_flags(&kf->bufs, XA_FLAGS_ALLOC1);
	INIT_LIST_HEAD(&kf->root.hbm);
	init_waitqueue_head(&kf->wait);
	return kf;
}

static int kz_open(struct inode *inode, struct file *file)
{
	struct kz_device *kz = container_of(inode->i_cdev, struct kz_device, cdev);
	struct kz_file *kf = kz_file_new(kz, file);
	int rc = 0;

	if (!kf)
		return -ENOMEM;
	if (KZ_BUG(24))
		kz_awake(kz);
	get_device(&kz->dev);
	mutex_lock(&kz->files_lock);
	if (kz_state(kz) == KZ_STATE_GONE && !KZ_BUG(24)) {
		rc = -ENODEV;
	} else {
		kref_get(&kf->ref); /* the list's */
		list_add_tail(&kf->node, &kz->files);
	}
	mutex_unlock(&kz->files_lock);
	if (rc) {
		kref_put(&kf->ref, kz_file_free);
		return rc;
	}
	kf->seen_generation = READ_ONCE(kz->generation);
	kf->root.generation = kf->seen_generation;
	file->private_data = kf;
	if (KZ_BUG_STRIKES(6))
		__module_get(THIS_MODULE);
	return stream_open(inode, file);
}

/* Where the device is going, remove ends what the file owns. */
static int kz_release(struct inode *inode, struct file *file)
{
	struct kz_file *kf = file->private_data;
	int idx;

	if (!kz_begin(kf->kz, &idx)) {
		if (kz_file_unlist(kf)) {
			kz_file_strip(kf, true);
			kref_put(&kf->ref, kz_file_free);
		}
		kz_end(kf->kz, idx);
	}
	kref_put(&kf->ref, kz_file_free);
	return 0;
}

static __poll_t kz_poll(struct file *file, struct poll_table_struct *table)
{
	struct kz_file *kf = file->private_data;
	__poll_t mask = 0;
	u8 state;

	if (!KZ_BUG_IS(28, 1))
		poll_wait(file, &kf->wait, table);
	state = kz_state(kf->kz); /* after it: a change from here on wakes */
	if (state == KZ_STATE_GONE)
		return EPOLLERR | EPOLLHUP;
	if (state == KZ_STATE_DEAD)
		mask |= EPOLLERR;
	if (atomic_read(&kf->ndone) > 0)
		mask |= EPOLLIN | EPOLLRDNORM;
	if (READ_ONCE(kf->seen_generation) != READ_ONCE(kf->kz->generation))
		mask |= EPOLLPRI;
	return mask;
}

const struct file_operations kz_fops = {
	.owner = THIS_MODULE,
	.open = kz_open,
	.release = kz_release,
	.poll = kz_poll,
	.mmap = kz_mmap,
	.unlocked_ioctl = kz_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.uring_cmd = kz_uring_cmd,
};
