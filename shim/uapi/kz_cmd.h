/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * Commands, completions and the rings that carry them.
 *
 * Submission: the host writes a struct kz_cmd into the next slot, the byte with the phase bit last (release),
 * advances kz_dbrec.sq_tail, and rings the doorbell. The phase of a slot is 1 on the first pass over the ring, 0 on
 * the second, and so on; the device takes a command when its phase is the expected one AND sq_tail has passed it.
 * At most 2^ORDER commands may be outstanding (taken off the ring or not, completion not yet consumed).
 *
 * Completion: the device writes a struct kz_cqe into the next slot, the 16-bit status with the phase bit last
 * (release), then raises the vector. The host consumes it and advances kz_dbrec.cq_head. The device never writes
 * over an unconsumed completion: it waits, and looks again at cq_head when the doorbell rings.
 *
 * Commands of one queue start in order and may complete in any order unless KZ_CMD_FENCE is set; different queues
 * are independent.
 */
#ifndef KZ_CMD_H
#define KZ_CMD_H

#include "kz_types.h"

/* Opcodes. "P" marks those that only a queue of context 0 may issue (else KZ_ST_DENIED). */
#define KZ_OP_NOP 0x00
#define KZ_OP_COPY 0x01	    /* u.copy */
#define KZ_OP_FILL 0x02	    /* u.fill */
#define KZ_OP_CRC32C 0x03   /* u.crc: result = CRC32C (Castagnoli, RFC 3720 B.4) of HBM or host bytes */
#define KZ_OP_MARCH 0x04    /* u.march: one march element over HBM; result = number of mismatching words */
#define KZ_OP_MATMUL 0x05   /* u.matmul */
#define KZ_OP_VECTOR 0x06   /* u.vector */
#define KZ_OP_FENCE 0x07    /* completes when all earlier commands of the queue have completed */
#define KZ_OP_TIMESTAMP 0x08 /* result = device clock in ns, monotonic since power-on */
#define KZ_OP_ABORT 0x09    /* u.abort: result = 1 aborted, 0 no such command or already complete */
#define KZ_OP_CTX_CREATE 0x10 /* P: result = context id (>= 1) */
#define KZ_OP_CTX_DESTROY 0x11 /* P: u.ctx; frees its HBM, disables its queues */
#define KZ_OP_HBM_ALLOC 0x12 /* u.alloc; result = HBM address in the context; P to act for another context */
#define KZ_OP_HBM_FREE 0x13  /* u.alloc (addr); the whole allocation that starts there */
#define KZ_OP_HBM_QUERY 0x14 /* P: u.alloc (addr, ctx): result = physical HBM address behind a context's address */
#define KZ_OP_HBM_STAT 0x15  /* result = free pages in 31:0, retired pages in 63:32 */
#define KZ_OP_FW_UPDATE 0x18 /* P: u.copy (src host, len): a struct kz_fw_header and its payload */
#define KZ_OP_ECC_INJECT 0x19 /* P: u.ecc */

#define KZ_CMD_PHASE (1u << 0)
#define KZ_CMD_FENCE (1u << 1) /* do not start before all earlier commands of the queue have completed */
#define KZ_CMD_NOIRQ (1u << 2) /* this completion raises no interrupt */
#define KZ_CMD_FLAGS 0x07u     /* any other flag: KZ_ST_BAD_FIELD */

/* Address spaces. */
#define KZ_SP_HOST 0 /* IOVA */
#define KZ_SP_HBM 1  /* address in the queue's context; physical for context 0 */
#define KZ_SP_HOST_SG 2 /* IOVA, 16-byte aligned, of an array of struct kz_sge (COPY only) */

#define KZ_SG_MAX 256

/* Completion status. */
#define KZ_ST_OK 0x000
#define KZ_ST_BAD_OPCODE 0x001
#define KZ_ST_BAD_FIELD 0x002	/* reserved bits set, unknown flag, space, dtype, vector operation ... */
#define KZ_ST_BAD_LENGTH 0x003	/* zero, beyond a limit, or not a multiple of the unit */
#define KZ_ST_MISALIGNED 0x004
#define KZ_ST_HBM_FAULT 0x005	/* HBM range not mapped in this context or beyond the end */
#define KZ_ST_DMA_FAULT 0x006	/* host range not mapped for the device, or not with this permission */
#define KZ_ST_NO_MEMORY 0x007	/* not enough free HBM, at once */
#define KZ_ST_NO_CONTEXT 0x008	/* unknown context, or none left */
#define KZ_ST_DENIED 0x009	/* privileged command on an unprivileged queue */
#define KZ_ST_ABORTED 0x00a	/* by KZ_OP_ABORT or a queue reset that still reports */
#define KZ_ST_TIMEOUT 0x00b	/* the device's watchdog ended it */
#define KZ_ST_POISON 0x00c	/* uncorrectable ECC error in the data read; the destination is not to be used */
#define KZ_ST_BAD_IMAGE 0x00d	/* firmware image refused */
#define KZ_ST_BUSY 0x00e	/* free of memory in use by a running command, update while another runs */
#define KZ_ST_INTERNAL 0x00f

