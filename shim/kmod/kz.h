/* SPDX-License-Identifier: GPL-2.0 */
/*
 * kz_accel: what the parts of the driver share.
 *
 * Locks, outermost first:
 *   kz->reset_lock > PCI device lock (only tried) > mmap_lock > kf->lock > kz->life (start, stop, queues of the device)
 *   > kz->files_lock > kf->map_lock; kz->life > kz->admin_lock (one admin command at a time) > q->lock (spin).
 * kz->srcu is a read section around every call from user space; remove waits for it, so nothing in it may wait for
 * long: REAP waits outside. Pages of the caller are faulted in inside it: memory that a stalled user-space server (FUSE,
 * userfaultfd) backs holds remove up until its user is killed.
 */
#ifndef KZ_H
#define KZ_H

#include <linux/cdev.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/dmapool.h>
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/poll.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/srcu.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "bugs.h"
#include "compat.h"
#include "../uapi/kz_ioctl.h"
#include "../uapi/kz_regs.h"

#define KZ_NAME "kz_accel"
#define KZ_NODE "kz"
#define KZ_MINORS 64
#define KZ_MAX_QUEUES 128
#define KZ_ADMIN_QUEUE 0
#define KZ_ADMIN_ORDER 4
#define KZ_MAX_ORDER 10 /* of a user queue: bounds the memory a user can make the kernel take */
#define KZ_ADMIN_MS 5000
#define KZ_FW_MS 30000
#define KZ_QRESET_MS 1000
#define KZ_LOOK_MS 250 /* how often a queue with commands in it is looked at without an interrupt */
#define KZ_GRACE_MS 1000 /* how late an interrupt may be */
#define KZ_OWED_MS 500 /* how much later still: then it is lost */
#define KZ_MAX_BUFS 4096 /* of a file */
#define KZ_MAX_HBM (1u << 22) /* allocations of a file: what an mmap offset can name */
#define KZ_SG_PAGE 4096 /* KZ_SG_MAX x struct kz_sge */
#define KZ_MIN_BOUNCE 4096
#define KZ_TIMEOUT_MIN_MS 10
#define KZ_TIMEOUT_MAX_MS 3600000

/* Reset levels, mildest first. */
enum kz_level { KZ_LEVEL_QUEUE, KZ_LEVEL_FUNCTION, KZ_LEVEL_DEVICE, KZ_LEVEL_FIRMWARE };

/* Who looks at a completion ring. */
enum kz_poll { KZ_POLL_IRQ, KZ_POLL_LOOK, KZ_POLL_LATE };

struct kz_file;
struct kz_queue;

/* One piece of a registered buffer as the device sees it. */
struct kz_seg {
	u64 off; /* in the buffer */
	u64 len;
	dma_addr_t addr;
};

struct kz_buf {
	atomic_t users;	 /* commands in flight; < 0: going away */
	u32 handle;
	u32 flags;	 /* KZ_BUF_* */
	u64 len;
	u32 first;	 /* offset of the buffer in its first page */
	unsigned long npages;
	struct page **pages;
	struct sg_table sgt;
	enum dma_data_direction dir;
	struct kz_seg *seg;
	u32 nseg;
	struct mm_struct *mm; /* charged for npages */
	struct rcu_head rcu;
};

/* A place in a buffer, or nothing (buf NULL). */
struct kz_place {
	struct kz_buf *buf;
	u64 off;
};

enum kz_slot_state { KZ_SLOT_FREE, KZ_SLOT_SETUP, KZ_SLOT_PENDING, KZ_SLOT_ISSUED, KZ_SLOT_DONE };
enum kz_slot_kind { KZ_SLOT_IOCTL, KZ_SLOT_URING, KZ_SLOT_ADMIN, KZ_SLOT_ORPHAN };

/* How the command is cut where one piece cannot carry it. */
enum kz_split { KZ_SPLIT_NONE, KZ_SPLIT_COPY, KZ_SPLIT_FILL, KZ_SPLIT_CRC };

