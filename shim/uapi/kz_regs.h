/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * The reference TPU: PCI identity, BARs and the register map of BAR0.
 *
 * BAR0  64 KiB, 32-bit non-prefetchable: registers, telemetry, queue blocks, doorbells.
 * BAR2  16 KiB, 32-bit non-prefetchable: MSI-X table at 0, PBA at 0x2000 (alone in their pages).
 * BAR4  64-bit prefetchable: the HBM aperture, physical HBM address 0 upwards.
 *
 * All registers are 32 bits wide and naturally aligned; a 64-bit quantity is a LO/HI pair, LO at the lower
 * address. Access of another width or alignment to the register area reads all ones and writes nothing, except
 * in the telemetry block, which may be read with any width. Unlisted offsets read 0 and ignore writes.
 */
#ifndef KZ_REGS_H
#define KZ_REGS_H

#include "kz_types.h"

#define KZ_PCI_VENDOR_ID 0x1234
#define KZ_PCI_DEVICE_ID 0x4b5a
#define KZ_PCI_CLASS 0x120000 /* processing accelerator, PCI Code and ID Assignment r1.16, section 1.19 */
#define KZ_PCI_SUBSYS_VENDOR 0x1234
#define KZ_PCI_SUBSYS_ID 0x0001

#define KZ_BAR_REGS 0
#define KZ_BAR_MSIX 2
#define KZ_BAR_HBM 4
#define KZ_BAR0_SIZE 0x10000u
#define KZ_BAR2_SIZE 0x4000u
#define KZ_MSIX_TABLE_OFFSET 0x0u
#define KZ_MSIX_PBA_OFFSET 0x2000u

/* ---- identity and capabilities (read only) ---- */
#define KZ_REG_MAGIC 0x0000
#define KZ_MAGIC 0x50545a4bu /* "KZTP" */
#define KZ_REG_ABI 0x0004 /* major in bits 31:16, minor in 15:0; a driver refuses another major */
#define KZ_ABI_MAJOR 1
#define KZ_ABI_MINOR 0
#define KZ_REG_CAP 0x0008
#define KZ_CAP_QUEUES(cap) ((cap) & 0xffu)		  /* queue pairs, >= 8 */
#define KZ_CAP_MAX_ORDER(cap) (((cap) >> 8) & 0x1fu)	  /* log2 of the largest ring, entries */
#define KZ_CAP_READY_100MS(cap) (((cap) >> 16) & 0xffu) /* worst time to READY after a reset, 100 ms units */
#define KZ_CAP_IOVA_BITS(cap) (((cap) >> 24) & 0x7fu)	  /* width of a bus address the DMA engine can emit */
#define KZ_REG_FEAT 0x000c
#define KZ_FEAT_CONTEXTS (1u << 0)
#define KZ_FEAT_MARCH (1u << 1)
#define KZ_FEAT_CRC32C (1u << 2)
#define KZ_FEAT_VECTOR (1u << 3)
#define KZ_FEAT_FW_UPDATE (1u << 4)
#define KZ_FEAT_ECC (1u << 5)	       /* HBM has ECC and ECC is on */
#define KZ_FEAT_ECC_INJECT (1u << 6) /* KZ_OP_ECC_INJECT works */
#define KZ_FEAT_HBM_CLEARED (1u << 7) /* HBM reads as zero to a new owner and after FLR, bus and firmware reset */
#define KZ_FEAT_FIXED_TIME (1u << 8)  /* commands take a fixed time (a model's calibration mode) */
#define KZ_REG_HBM_SIZE_LO 0x0010     /* bytes */
#define KZ_REG_HBM_SIZE_HI 0x0014
#define KZ_REG_HBM_PAGE 0x0018 /* allocation, translation and retirement unit, bytes (65536) */
#define KZ_REG_HBM_GEOM 0x001c /* widths in bits of the address fields, see kz_hbm.h */
#define KZ_REG_MAX_XFER_LO 0x0020 /* longest COPY/FILL/CRC32C/MARCH, bytes */
#define KZ_REG_MAX_XFER_HI 0x0024
#define KZ_REG_MAX_DIM 0x0028 /* largest matmul M, N or K */
#define KZ_REG_DTYPES 0x002c  /* bit KZ_DT_* set: MATMUL takes that type */
/* The numeric contract of one matmul type, KZ_NUM_* bits; zero for a type that is not there. */
#define KZ_REG_NUMERIC(dtype) (0x0030 + 4 * (dtype))
#define KZ_NUM_RNE (1u << 0)		 /* results are rounded to nearest, ties to even */
#define KZ_NUM_DENORM_IN (1u << 1)	 /* denormal operands keep their value (else read as zero) */
#define KZ_NUM_DENORM_OUT (1u << 2)	 /* denormal results keep their value (else flushed) */
#define KZ_NUM_NAN (1u << 3)		 /* NaN in any used operand gives NaN */
#define KZ_NUM_INF (1u << 4)		 /* overflow gives infinity (else the largest finite value) */
#define KZ_NUM_WRAP (1u << 5)		 /* integer accumulation wraps modulo 2^32 (else saturates) */
#define KZ_NUM_SIGNED_ZERO (1u << 6)	 /* a product of one term keeps the sign of zero (K = 1, no accumulate) */
#define KZ_NUM_DETERMINISTIC (1u << 7) /* the same operands give the same bits, run after run */
#define KZ_NUM_ACC_F32 (1u << 8)	 /* accumulates in at least f32: |error| <= (K+1) 2^-24 sum|a||b| */