/* Matmul types; operands row-major in HBM, C (m x n) = A (m x k) x B (k x n) [+ C]. */
#define KZ_DT_S8 0   /* s8 x s8 -> s32 */
#define KZ_DT_BF16 1 /* bf16 x bf16 -> f32 */
#define KZ_DT_F16 2  /* f16 x f16 -> f32 */
#define KZ_DT_F32 3  /* f32 x f32 -> f32 */

/* Vector operations on f32; n elements, for softmax and layernorm rows x cols with n = rows * cols. */
#define KZ_VEC_ADD 0
#define KZ_VEC_MUL 1
#define KZ_VEC_SUB 2
#define KZ_VEC_MAX 3
#define KZ_VEC_RELU 4	   /* b unused, 0; NaN stays NaN */
#define KZ_VEC_GELU 5	   /* x/2 (1 + erf(x / sqrt 2)), no tanh approximation */
#define KZ_VEC_SOFTMAX 6   /* over each row of cols elements */
#define KZ_VEC_LAYERNORM 7 /* over each row; variance 1/cols, epsilon 1e-5, no affine part */
#define KZ_VEC_SUM 8	   /* dst: one f32 per row of cols elements */

/* March operations, one byte each; "0" is the background, "1" its complement. */
#define KZ_MARCH_W0 0
#define KZ_MARCH_W1 1
#define KZ_MARCH_R0 2
#define KZ_MARCH_R1 3
#define KZ_MARCH_OPS 12
#define KZ_MARCH_UP 0
#define KZ_MARCH_DOWN 1
#define KZ_BG_CONST 0 /* background is `pattern` */
#define KZ_BG_ADDR 1  /* background is (address of the word in this context) ^ pattern: own-address test */

struct kz_copy { /* len bytes, 1 .. MAX_XFER; HOST_SG: the elements' lengths add up to len */
	__u64 src;
	__u64 dst;
	__u64 len;
	__u8 src_space;
	__u8 dst_space;
	__u16 src_sges; /* elements, 1 .. KZ_SG_MAX, where the space is HOST_SG; else 0 */
	__u16 dst_sges;
	__u16 rsvd[13];
};

struct kz_fill { /* repeats an 8-byte pattern from dst on (little-endian, first byte at dst); HBM or host */
	__u64 dst;
	__u64 len; /* bytes */
	__u64 pattern;
	__u8 dst_space;
	__u8 rsvd[31];
};

struct kz_crc {
	__u64 src;
	__u64 len;
	__u8 src_space;
	__u8 rsvd[39];
};

struct kz_march { /* words of 8 bytes; addr and len multiples of 8 */
	__u64 addr;
	__u64 len;
	__u64 pattern;
	__u64 log; /* IOVA of an array of struct kz_march_fail, or 0 */
	__u16 log_max; /* its elements; the first log_max mismatches are written */
	__u8 nops; /* 1 .. KZ_MARCH_OPS */
	__u8 order; /* KZ_MARCH_UP/DOWN */
	__u8 background; /* KZ_BG_* */
	__u8 ops[KZ_MARCH_OPS];
	__u8 rsvd[7];
};

struct kz_march_fail {
	__u64 addr; /* as in the command: an address of the context */
	__u64 expected;
	__u64 read;
	__u32 op; /* index into ops */
	__u32 rsvd;
};

struct kz_matmul { /* a, b, c: HBM addresses, 64-byte aligned; ld*: elements between rows, >= the row's length */
	__u64 a;
	__u64 b;
	__u64 c;
	__u32 m, n, k; /* 1 .. MAX_DIM */
	__u32 lda, ldb, ldc;
	__u8 dtype; /* KZ_DT_* */
	__u8 accumulate; /* 1: add to what C holds; 0: C is written only */
	__u8 rsvd[6];
};

