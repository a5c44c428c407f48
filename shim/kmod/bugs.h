/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Planted bugs, to see whether tests find them (docs/kmod-bugs.md). Only a module built with KZ_BUGS=1 has them, and it
 * has at most one at work, named when it is loaded. Built as usual every KZ_BUG is a constant false, and nothing of what
 * is behind it is compiled.
 */
#ifndef KZ_BUGS_H
#define KZ_BUGS_H

#include <linux/fs.h>
#include <linux/pci.h>
#include <linux/types.h>

struct kz_context;
struct kz_device;
struct kz_entry;
struct kz_file;
struct kz_queue;

#ifdef KZ_BUGS
extern unsigned int kz_bug; /* 7 for K07; 0: none */
#define KZ_BUG(n) unlikely(kz_bug == (n))
int kz_bugs_init(void);
const struct file_operations *kz_bug_fops(const struct file_operations *right);
#else
#define KZ_BUG(n) false
static inline int kz_bugs_init(void)
{
	return 0;
}

static inline const struct file_operations *kz_bug_fops(const struct file_operations *right)
{
	return right;
}
#endif

/* The bug in one of its shapes, in some of them (a mask), or each bug_arg'th time only. */
#define KZ_BUG_IS(n, shape) (KZ_BUG(n) && kz_bug_arg == (shape))
#define KZ_BUG_HAS(n, shape) (KZ_BUG(n) && (kz_bug_arg & (shape)))
#define KZ_BUG_STRIKES(n) (KZ_BUG(n) && kz_bug_strikes())

/* bugs.c. Without KZ_BUGS these have no body, and no caller is left. Names that a call trace may show do not say "bug". */
extern unsigned int kz_bug_arg; /* in the bug's range */
bool kz_bug_strikes(void);
const struct pci_error_handlers *kz_bug_err_handlers(const struct pci_error_handlers *right);
int kz_chrdev_region(dev_t *devt);
void kz_last_words(struct kz_device *kz);
void kz_mark_files(struct kz_device *kz);
bool kz_user_leaves(void);
int kz_start_again(struct kz_device *kz);
void kz_awake(struct kz_device *kz);
void kz_check_batch(const struct kz_entry __user *from, u32 count);
void kz_resume_settings(struct kz_device *kz);
bool kz_ctx_park(struct kz_file *kf, struct kz_context *c);
bool kz_ctx_unpark(struct kz_device *kz, struct kz_context *c);
bool kz_hbm_reuse(struct kz_context *c, u64 len, u64 *addr);
void kz_ctx_unpark_all(struct kz_device *kz);

#endif
