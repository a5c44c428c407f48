// SPDX-License-Identifier: GPL-2.0-or-later
/* io_uring commands: results, back-pressure, rings and processes that go away. */
#include <errno.h>
#include <liburing.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "selftest.h"

static int ring_open(struct io_uring *ring, unsigned int entries)
{
	return io_uring_queue_init(entries, ring, IORING_SETUP_SQE128 | IORING_SETUP_CQE32);
}

static struct io_uring_sqe *entry(struct io_uring *ring, unsigned int size)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (!sqe)
		abort(); /* no test asks for more than the ring has */
	memset(sqe, 0, size);
	return sqe;
}

static void prep(struct io_uring *ring, struct dev *d, uint32_t op, const struct kz_cmd *cmd, uint64_t result_at,
		 uint64_t user_data)
{
	struct io_uring_sqe *sqe = entry(ring, 2 * sizeof(*sqe));
	struct kz_uring_cmd u = { .queue = d->queue, .result_at = result_at };

	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = d->fd;
	sqe->cmd_op = op;
	sqe->user_data = user_data;
	if (cmd)
		u.cmd = *cmd;
	memcpy(sqe->cmd, &u, sizeof(u));
}

static int next(struct io_uring *ring, uint64_t *result)
{
	struct __kernel_timespec limit = { .tv_sec = 20 };
	struct io_uring_cqe *cqe;
	int res = io_uring_wait_cqe_timeout(ring, &cqe, &limit);

	if (res)
		return res;
	res = cqe->res;
	if (result)
		*result = cqe->big_cqe[0];
	io_uring_cqe_seen(ring, cqe);
	return res;
}

static void t_result(void)
{
	struct kz_cmd c = { .opcode = KZ_OP_CRC32C };
	struct io_uring ring;
	uint64_t result = 0;
	struct dev d;

	dev_open(&d);
	CHECK(ring_open(&ring, 64), 0);
	prep(&ring, &d, KZ_URING_NOP, NULL, 0, 1);
	CHECK(io_uring_submit(&ring), 1);
	CHECK(next(&ring, NULL), 0);
	fill_pattern(d.buf, 100000, 4);
	c.u.crc.src = d.host + 1;
	c.u.crc.len = 99999;
	c.u.crc.src_space = KZ_SP_HOST;
	prep(&ring, &d, KZ_URING_SUBMIT, &c, d.host + (1 << 20), 2);
	CHECK(io_uring_submit(&ring), 1);
	CHECK(next(&ring, &result), KZ_ST_OK);
	CHECK(result, crc32c(d.buf + 1, 99999));
	memcpy(&result, d.buf + (1 << 20), 8);
	CHECK(result, crc32c(d.buf + 1, 99999));
	c.u.crc.src = 0x1000;
	prep(&ring, &d, KZ_URING_SUBMIT, &c, 0, 3);
	prep(&ring, &d, 99, NULL, 0, 4);
	CHECK(io_uring_submit(&ring), 2);
	CHECK(next(&ring, NULL), KZ_ST_DMA_FAULT);
	CHECK(next(&ring, NULL), -EOPNOTSUPP);
	io_uring_queue_exit(&ring);
	dev_close(&d);
}