/* A command id of a queue and all that belongs to the command that has it now. */
struct kz_slot {
	struct list_head node; /* of the queue's list for its state */
	struct kz_queue *q;
	u16 cid;
	u16 user_cid;
	u16 status;
	u8 state; /* enum kz_slot_state, under q->lock */
	u8 kind;  /* enum kz_slot_kind, under q->lock */
	u8 split;
	u8 flags; /* KZ_CMD_* of the user, without the phase */
	bool cqe32;
	bool bounced; /* the march's log goes through `bounce` */
	u64 user_data;
	u64 result;
	u64 done_ns;
	unsigned long deadline; /* jiffies */
	u32 timeout_ms;
	struct io_uring_cmd *ioucmd;
	const void *ring; /* of ioucmd, and its task; only compared */
	const void *task;
	struct completion *waiter; /* KZ_SLOT_ADMIN */

	struct kz_cmd cmd;	 /* as it goes to the device */
	struct kz_place src;	 /* host side of the command ... */
	struct kz_place dst;	 /* ... of a march its log */
	struct kz_place result_at;
	u64 hbm;		 /* HBM side of a COPY */
	u64 pattern;		 /* of a FILL */
	u64 len;		 /* whole command, bytes; 0: not in pieces */
	u64 pos;		 /* where the piece at the device begins */
	u64 piece;		 /* length of the piece at the device */
	struct kz_sge *sg;	 /* KZ_SG_PAGE bytes, taken from the pool when first needed */
	dma_addr_t sg_dma;
	void *bounce;		 /* a march log that is not contiguous for the device */
	dma_addr_t bounce_dma;
	size_t bounce_len;
};

enum kz_queue_state { KZ_QUEUE_RUN, KZ_QUEUE_PAUSED, KZ_QUEUE_DEAD };

struct kz_queue {
	struct kref ref;
	struct kz_device *kz;
	struct kz_file *kf; /* NULL: the admin queue */
	struct kz_context *owner;
	u16 id;
	u16 vector;
	u32 ctx;
	u32 order;
	u32 flags; /* KZ_QUEUE_POLLED */
	u32 timeout_ms;

	spinlock_t lock;	/* everything below */
	u8 state;		/* enum kz_queue_state */
	u32 sq_tail;
	u32 cq_head;
	u32 outstanding;	/* slots that are not free */
	u32 ndone;
	u32 quiet;		/* commands in it that raise no interrupt */
	bool bell_due;		/* something was written since the last doorbell */
	bool wake;		/* somebody who reaps is to be told */
	bool closing;		/* being destroyed: the timer keeps off */
	bool timer_armed;
	unsigned long timer_at; /* jiffies */
	u32 look_head;		/* the completion that nobody took when the timer last looked ... */
	unsigned long look_since; /* ... and since when, jiffies; 0: none */
	u32 owed;		/* completions found late, their interrupt may still come */
	unsigned long owed_since; /* jiffies, the last of them */
	u32 expiries;		/* at the driver's own limit or later, in a row, without a completion between */
	struct list_head free;
	struct list_head pending; /* in order; the head may be partly issued */
	struct list_head issued;
	struct list_head done;	/* for REAP */
	struct list_head told;	/* ended, io_uring is being told in this order (KZ_URING_LIFO) */
	struct kz_slot *slot;	/* 1 << order of them */
	struct kz_ioc_queue_stat stat;

	struct kz_cmd *sq;	/* the rings; NULL once the device lost them */
	struct kz_cqe *cq;
	struct kz_dbrec *db;
	dma_addr_t sq_dma;
	dma_addr_t cq_dma;
	dma_addr_t db_dma;

	wait_queue_head_t wait;
	struct delayed_work timer;
	struct rcu_head rcu;
};

struct kz_hbm {
	struct list_head node;
	u32 id; /* of the file's, for mmap */
	u64 addr;
	u64 len;
	u64 *phys; /* of each page, once asked */
};

struct kz_context {
	u32 id;
	u32 generation; /* of the device when it was made; another one: dead */
	u32 queues;
	struct list_head hbm;
};

