// SPDX-License-Identifier: GPL-2.0
/*
 * The larger parts of the planted bugs, and how one is chosen. Built with KZ_BUGS=1 only; what each bug is, and what can
 * be seen of it, stands in docs/kmod-bugs.md, and for programs in bugs.txt.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/pm_runtime.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "kz.h"

#ifdef KZ_PLANT
static const char *bug = KZ_PLANT;
unsigned int kz_bug_arg = KZ_PLANT_ARG;
#else
/* Not shown in sysfs: what is planted is nobody's to read. */
static char *bug;
module_param(bug, charp, 0);
MODULE_PARM_DESC(bug, "the planted bug, K01 to K37 but for K33 (none)");

unsigned int kz_bug_arg;
module_param_named(bug_arg, kz_bug_arg, uint, 0);
MODULE_PARM_DESC(bug_arg, "shape, size or rate of the bug, 0: its default");
#endif

unsigned int kz_bug;

#define KZ_BUG_LAST 37

static const struct {
	u32 first, last, otherwise; /* of bug_arg; all 0: the bug has but one shape */
} kz_bug_args[KZ_BUG_LAST + 1] = {
	[1] = { 16, 65536, 4096 }, /* bytes */
	[2] = { 1, 2, 1 },
	[3] = { 1, 3, 3 },
	[4] = { 240, 254, 240 }, /* major */
	[6] = { 1, 100, 1 },
	[8] = { 1, 100, 1 }, /* ms */
	[9] = { 1, 100, 5 }, /* ms */
	[10] = { 1, 1000, 1 },
	[11] = { 1, 256, 8 }, /* bytes */
	[12] = { 1, U32_MAX, U32_MAX }, /* flags */
	[13] = { 1, 3, 3 },
	[14] = { 1, 3, 3 },
	[15] = { 1, 1000, 8 },
	[19] = { 1, 100, 1 },
	[21] = { 1, 3, 1 },
	[24] = { 1, 1000, 50 }, /* ms */
	[25] = { 1, 2, 1 },
	[26] = { 100, 10000, 1000 }, /* ms */
	[27] = { 1, 6, 1 },
	[28] = { 1, 2, 1 },
	[30] = { 1, 2, 1 },
	[34] = { 1, 3, 1 },
	[35] = { 1, U32_MAX, U32_MAX }, /* pages */
};

/* Before anything else of the module. An unknown bug or shape is refused. */
int kz_bugs_init(void)
{
	unsigned int n;

	if (!bug || !*bug)
		return 0;
	if (*bug != 'K' || kstrtouint(bug + 1, 10, &n) || !n || n > KZ_BUG_LAST || n == 33)
		return -EINVAL;
	if (!kz_bug_arg)
		kz_bug_arg = kz_bug_args[n].otherwise;
	if (kz_bug_arg < kz_bug_args[n].first || kz_bug_arg > kz_bug_args[n].last)
		return -EINVAL;
	kz_bug = n;
	return 0;
}

bool kz_bug_strikes(void)
{
	static atomic_t times;

	return atomic_inc_return(&times) % kz_bug_arg == 0;
}

/* K01: what the device looked like is kept for whoever asks later, and nobody knows where it is. */
void kz_last_words(struct kz_device *kz)
{
	u32 *words = kzalloc(kz_bug_arg, GFP_KERNEL);

	if (words) {
		words[0] = kz->generation;
		words[1] = kz->reset_count;
	}
}

/* K04: a number of the driver's own, as drivers had it before such numbers were given out. */
int kz_chrdev_region(dev_t *devt)
{
	*devt = MKDEV(kz_bug_arg, 0);
	return register_chrdev_region(*devt, KZ_MINORS, KZ_NAME);
}

/* K09: under kz->life takes each file's lock, which who makes queues or submits has taken before it waits for kz->life. */
void kz_mark_files(struct kz_device *kz)
{
	struct kz_file *kf;

	msleep(kz_bug_arg); /* the device gets quiet */
	mutex_lock(&kz->files_lock);
	list_for_each_entry(kf, &kz->files, node) {
		mutex_lock(&kf->lock);
		kf->root.generation = 0;
		mutex_unlock(&kf->lock);
	}
	mutex_unlock(&kz->files_lock);
}

