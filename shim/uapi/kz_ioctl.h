/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * The interface of the reference driver: ioctls and io_uring commands of /dev/kzN.
 *
 * Every ioctl structure begins with argsz (bytes of the caller's structure) and flags. A shorter argsz than the
 * structure here is -EINVAL, a longer one whose tail is not zero is -E2BIG; unknown flags and non-zero rsvd fields
 * are -EINVAL. What the driver offers is asked with KZ_IOC_INFO, never guessed from versions.
 *
 * errno common to all calls: -ENODEV the device is gone for good (everything this file had is gone too), -EIO the
 * device failed and could not be brought back, -ESTALE the context or queue was ended by a reset or a system sleep
 * (destroy it and make a new one; registered buffers survive), -ENOENT no such handle in this file, -EPERM needs
 * CAP_SYS_ADMIN, -EINTR a signal came while waiting for a reset to end. Calls that run a device command also fill in
 * `status` (KZ_ST_*) when they fail with -EREMOTEIO, -ENOMEM, -ENOSPC, -EBUSY, -EFAULT, -EACCES or -EINVAL from it.
 */
#ifndef KZ_IOCTL_H
#define KZ_IOCTL_H

#include <linux/ioctl.h>

#include "kz_cmd.h"
#include "kz_telemetry.h"

#define KZ_DRIVER_ABI 2

/*
 * In the flags of any call that needs the device: -EAGAIN while it is being reset or sleeps with the system. Without it
 * the call waits for the end of that, 30 s at most.
 */
#define KZ_CALL_NOWAIT (1u << 31)

/*
 * A host address in a user's command is not a bus address but a place in a registered buffer of the same file:
 * handle << 40 | offset. The driver checks and rewrites it. A place that is not in a buffer, or written through a
 * buffer registered without KZ_BUF_DEVICE_WRITES, completes with KZ_ST_DMA_FAULT as on the bus.
 */
#define KZ_HOST_SHIFT 40
#define KZ_HOST_ADDR(handle, offset) (((__u64)(handle) << KZ_HOST_SHIFT) | (offset))

/*
 * mmap offsets, MAP_SHARED only: kz_ioc_hbm.map + the offset in the allocation, or below 2^40 an address of physical
 * HBM (CAP_SYS_ADMIN). A mapping ends, with SIGBUS, when the memory is freed or the device is reset.
 */
#define KZ_MMAP_SHIFT 40

/* Completion statuses that the driver gives, beside KZ_ST_*. */
#define KZ_ST_LOST 0x7000    /* the queue was reset or the device lost before it completed */
#define KZ_ST_EXPIRED 0x7001 /* the driver's time limit for the command passed; its queue was reset */

#define KZ_CTX_ROOT 0 /* the privileged context, CAP_SYS_ADMIN; exists always */

/* kz_info.features */
#define KZ_DF_URING (1ull << 0)	       /* io_uring commands */
#define KZ_DF_URING_CANCEL (1ull << 1) /* ... that can be cancelled one by one */
#define KZ_DF_MMAP (1ull << 2)	       /* the HBM aperture can be mapped */
#define KZ_DF_FW_UPDATE (1ull << 3)
#define KZ_DF_ECC_INJECT (1ull << 4)
#define KZ_DF_RESET_FUNCTION (1ull << 5)
#define KZ_DF_RESET_DEVICE (1ull << 6)
#define KZ_DF_RESET_FIRMWARE (1ull << 7)
#define KZ_DF_CLEARS (1ull << 8) /* the driver itself writes zeros to HBM it hands out */

#define KZ_STATE_LIVE 0
#define KZ_STATE_RESETTING 1
#define KZ_STATE_SUSPENDED 2
#define KZ_STATE_DEAD 3
#define KZ_STATE_GONE 4

struct kz_info { /* KZ_IOC_INFO; also ends the EPOLLPRI that a reset raises */
	__u32 argsz;
	__u32 flags; /* 0 */
	__u32 driver_abi;
	__u32 device_abi; /* KZ_REG_ABI */
	__u64 features;	  /* KZ_DF_* */
	__u32 cap;	  /* KZ_REG_CAP */
	__u32 feat;	  /* KZ_REG_FEAT */
	__u64 hbm_bytes;
	__u64 hbm_quota; /* bytes this file may hold */
	__u64 hbm_used;	 /* bytes this file holds */
	__u64 pinned;	 /* bytes of host memory this file has pinned */
	__u64 max_xfer;
	__u64 serial; /* PCIe device serial number, 0 without one */
	__u32 hbm_page;
	__u32 hbm_geom;
	__u32 max_dim;
	__u32 dtypes;
	__u32 numeric[4];
	__u32 fw_version;
	__u32 reset_count;
	__u32 queues_free; /* user queues left now */
	__u32 max_order;   /* of a user queue */
	__u32 vectors;
	__u32 state; /* KZ_STATE_* */
	__u32 generation; /* counts what ended contexts and queues: resets and sleeps */
	__u16 pci_domain;
	__u8 pci_bus;
	__u8 pci_devfn;
};

struct kz_ioc_ctx { /* KZ_IOC_CTX_CREATE, KZ_IOC_CTX_DESTROY (its queues must be gone: -EBUSY) */
	__u32 argsz;
	__u32 flags;
	__u32 ctx; /* out of CREATE, into DESTROY */
	__u32 status;
};

struct kz_ioc_queue { /* KZ_IOC_QUEUE_CREATE, _DESTROY, _RESET */
	__u32 argsz;
	__u32 flags;
	__u32 ctx;	  /* CREATE */
	__u32 order;	  /* CREATE: log2 of the entries */
	__u32 timeout_ms; /* CREATE: of a command, 0 for the driver's default; out: the one in force */
	__u32 queue;	  /* out of CREATE: the number the device knows it by; into DESTROY, RESET */
	__u32 dropped;	  /* out of RESET: commands that ended with KZ_ST_LOST */
	__u32 vector;	  /* out of CREATE */
};
#define KZ_QUEUE_POLLED (1u << 0) /* CREATE: no interrupts; REAP looks at the ring */

struct kz_ioc_buf { /* KZ_IOC_BUF_REGISTER, KZ_IOC_BUF_UNREGISTER (-EBUSY while commands use it) */
	__u32 argsz;
	__u32 flags; /* KZ_BUF_*; at least one in REGISTER */
	__u64 addr;  /* REGISTER: user address, any alignment */
	__u64 len;   /* REGISTER: bytes, 1 .. 2^40 - 1 */
	__u32 handle;
	__u32 segments; /* out of REGISTER: pieces on the bus */
	__u64 base;	/* out of REGISTER: KZ_HOST_ADDR(handle, 0) */
};
#define KZ_BUF_DEVICE_READS (1u << 0)
#define KZ_BUF_DEVICE_WRITES (1u << 1)

struct kz_ioc_hbm { /* KZ_IOC_HBM_ALLOC, _FREE, _QUERY (CAP_SYS_ADMIN) */
	__u32 argsz;
	__u32 flags;
	__u32 ctx;
	__u32 status;
	__u64 addr; /* out of ALLOC; into FREE and QUERY */
	__u64 len;  /* into ALLOC, bytes; out: rounded up */
	__u64 phys; /* out of QUERY */
	__u64 map;  /* out of ALLOC: where mmap finds it */
};

struct kz_entry { /* one command to submit; phase bit and cid of cmd: the phase is ignored, cid is the caller's */
	struct kz_cmd cmd;
	__u64 user_data;
	__u32 timeout_ms; /* 0: the queue's */
	__u32 rsvd;
};

struct kz_ioc_submit { /* KZ_IOC_SUBMIT: in order, until one is refused */
	__u32 argsz;
	__u32 flags;
	__u32 queue;
	__u32 count;
	__u64 entries; /* user address of struct kz_entry[count] */
	__u32 done;    /* out: entries taken; the call fails only where this is 0 */
	__s32 error;   /* out: why the next one was refused, -EBUSY: the queue is full */
};

struct kz_done { /* one completion */
	__u64 user_data;
	__u64 result;
	__u64 time_ns; /* CLOCK_MONOTONIC when the driver saw it */
	__u16 status;  /* KZ_ST_* */
	__u16 cid;
	__u32 rsvd;
};

struct kz_ioc_reap { /* KZ_IOC_REAP: waits until `min` completions are there, then hands out up to `max` */
	__u32 argsz;
	__u32 flags;
	__u32 queue;
	__u32 max;
	__u32 min;	  /* 0: never waits */
	__u32 count;	  /* out; fewer than min when the time is over or a signal came */
	__s64 timeout_ns; /* < 0: no limit */
	__u64 entries;	  /* user address of struct kz_done[max] */
};

struct kz_ioc_queue_stat { /* KZ_IOC_QUEUE_STAT: the books of a queue, from its creation on */
	__u32 argsz;
	__u32 flags;
	__u32 queue;
	__u32 outstanding;
	__u64 submitted;   /* commands taken from the user */
	__u64 completed;   /* by the device, or refused by the driver on its behalf */
	__u64 lost;	   /* ended by a reset, a time limit or removal */
	__u64 cancelled;   /* given up by io_uring; the device may have completed them */
	__u64 interrupts;
	__u64 idle_interrupts;	 /* that found no completion; counted where the vector is the queue's own */
	__u64 found_late;	 /* completions found by looking, their interrupt more than a second late; ... */
	__u64 unknown_cid;	 /* completions of a command id that the queue does not have */
	__u64 wrong_queue;	 /* completions that name another queue */
	__u64 bad_sq_head;	 /* completions with a head beyond what was submitted */
	__u64 resets;
	__u64 entries;	    /* completions that the device wrote, those of pieces of a command included */
	__u64 repeated_cid; /* completions of a command id that has no command (any more) */
	__u64 interrupts_owed; /* ... of these, the ones whose interrupt may still come, for half a second ... */
	__u64 interrupts_lost; /* ... and the ones whose interrupt has not. One that comes pays for all that are owed */
};

struct kz_ioc_reset { /* KZ_IOC_RESET, CAP_SYS_ADMIN: returns when the device is ready again */
	__u32 argsz;
	__u32 flags;
	__u32 kind; /* KZ_RESET_* */
	__u32 rsvd;
};
#define KZ_RESET_KIND_FUNCTION 1
#define KZ_RESET_KIND_DEVICE 2
#define KZ_RESET_KIND_FIRMWARE 3

struct kz_ioc_fw { /* KZ_IOC_FW_UPDATE, CAP_SYS_ADMIN: struct kz_fw_header and payload */
	__u32 argsz;
	__u32 flags; /* KZ_FW_ACTIVATE: firmware reset when the device has taken it */
	__u64 addr;
	__u64 len;
	__u32 status;
	__u32 rsvd;
};
#define KZ_FW_ACTIVATE (1u << 0)

struct kz_ioc_ecc { /* KZ_IOC_ECC_INJECT, CAP_SYS_ADMIN */
	__u32 argsz;
	__u32 flags;
	__u32 ctx; /* an own context, or KZ_CTX_ROOT: addr is physical */
	__u32 kind; /* KZ_ECC_* */
	__u64 addr; /* 8-byte aligned */
	__u32 status;
	__u32 rsvd;
};

struct kz_ioc_telemetry { /* KZ_IOC_TELEMETRY: -EAGAIN when no consistent copy could be had */
	__u32 argsz;
	__u32 flags;
	struct kz_telemetry t;
};

struct kz_ioc_reg { /* KZ_IOC_REG_READ: identity, state, telemetry; _WRITE (CAP_SYS_ADMIN): SCRATCH, WATCHDOG_MS */
	__u32 argsz;
	__u32 flags;
	__u32 offset; /* -EACCES: not one of the safe ones */
	__u32 value;
};

#define KZ_IOC_TYPE 0xd7
#define KZ_IOC_INFO _IO(KZ_IOC_TYPE, 0x00)
#define KZ_IOC_CTX_CREATE _IO(KZ_IOC_TYPE, 0x01)
#define KZ_IOC_CTX_DESTROY _IO(KZ_IOC_TYPE, 0x02)
#define KZ_IOC_QUEUE_CREATE _IO(KZ_IOC_TYPE, 0x03)
#define KZ_IOC_QUEUE_DESTROY _IO(KZ_IOC_TYPE, 0x04)
#define KZ_IOC_QUEUE_RESET _IO(KZ_IOC_TYPE, 0x05)
#define KZ_IOC_QUEUE_STAT _IO(KZ_IOC_TYPE, 0x06)
#define KZ_IOC_BUF_REGISTER _IO(KZ_IOC_TYPE, 0x07)
#define KZ_IOC_BUF_UNREGISTER _IO(KZ_IOC_TYPE, 0x08)
#define KZ_IOC_HBM_ALLOC _IO(KZ_IOC_TYPE, 0x09)
#define KZ_IOC_HBM_FREE _IO(KZ_IOC_TYPE, 0x0a)
#define KZ_IOC_HBM_QUERY _IO(KZ_IOC_TYPE, 0x0b)
#define KZ_IOC_SUBMIT _IO(KZ_IOC_TYPE, 0x0c)
#define KZ_IOC_REAP _IO(KZ_IOC_TYPE, 0x0d)
#define KZ_IOC_RESET _IO(KZ_IOC_TYPE, 0x0e)
#define KZ_IOC_FW_UPDATE _IO(KZ_IOC_TYPE, 0x0f)
#define KZ_IOC_ECC_INJECT _IO(KZ_IOC_TYPE, 0x10)
#define KZ_IOC_TELEMETRY _IO(KZ_IOC_TYPE, 0x11)
#define KZ_IOC_REG_READ _IO(KZ_IOC_TYPE, 0x12)
#define KZ_IOC_REG_WRITE _IO(KZ_IOC_TYPE, 0x13)

/*
 * io_uring: IORING_OP_URING_CMD on the file. The completion's res is a KZ_ST_* status (>= 0) or -errno; the 64-bit
 * result goes into the second half of a CQE32 and, where result_at is set and the status is KZ_ST_OK, as 8 bytes to
 * that place in a registered buffer (8-byte aligned, KZ_BUF_DEVICE_WRITES). A full queue completes with -EBUSY at once: nothing is ever handed
 * to a worker thread.
 */
#define KZ_URING_NOP 0 /* completes at once with 0: the price of the way in and out */
#define KZ_URING_SUBMIT 1 /* the ring needs IORING_SETUP_SQE128; the command area is struct kz_uring_cmd */

struct kz_uring_cmd {
	struct kz_cmd cmd;
	__u32 queue;
	__u32 timeout_ms; /* 0: the queue's */
	__u64 result_at;  /* KZ_HOST_ADDR(), 0: nowhere */
};

KZ_ASSERT_SIZE(struct kz_info, 144);
KZ_ASSERT_OFFSET(struct kz_info, hbm_page, 80);
KZ_ASSERT_OFFSET(struct kz_info, pci_domain, 140);
KZ_ASSERT_SIZE(struct kz_ioc_ctx, 16);
KZ_ASSERT_SIZE(struct kz_ioc_queue, 32);
KZ_ASSERT_SIZE(struct kz_ioc_buf, 40);
KZ_ASSERT_SIZE(struct kz_ioc_hbm, 48);
KZ_ASSERT_SIZE(struct kz_entry, 80);
KZ_ASSERT_SIZE(struct kz_ioc_submit, 32);
KZ_ASSERT_SIZE(struct kz_done, 32);
KZ_ASSERT_SIZE(struct kz_ioc_reap, 40);
KZ_ASSERT_SIZE(struct kz_ioc_queue_stat, 136);
KZ_ASSERT_SIZE(struct kz_ioc_reset, 16);
KZ_ASSERT_SIZE(struct kz_ioc_fw, 32);
KZ_ASSERT_SIZE(struct kz_ioc_ecc, 32);
KZ_ASSERT_SIZE(struct kz_ioc_telemetry, 392);
KZ_ASSERT_SIZE(struct kz_ioc_reg, 16);
KZ_ASSERT_SIZE(struct kz_uring_cmd, 80);

#endif