struct kz_vector { /* a, b, dst: HBM addresses, 4-byte aligned */
	__u64 a;
	__u64 b; /* 0 where the operation has one operand */
	__u64 dst;
	__u32 n;    /* elements of a */
	__u32 cols; /* SOFTMAX, LAYERNORM, SUM: divides n; else 0 */
	__u8 op;    /* KZ_VEC_* */
	__u8 rsvd[23];
};

struct kz_abort {
	__u16 queue; /* a queue of the same context, or any for context 0 */
	__u16 cid;
	__u8 rsvd[52];
};

struct kz_ctx {
	__u32 ctx;
	__u8 rsvd[52];
};

struct kz_alloc {
	__u64 addr; /* FREE, QUERY: the address; ALLOC: 0 */
	__u64 len;  /* ALLOC: bytes, rounded up to HBM pages; FREE, QUERY: 0 */
	__u32 ctx;  /* 0: the queue's own */
	__u8 rsvd[36];
};

#define KZ_ECC_CE 0 /* one bit of the word flips in the array; the next read corrects and counts it */
#define KZ_ECC_UE 1 /* two bits flip; the next read gets KZ_ST_POISON, counts it, and the page is retired when freed */
struct kz_ecc { /* addr: physical HBM, 8-byte aligned */
	__u64 addr;
	__u8 kind;
	__u8 rsvd[47];
};

struct kz_cmd {
	__u8 opcode;
	__u8 flags; /* KZ_CMD_*; holds the phase bit: write it last */
	__u16 cid;  /* host's, unique among the outstanding commands of a queue */
	__u32 rsvd;
	union {
		struct kz_copy copy;
		struct kz_fill fill;
		struct kz_crc crc;
		struct kz_march march;
		struct kz_matmul matmul;
		struct kz_vector vector;
		struct kz_abort abort;
		struct kz_ctx ctx;
		struct kz_alloc alloc;
		struct kz_ecc ecc;
		__u8 raw[56];
	} u;
};

struct kz_sge { /* one piece of host memory */
	__u64 addr; /* IOVA */
	__u32 len;  /* bytes, >= 1 */
	__u32 rsvd;
};

struct kz_cqe {
	__u64 result;
	__u16 sq_head; /* low bits of the count of commands fetched when this was written */
	__u16 queue;
	__u16 cid;
	__u16 status; /* phase in bit 0, KZ_ST_* in 15:1 */
};
#define KZ_CQE_PHASE(status) ((status) & 1u)
#define KZ_CQE_CODE(status) ((status) >> 1)

struct kz_dbrec { /* host memory; free-running counts, modulo 2^32 */
	__u32 sq_tail; /* commands submitted; host writes */
	__u32 cq_head; /* completions consumed; host writes */
	__u8 rsvd[56];
};

struct kz_fw_header { /* then `length` bytes of payload */
	__u32 magic; /* KZ_FW_MAGIC */
	__u32 version; /* KZ_FW_VERSION() */
	__u32 length;
	__u32 crc32c; /* of the payload */
	__u32 header_crc32c; /* of the 16 bytes before */
	__u8 rsvd[12];
};
#define KZ_FW_MAGIC 0x31465a4bu /* "KZF1" */

KZ_ASSERT_SIZE(struct kz_copy, 56);
KZ_ASSERT_SIZE(struct kz_fill, 56);
KZ_ASSERT_SIZE(struct kz_crc, 56);
KZ_ASSERT_SIZE(struct kz_march, 56);
KZ_ASSERT_SIZE(struct kz_matmul, 56);
KZ_ASSERT_SIZE(struct kz_vector, 56);
KZ_ASSERT_SIZE(struct kz_abort, 56);
KZ_ASSERT_SIZE(struct kz_ctx, 56);
KZ_ASSERT_SIZE(struct kz_alloc, 56);
KZ_ASSERT_SIZE(struct kz_ecc, 56);
KZ_ASSERT_SIZE(struct kz_cmd, 64);
KZ_ASSERT_OFFSET(struct kz_cmd, flags, 1);
KZ_ASSERT_OFFSET(struct kz_cmd, cid, 2);
KZ_ASSERT_OFFSET(struct kz_cmd, u, 8);
KZ_ASSERT_SIZE(struct kz_sge, 16);
KZ_ASSERT_SIZE(struct kz_march_fail, 32);
KZ_ASSERT_SIZE(struct kz_cqe, 16);
KZ_ASSERT_OFFSET(struct kz_cqe, status, 14);
KZ_ASSERT_SIZE(struct kz_dbrec, 64);
KZ_ASSERT_SIZE(struct kz_fw_header, 32);

#endif