struct kz_file {
	struct kref ref; /* the open file's and the list's */
	struct list_head node; /* kz->files */
	struct kz_device *kz;
	struct address_space *mapping;
	pid_t pid;
	char comm[TASK_COMM_LEN];
	struct mutex lock; /* contexts, buffers, queues: creation and end */
	struct mutex map_lock; /* page faults against zapping */
	struct list_head maps; /* under map_lock */
	struct ida hbm_ids;
	struct xarray ctxs;
	struct xarray queues; /* read under RCU */
	struct xarray bufs;   /* read under RCU */
	struct kz_context root;
	atomic64_t hbm_used;
	atomic64_t pinned; /* bytes */
	atomic_t ndone; /* completions to reap, all queues */
	u32 seen_generation;
	wait_queue_head_t wait;
};

struct kz_irqvec {
	struct kz_device *kz;
	u16 index;
	int irq;
	char name[24];
	u64 count; /* by its handler only */
};

struct kz_device {
	struct device dev; /* the class device; holds this structure */
	struct cdev cdev;
	struct pci_dev *pdev;
	int id;
	void __iomem *regs;

	/* as the device says, read once */
	u32 abi, cap, feat, hbm_page, hbm_geom, max_dim, dtypes, numeric[4];
	u64 hbm_bytes, max_xfer, serial;
	u16 nqueues;
	u16 nvectors;
	u32 ready_ms;
	struct kz_irqvec *vec;
	struct dma_pool *sg_pool;

	u32 fw_version, reset_count, reset_reason; /* when it last came up */

	struct srcu_struct srcu;
	struct mutex reset_lock;
	struct mutex life;
	spinlock_t state_lock;
	u8 state; /* KZ_STATE_*, see kz_set_state() */
	bool up; /* the admin queue runs; false before anything is torn down */
	u32 generation;
	u32 starts; /* how often it came up */
	wait_queue_head_t state_wait;
	struct mutex admin_lock;
	struct kz_queue *admin;
	struct kz_queue __rcu *hwq[KZ_MAX_QUEUES];
	unsigned long used[BITS_TO_LONGS(KZ_MAX_QUEUES)]; /* under life */

	struct mutex files_lock;
	struct list_head files;
	atomic_t maps; /* mappings of HBM */

	struct workqueue_struct *wq;
	struct work_struct reset_work;
	atomic_t reset_level; /* wanted by reset_work */
	const char *reset_why;
	u32 resets[4]; /* by level */
	u32 errors_corrected, errors_seen, errors_recovered;

	u64 hbm_quota; /* of a file, bytes */
	u32 timeout_ms;
	u32 watchdog_ms;
	bool clears; /* the driver zeroes HBM before it hands it out */
	struct device *hwmon;
	struct dentry *debugfs;
};

static inline struct device *kz_dma(struct kz_device *kz)
{
	return &kz->pdev->dev;
}

static inline u8 kz_state(struct kz_device *kz)
{
	return READ_ONCE(kz->state);
}

/* main.c */
extern struct dentry *kz_debugfs_root;

/* hw.c: registers */
u32 kz_rd(struct kz_device *kz, u32 reg);
void kz_wr(struct kz_device *kz, u32 reg, u32 value);
int kz_wait_reg(struct kz_device *kz, u32 reg, u32 mask, u32 want, u32 ms);
bool kz_hw_present(struct kz_device *kz);
int kz_hw_identify(struct kz_device *kz);
int kz_hw_clean(struct kz_device *kz);
int kz_hw_enable(struct kz_device *kz);
void kz_hw_disable(struct kz_device *kz);
int kz_hw_telemetry(struct kz_device *kz, struct kz_telemetry *t);
unsigned int kz_reg_count(void);
u32 kz_reg_at(unsigned int i, const char **name);
const char *kz_reg_name(u32 reg);
bool kz_reg_readable(u32 reg);
bool kz_reg_writable(u32 reg);
int kz_status_errno(u16 status);

/* irq.c */
int kz_irq_init(struct kz_device *kz, unsigned int most);
void kz_irq_exit(struct kz_device *kz);

