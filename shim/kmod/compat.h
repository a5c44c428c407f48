/* SPDX-License-Identifier: GPL-2.0 */
/*
 * All differences between kernels, in one place. What the target has is found by compat-probe.sh at build time.
 */
#ifndef KZ_COMPAT_H
#define KZ_COMPAT_H

#include <linux/device.h>
#include <linux/mm.h>
#include <linux/module.h>

#include "compat_config.h"

#ifdef KZ_HAVE_BLK_PLUG_H
#include <linux/blk_plug.h>
#else
#include <linux/blkdev.h>
#endif
#ifdef KZ_HAVE_URING_CMD_H
#include <linux/io_uring/cmd.h>
#define KZ_URING_LIFO 0
#else
#include <linux/io_uring.h>
#include <linux/io_uring_types.h>
#define KZ_URING_LIFO 1 /* task work runs last in, first out; newer kernels turn the list round first */
#endif

static inline struct class *kz_class_create(const char *name)
{
#ifdef KZ_HAVE_CLASS_CREATE_NAME
	return class_create(name);
#else
	return class_create(THIS_MODULE, name);
#endif
}

#ifdef KZ_HAVE_DEVNODE_CONST
#define KZ_DEVNODE_CONST const
#else
#define KZ_DEVNODE_CONST
#endif

static inline void kz_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
#ifdef KZ_HAVE_VM_FLAGS_SET
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

/* Whether a long-term pin for reading must ask for writing, or it may hold a page that the process does not keep. */
#ifdef KZ_HAVE_UNSHARE_ANON_ONLY
#define KZ_PIN_BREAKS_COW 1
#else
#define KZ_PIN_BREAKS_COW 0
#endif

/* An initializer in struct pci_error_handlers. */
#ifdef KZ_HAVE_COR_ERROR_DETECTED
#define KZ_COR_ERROR_DETECTED(fn) .cor_error_detected = fn,
#else
#define KZ_COR_ERROR_DETECTED(fn)
#endif

/* The command area of the submission entry. Shared with user space on newer kernels: copy it once, then look. */
static inline const void *kz_uring_payload(struct io_uring_cmd *c)
{
#ifdef KZ_HAVE_URING_SQE
	return c->sqe->cmd;
#else
	return c->cmd;
#endif
}

static inline void kz_uring_done(struct io_uring_cmd *c, int ret, u64 result, bool cqe32, unsigned int issue_flags)
{
#ifdef KZ_HAVE_URING_DONE32
	if (cqe32)
		io_uring_cmd_done32(c, ret, result, issue_flags);
	else
		io_uring_cmd_done(c, ret, issue_flags);
#else
	io_uring_cmd_done(c, ret, result, issue_flags);
#endif
}

/* Defines name##_tw, the task work that calls name(command, issue_flags). */
#ifdef KZ_HAVE_URING_TW_REQ
#define KZ_URING_TASK_WORK(name)                                                          \
	static void name##_tw(struct io_tw_req req, io_tw_token_t tw)                     \
	{                                                                                 \
		name(io_uring_cmd_from_tw(req), IO_URING_CMD_TASK_WORK_ISSUE_FLAGS);      \
	}
#else
#define KZ_URING_TASK_WORK(name)                                                          \
	static void name##_tw(struct io_uring_cmd *c, unsigned int issue_flags)           \
	{                                                                                 \
		name(c, issue_flags);                                                     \
	}
#endif

/* What tells rings apart where their order is ours to keep; only compared. */
static inline const void *kz_uring_ring(struct io_uring_cmd *c)
{
#if KZ_URING_LIFO
	return cmd_to_io_kiocb(c)->ctx;
#else
	return NULL;
#endif
}

#ifdef KZ_HAVE_URING_CANCEL
#define KZ_URING_CANCELS 1
static inline bool kz_uring_is_cancel(unsigned int issue_flags)
{
	return issue_flags & IO_URING_F_CANCEL;
}

static inline void kz_uring_cancelable(struct io_uring_cmd *c, unsigned int issue_flags)
{
	io_uring_cmd_mark_cancelable(c, issue_flags);
}
#else
#define KZ_URING_CANCELS 0
static inline bool kz_uring_is_cancel(unsigned int issue_flags)
{
	return false;
}

static inline void kz_uring_cancelable(struct io_uring_cmd *c, unsigned int issue_flags)
{
}
#endif

#endif