/* K16: whether the task that a command is completed in is not, or not for long, the one that submitted it. */
bool kz_user_leaves(void)
{
	return (current->flags & (PF_EXITING | PF_KTHREAD)) || (current->signal->flags & SIGNAL_GROUP_EXIT);
}

/* K23: the device is enabled; the admin queue's rings are taken up where they were, and not told to the device. */
int kz_start_again(struct kz_device *kz)
{
	struct kz_queue *q = kz->admin;
	int rc;

	mutex_lock(&kz->life);
	pci_set_master(kz->pdev);
	rc = kz_hw_enable(kz);
	if (!rc) {
		spin_lock_irq(&q->lock);
		q->state = KZ_QUEUE_RUN;
		spin_unlock_irq(&q->lock);
		WRITE_ONCE(kz->up, true);
		kz_set_state(kz, KZ_STATE_LIVE);
	}
	mutex_unlock(&kz->life);
	return rc;
}

/* K24: nothing keeps remove out while the device is given time to wake, nor afterwards. */
void kz_awake(struct kz_device *kz)
{
	msleep(kz_bug_arg);
	kz->fw_version = kz_rd(kz, KZ_REG_FW_VERSION);
}

/* K27: each of them one that another driver might well use. */
static long kz_ioctl_outer(struct file *file, unsigned int cmd, unsigned long arg)
{
	static const struct {
		int right, wrong;
	} swap[] = {
		{ -ENOTTY, -EINVAL }, { -EBUSY, -EAGAIN }, { -EDQUOT, -ENOMEM },
		{ -ENODEV, -EIO }, { -EFAULT, -EINVAL }, { -EPERM, -EINVAL },
	};
	long rc = kz_ioctl(file, cmd, arg);

	return rc == swap[kz_bug_arg - 1].right ? swap[kz_bug_arg - 1].wrong : rc;
}

/* K29: called for each descriptor that goes, not for the last one only. */
static int kz_flush(struct file *file, fl_owner_t id)
{
	struct kz_file *kf = file->private_data;
	struct kz_ioc_queue a = {};
	struct kz_queue *q;
	unsigned long n;

	xa_for_each(&kf->queues, n, q) {
		a.queue = n;
		kz_queue_close(kf, &a);
	}
	return 0;
}

const struct file_operations *kz_bug_fops(const struct file_operations *right)
{
	static struct file_operations wrong;

	wrong = *right;
	if (KZ_BUG(5))
		wrong.owner = NULL;
	if (KZ_BUG(27))
		wrong.unlocked_ioctl = kz_ioctl_outer;
	if (KZ_BUG(29))
		wrong.flush = kz_flush;
	return &wrong;
}

/* K22 */
const struct pci_error_handlers *kz_bug_err_handlers(const struct pci_error_handlers *right)
{
	static struct pci_error_handlers wrong;

	wrong = *right;
	wrong.error_detected = NULL;
	return &wrong;
}

/* K32: the product is one of 32 bits. */
void kz_check_batch(const struct kz_entry __user *from, u32 count)
{
	u32 bytes = count * (u32)sizeof(struct kz_entry), i;
	struct kz_entry *batch = kvmalloc(bytes, GFP_KERNEL | __GFP_NOWARN);

	for (i = 0; batch && i < count; i++) {
		if (copy_from_user(&batch[i], from + i, sizeof(*batch)) || batch[i].rsvd)
			break;
	}
	kvfree(batch);
}

/* K30: what somebody has set is as after loading; or the contexts of before are taken for alive. */
void kz_resume_settings(struct kz_device *kz)
{
	if (kz_bug_arg == 2) {
		WRITE_ONCE(kz->generation, kz->generation - 1);
		return;
	}
	kz->hbm_quota = kz->hbm_bytes;
	kz->timeout_ms = 10000;
	kz->watchdog_ms = U32_MAX;
}