/* ---- control and state ---- */
#define KZ_REG_CTRL 0x0060
#define KZ_CTRL_ENABLE (1u << 0) /* queues run; clearing stops them and drops their commands */
#define KZ_REG_STATUS 0x0064	   /* read only */
#define KZ_STATUS_READY (1u << 0)  /* follows KZ_CTRL_ENABLE within the time of KZ_CAP_READY_100MS */
#define KZ_STATUS_FATAL (1u << 1)  /* firmware gave up; only a reset helps */
#define KZ_STATUS_RESETTING (1u << 2)
#define KZ_STATUS_FW_PENDING (1u << 3) /* an accepted image waits for the next firmware reset */
#define KZ_STATUS_CODE(s) (((s) >> 8) & 0xffu) /* KZ_RR_* of the fatal condition */
#define KZ_REG_RESET 0x0068		       /* write KZ_RESET_FIRMWARE: firmware reset; anything else is ignored */
#define KZ_RESET_FIRMWARE 0x46575253u	       /* "FWRS" */
#define KZ_REG_RESET_COUNT 0x006c	       /* resets of function, device or firmware since power-on */
#define KZ_REG_RESET_REASON 0x0070	       /* KZ_RR_* of the last one */
#define KZ_RR_POWER_ON 0
#define KZ_RR_FLR 1
#define KZ_RR_BUS 2
#define KZ_RR_FIRMWARE 3
#define KZ_RR_WATCHDOG 4
#define KZ_RR_THERMAL 5
#define KZ_RR_FW_CRASH 6
#define KZ_RR_HBM_UE 7
#define KZ_RR_POWER_LOSS 8
#define KZ_REG_FW_VERSION 0x0074 /* major 31:24, minor 23:16, patch 15:0 */
#define KZ_FW_VERSION(maj, min, patch) (((maj) << 24) | ((min) << 16) | (patch))
#define KZ_FW_KNOWN_MAJOR 1 /* the firmware series this ABI was written for */
#define KZ_FW_KNOWN_MINOR 4
#define KZ_REG_WATCHDOG_MS 0x0078 /* rw: a command that runs longer ends with KZ_ST_TIMEOUT; 0 = off; default 2000 */
#define KZ_REG_SCRATCH 0x007c	  /* rw, no effect; zero after every reset */
#define KZ_REG_TIME_LO 0x0080	  /* device clock, ns since power-on, latched into HI when LO is read */
#define KZ_REG_TIME_HI 0x0084
#define KZ_REG_HEARTBEAT 0x0088 /* firmware counts it up at least every 100 ms */
#define KZ_REG_IRQ_MASK 0x008c	/* rw: bit n masks vector n in the device; pending ones fire on unmask */

/* ---- telemetry block: struct kz_telemetry, read only ---- */
#define KZ_REG_TELEMETRY 0x4000

/* ---- queue blocks ---- */
#define KZ_REG_QUEUE(q) (0x1000 + 0x40 * (q))
#define KZ_Q_CTRL 0x00 /* rw */
#define KZ_QCTRL_ENABLE (1u << 0)
#define KZ_QCTRL_RESET (1u << 1) /* drops all commands, zeroes head, tail and phase; clears itself and ENABLE */
#define KZ_QCTRL_IRQ (1u << 2)	   /* completions raise the vector */
#define KZ_Q_STATE 0x04	   /* ro: KZ_QSTATE_* in 7:0, KZ_QERR_* in 15:8 */
#define KZ_QSTATE_OFF 0
#define KZ_QSTATE_RUN 1
#define KZ_QSTATE_ERROR 2
#define KZ_QERR_NONE 0
#define KZ_QERR_BAD_CONFIG 1 /* enabled with a bad base, size, vector or context */
#define KZ_QERR_DMA 2	       /* a ring or doorbell record could not be read or written */
#define KZ_QERR_OVERFLOW 3     /* the doorbell's tail runs past the head: more commands than entries */
#define KZ_Q_SQ_LO 0x08	   /* IOVA of the submission ring, 4 KiB aligned: 2^ORDER x struct kz_cmd */
#define KZ_Q_SQ_HI 0x0c
#define KZ_Q_CQ_LO 0x10 /* IOVA of the completion ring, 4 KiB aligned: 2^ORDER x struct kz_cqe */
#define KZ_Q_CQ_HI 0x14
#define KZ_Q_DBREC_LO 0x18 /* IOVA of struct kz_dbrec, 64-byte aligned */
#define KZ_Q_DBREC_HI 0x1c
#define KZ_Q_ORDER 0x20	  /* log2 of the entries of both rings, 1 .. KZ_CAP_MAX_ORDER */
#define KZ_Q_VECTOR 0x24  /* interrupt vector */
#define KZ_Q_CONTEXT 0x28 /* context whose HBM addresses the queue uses; 0 is the privileged one */
#define KZ_Q_SQ_HEAD 0x2c /* ro, free-running count of commands fetched */
#define KZ_Q_CQ_TAIL 0x30 /* ro, free-running count of completions written */

/*
 * Doorbells: a 32-bit write of any value makes the device look at the queue's doorbell record and ring. A bare
 * eventfd signal does the same (vfio-user region-io-fds), so nothing is carried in the value.
 */
#define KZ_REG_DOORBELL(q) (0x8000 + 8 * (q))

#endif