/* A ring without 128-byte entries cannot carry a command. */
static void t_short_entry(void)
{
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	struct dev d;

	dev_open(&d);
	CHECK(io_uring_queue_init(8, &ring, 0), 0);
	sqe = entry(&ring, sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = d.fd;
	sqe->cmd_op = KZ_URING_SUBMIT;
	CHECK(io_uring_submit(&ring), 1);
	CHECK(io_uring_wait_cqe(&ring, &cqe), 0);
	CHECK(cqe->res, -EINVAL);
	io_uring_queue_exit(&ring);
	dev_close(&d);
}

/* More than the queue holds: each is either completed or refused with -EBUSY, none is kept back or lost. */
static void t_full(void)
{
	struct kz_cmd nop = { 0 };
	struct io_uring ring;
	unsigned int i, ok = 0, busy = 0, other = 0;
	struct dev d;

	dev_open(&d);
	CHECK(ring_open(&ring, 256), 0);
	for (i = 0; i < 256; i++)
		prep(&ring, &d, KZ_URING_SUBMIT, &nop, 0, i);
	CHECK(io_uring_submit(&ring), 256);
	for (i = 0; i < 256; i++) {
		int res = next(&ring, NULL);

		if (res == KZ_ST_OK)
			ok++;
		else if (res == -EBUSY)
			busy++;
		else
			other++;
	}
	CHECK(other, 0);
	CHECK(ok + busy, 256);
	CHECK(ok >= 32, 1);
	io_uring_queue_exit(&ring);
	dev_close(&d);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Prices, for the record: an empty command, and a NOP of the device at a depth of 32, by io_uring and by ioctl. */
static void t_rate(void)
{
	enum { ROUNDS = 200, BATCH = 32 };
	struct kz_cmd nops[BATCH] = { { 0 } };
	struct kz_done done[BATCH];
	double t0, t1, t2, t3;
	struct io_uring ring;
	unsigned int i, j;
	struct dev d;
	uint32_t n;

	dev_open(&d);
	CHECK(ring_open(&ring, 64), 0);
	t0 = now();
	for (i = 0; i < ROUNDS; i++) {
		for (j = 0; j < BATCH; j++)
			prep(&ring, &d, KZ_URING_NOP, NULL, 0, j);
		io_uring_submit_and_wait(&ring, BATCH);
		for (j = 0; j < BATCH; j++)
			CHECK(next(&ring, NULL), 0);
	}
	t1 = now();
	for (i = 0; i < ROUNDS; i++) {
		for (j = 0; j < BATCH; j++)
			prep(&ring, &d, KZ_URING_SUBMIT, &nops[0], 0, j);
		io_uring_submit_and_wait(&ring, BATCH);
		for (j = 0; j < BATCH; j++)
			CHECK(next(&ring, NULL), 0);
	}
	t2 = now();
	for (i = 0; i < ROUNDS; i++) {
		CHECK(submit(&d, nops, BATCH, NULL), 0);
		CHECK(reap(d.fd, d.queue, done, BATCH, BATCH, 20000000000ll, &n), 0);
		CHECK(n, BATCH);
	}
	t3 = now();
	printf("  io_uring empty %.0f ns, io_uring NOP %.0f ns, ioctl NOP %.0f ns each\n",
	       (t1 - t0) * 1e9 / ROUNDS / BATCH, (t2 - t1) * 1e9 / ROUNDS / BATCH, (t3 - t2) * 1e9 / ROUNDS / BATCH);
	io_uring_queue_exit(&ring);
	dev_close(&d);
}

/* A ring, then a process, goes away with commands in flight. The device goes on; the next user finds it in order. */
static void t_going_away(void)
{
	struct kz_cmd c;
	unsigned int round, i;
	struct dev d;
	int status;

	for (round = 0; round < 20; round++) {
		pid_t pid = fork();

		if (!pid) {
			struct io_uring ring;

			dev_open(&d);
			if (ring_open(&ring, 64))
				_exit(1);
			c = cmd_copy(d.hbm, KZ_SP_HBM, d.host, KZ_SP_HOST, BUF_BYTES);
			for (i = 0; i < 32; i++)
				prep(&ring, &d, KZ_URING_SUBMIT, &c, d.host + 8 * i, i);
			io_uring_submit(&ring);
			if (round % 3 == 0)
				io_uring_queue_exit(&ring);
			if (round % 3 == 1)
				raise(SIGKILL);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0), pid);
		CHECK(round % 3 == 1 ? WTERMSIG(status) == SIGKILL : status == 0, 1);
	}
	dev_open(&d);
	CHECK(d.info.hbm_used, 0);
	c = (struct kz_cmd){ .opcode = KZ_OP_NOP };
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	CHECK(d.info.state, KZ_STATE_LIVE);
	dev_close(&d);
}

const struct test uring_tests[] = {
	{ "uring.result", t_result },
	{ "uring.short_entry", t_short_entry },
	{ "uring.full", t_full },
	{ "uring.rate", t_rate },
	{ "uring.going_away", t_going_away },
	{ NULL, NULL }
};