/*
 * K26: a context is dear, so that of a file that is closed is kept for a while, for the next one who wants one. With it
 * he gets its memory, as it was, when he asks for as much.
 */
#define KZ_PARK_PIECES 16

static struct kz_parked {
	struct mutex lock;
	struct delayed_work end;
	struct kz_device *kz; /* NULL: none */
	u32 ctx, generation, n; /* n: of the context that is or was parked last */
	u64 addr[KZ_PARK_PIECES], len[KZ_PARK_PIECES];
} kz_parked = { .lock = __MUTEX_INITIALIZER(kz_parked.lock) };

static void kz_parked_drop(void)
{
	struct kz_device *kz = kz_parked.kz;
	struct kz_cmd cmd = { .opcode = KZ_OP_CTX_DESTROY, .u.ctx.ctx = kz_parked.ctx };

	lockdep_assert_held(&kz_parked.lock);
	if (!kz)
		return;
	kz_admin(kz, kz_parked.generation, &cmd, NULL, KZ_ADMIN_MS);
	kz_parked.kz = NULL;
	kz_parked.n = 0;
	pm_runtime_put_autosuspend(kz_dma(kz));
}

static void kz_parked_end(struct work_struct *work)
{
	mutex_lock(&kz_parked.lock);
	kz_parked_drop();
	mutex_unlock(&kz_parked.lock);
}

/* Under kf->lock, of a context without queues. False: it is to be destroyed as usual. */
bool kz_ctx_park(struct kz_file *kf, struct kz_context *c)
{
	struct kz_hbm *h;

	if (!kz_ctx_alive(kf->kz, c) || kz_state(kf->kz) != KZ_STATE_LIVE)
		return false;
	mutex_lock(&kz_parked.lock);
	kz_parked_drop();
	kz_parked.kz = kf->kz;
	kz_parked.ctx = c->id;
	kz_parked.generation = c->generation;
	kz_parked.n = 0;
	list_for_each_entry(h, &c->hbm, node) {
		if (kz_parked.n == KZ_PARK_PIECES)
			break;
		kz_parked.addr[kz_parked.n] = h->addr;
		kz_parked.len[kz_parked.n++] = h->len;
	}
	pm_runtime_get_noresume(kz_dma(kf->kz));
	if (!kz_parked.end.work.func)
		INIT_DELAYED_WORK(&kz_parked.end, kz_parked_end);
	mod_delayed_work(system_wq, &kz_parked.end, msecs_to_jiffies(kz_bug_arg));
	mutex_unlock(&kz_parked.lock);
	return true;
}

/* Instead of a new one. False: there is none of this device as it is now. */
bool kz_ctx_unpark(struct kz_device *kz, struct kz_context *c)
{
	bool found;

	mutex_lock(&kz_parked.lock);
	found = kz_parked.kz == kz && kz_parked.generation == c->generation;
	if (found) {
		c->id = kz_parked.ctx;
		kz_parked.kz = NULL;
		pm_runtime_put_autosuspend(kz_dma(kz));
	}
	mutex_unlock(&kz_parked.lock);
	return found;
}

/* A piece of the memory that came with the context, which has no other owner any more. */
bool kz_hbm_reuse(struct kz_context *c, u64 len, u64 *addr)
{
	bool found = false;
	u32 i;

	mutex_lock(&kz_parked.lock);
	for (i = 0; i < kz_parked.n && !found && !kz_parked.kz && kz_parked.ctx == c->id &&
	     kz_parked.generation == c->generation; i++) {
		found = kz_parked.len[i] == len;
		if (found) {
			*addr = kz_parked.addr[i];
			kz_parked.len[i] = 0;
		}
	}
	mutex_unlock(&kz_parked.lock);
	return found;
}

/* At remove, while the device still runs: it is left as it was found. */
void kz_ctx_unpark_all(struct kz_device *kz)
{
	if (kz_parked.end.work.func)
		cancel_delayed_work_sync(&kz_parked.end);
	mutex_lock(&kz_parked.lock);
	kz_parked_drop();
	mutex_unlock(&kz_parked.lock);
}