/* life.c: live, stopped, gone */
int kz_begin(struct kz_device *kz, int *idx);
void kz_end(struct kz_device *kz, int idx);
int kz_begin_live(struct kz_device *kz, int *idx, bool wait);
void kz_end_live(struct kz_device *kz, int idx);
int kz_life_lock(struct kz_device *kz, u32 generation);
int kz_start(struct kz_device *kz);
void kz_stop(struct kz_device *kz, u8 state, bool touch);
void kz_stop_old(struct kz_device *kz, u32 generation);
bool kz_give_up(struct kz_device *kz, u32 generation);
void kz_set_state(struct kz_device *kz, u8 state);

/* queue.c: life of a queue */
struct kz_queue *kz_queue_alloc(struct kz_device *kz, struct kz_file *kf, u32 id, u32 order);
int kz_queue_start(struct kz_queue *q);
int kz_queue_halt(struct kz_queue *q);
void kz_queue_seal(struct kz_queue *q);
u32 kz_queue_end(struct kz_queue *q, enum kz_queue_state state, bool expire);
void kz_queue_publish(struct kz_queue *q);
void kz_queue_unpublish(struct kz_queue *q);
void kz_queue_put(struct kz_queue *q);
int kz_queue_reset(struct kz_queue *q, u32 *dropped);
void kz_queue_stuck(struct kz_queue *q, u32 generation);
void kz_queue_destroy(struct kz_queue *q);

/* timeout.c */
void kz_queue_arm(struct kz_queue *q, struct kz_slot *s);
void kz_queue_timer(struct work_struct *work);
int kz_queue_renew(struct kz_queue *q, bool expire, u32 *dropped);

/* ring.c: commands in and out of the rings */
void kz_ring_pump(struct kz_queue *q);
void kz_ring_bell(struct kz_queue *q);
unsigned int kz_ring_collect(struct kz_queue *q, bool late, struct list_head *finished);
bool kz_ring_waiting(struct kz_queue *q, u32 *head);
unsigned int kz_ring_poll(struct kz_queue *q, enum kz_poll how);
void kz_ring_idle_irq(struct kz_queue *q);
void kz_ring_judge(struct kz_queue *q);

/* slot.c */
struct kz_slot *kz_slot_get(struct kz_queue *q, enum kz_slot_kind kind, int *err);
int kz_slot_commit(struct kz_slot *s);
void kz_slot_trim(struct kz_slot *s);
void kz_slot_refuse(struct kz_slot *s);
int kz_slot_answer(struct kz_slot *s, u16 status);
void kz_slot_end(struct kz_slot *s, u16 status, struct list_head *finished);
void kz_slots_finish(struct kz_queue *q, struct list_head *finished);
void kz_slot_release(struct kz_slot *s);
u32 kz_slots_reap(struct kz_queue *q, struct kz_done *to, u32 max);

/* xlate.c: user's command to the device's; split.c: pieces */
int kz_xlate(struct kz_slot *s, struct kz_file *kf, const struct kz_cmd *cmd, u16 *soft);
void kz_xlate_drop(struct kz_slot *s);
void kz_xlate_results(struct kz_slot *s);
void kz_place_drop(struct kz_place *p);
void kz_piece_next(struct kz_slot *s);
bool kz_piece_more(const struct kz_slot *s);
void kz_piece_ended(struct kz_slot *s, u64 result);

/* admin.c */
int kz_admin_init(struct kz_device *kz);
void kz_admin_exit(struct kz_device *kz);
int kz_admin(struct kz_device *kz, u32 generation, const struct kz_cmd *cmd, u64 *result, u32 ms);

/* ctx.c, hbm.c: all under kf->lock but for those that take it: *_create, *_destroy, _alloc, _free */
struct kz_context *kz_ctx_find(struct kz_file *kf, u32 id, int *err);
bool kz_ctx_alive(struct kz_device *kz, const struct kz_context *c);
int kz_ctx_create(struct kz_file *kf, u32 *id, u32 *status);
int kz_ctx_destroy(struct kz_file *kf, u32 id, u32 *status);
void kz_ctx_free_all(struct kz_file *kf, bool device);
void kz_ctx_end_all(struct kz_device *kz);
int kz_hbm_alloc(struct kz_file *kf, struct kz_ioc_hbm *a);
int kz_hbm_free(struct kz_file *kf, struct kz_ioc_hbm *a);
int kz_hbm_query(struct kz_device *kz, const struct kz_context *c, u64 addr, u64 *phys, u32 *status);
int kz_hbm_pages(struct kz_file *kf, struct kz_context *c, struct kz_hbm *h);
struct kz_hbm *kz_hbm_by_id(struct kz_file *kf, u32 id, struct kz_context **ctx);
void kz_hbm_forget(struct kz_file *kf, struct kz_context *c);
void kz_hbm_unmap_all(struct kz_file *kf, struct kz_context *c);
void kz_hbm_free_root(struct kz_file *kf, bool device);

/* buf.c */
int kz_buf_register(struct kz_file *kf, struct kz_ioc_buf *a);
int kz_buf_unregister(struct kz_file *kf, u32 handle);
void kz_buf_free_all(struct kz_file *kf);
int kz_buf_place(struct kz_file *kf, u64 addr, u64 len, bool device_writes, struct kz_place *p);
const struct kz_seg *kz_buf_seg(const struct kz_buf *b, u64 off);
bool kz_buf_contiguous(const struct kz_buf *b, u64 off, u64 len, dma_addr_t *addr);
void kz_buf_write(struct kz_buf *b, u64 off, const void *from, size_t len);

/* file.c, mmap.c */
extern const struct file_operations kz_fops;
void kz_files_strip(struct kz_device *kz, bool device);
int kz_mmap(struct file *file, struct vm_area_struct *vma);
void kz_unmap_hbm(struct kz_file *kf, const struct kz_hbm *h);
void kz_zap_all(struct kz_device *kz);

/* ioctl.c, ioctl_queue.c, uring.c */
long kz_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
struct kz_queue *kz_queue_find(struct kz_file *kf, u32 id);
u32 kz_queues_free(struct kz_device *kz);
int kz_queue_open(struct kz_file *kf, struct kz_ioc_queue *a);
int kz_queue_close(struct kz_file *kf, struct kz_ioc_queue *a);
void kz_queue_drop(struct kz_file *kf, struct kz_queue *q);
int kz_queue_renew_call(struct kz_file *kf, struct kz_ioc_queue *a);
int kz_queue_stat(struct kz_file *kf, struct kz_ioc_queue_stat *a);
void kz_queue_bell(struct kz_queue *q);
int kz_submit(struct kz_file *kf, struct kz_ioc_submit *a);
int kz_reap(struct kz_file *kf, struct kz_ioc_reap *a);
int kz_uring_cmd(struct io_uring_cmd *ioucmd, unsigned int issue_flags);
void kz_uring_finish(struct kz_slot *s);

/* reset.c, err.c, pm.c, coredump.c, fw.c */
void kz_reset_work(struct work_struct *work);
void kz_reset_schedule(struct kz_device *kz, enum kz_level level, const char *why);
bool kz_can_reset_device(struct kz_device *kz);
int kz_reset_now(struct kz_device *kz, enum kz_level level, const char *why, bool asked);
extern const struct pci_error_handlers kz_err_handlers;
extern const struct dev_pm_ops kz_pm_ops;
void kz_pm_init(struct kz_device *kz, unsigned int autosuspend_ms);
void kz_pm_exit(struct kz_device *kz);
void kz_coredump(struct kz_device *kz, const char *why);
void kz_coredump_locked(struct kz_device *kz, const char *why);
int kz_fw_update(struct kz_device *kz, const void __user *user, const void *kernel, size_t len, u32 *status);
int kz_fw_load(struct kz_device *kz, const char *name);

/* hwmon.c, sysfs.c, debugfs.c */
int kz_hwmon_init(struct kz_device *kz);
void kz_hwmon_exit(struct kz_device *kz);
extern const struct attribute_group *kz_groups[];
void kz_debugfs_init(struct kz_device *kz);
void kz_debugfs_exit(struct kz_device *kz);

#endif
