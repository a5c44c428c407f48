// SPDX-License-Identifier: GPL-2.0-or-later
/* io_uring commands: results, back-pressure, rings and processes that go away. */
#include <dirent.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
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

/* Fenced commands end in order, and so does what the ring says. */
static void t_order(void)
{
	struct kz_cmd stamp = { .opcode = KZ_OP_TIMESTAMP, .flags = KZ_CMD_FENCE };
	struct io_uring_cqe *cqe;
	unsigned int round, i;
	struct io_uring ring;
	uint64_t last = 0;
	struct dev d;

	dev_open(&d);
	CHECK(ring_open(&ring, 64), 0);
	for (round = 0; round < 100 && !failures; round++) {
		for (i = 0; i < 32; i++)
			prep(&ring, &d, KZ_URING_SUBMIT, &stamp, 0, 1 + i);
		CHECK(io_uring_submit_and_wait(&ring, 32), 32);
		for (i = 0; i < 32; i++) {
			if (io_uring_wait_cqe(&ring, &cqe))
				break;
			CHECK(cqe->res, KZ_ST_OK);
			CHECK(cqe->user_data, 1 + i);
			CHECK(cqe->big_cqe[0] >= last, 1);
			last = cqe->big_cqe[0];
			io_uring_cqe_seen(&ring, cqe);
		}
	}
	io_uring_queue_exit(&ring);
	dev_close(&d);
}

/* Two rings of one task on one queue, of which only the second is waited for: the first one's must not hold it up. */
static void t_two_rings(void)
{
	unsigned int flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32, round, i;
	struct kz_cmd nop = { 0 };
	struct io_uring idle, ring;
	struct dev d;

	dev_open(&d);
	if (io_uring_queue_init(64, &idle, flags | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN))
		CHECK(io_uring_queue_init(64, &idle, flags), 0);
	CHECK(ring_open(&ring, 64), 0);
	for (round = 0; round < 20 && !failures; round++) {
		for (i = 0; i < 8; i++) {
			prep(&idle, &d, KZ_URING_SUBMIT, &nop, 0, i);
			CHECK(io_uring_submit(&idle), 1);
			prep(&ring, &d, KZ_URING_SUBMIT, &nop, 0, i);
			CHECK(io_uring_submit(&ring), 1);
		}
		for (i = 0; i < 8; i++)
			CHECK(next(&ring, NULL), KZ_ST_OK);
		for (i = 0; i < 8; i++)
			CHECK(next(&idle, NULL), KZ_ST_OK);
	}
	io_uring_queue_exit(&ring);
	io_uring_queue_exit(&idle);
	dev_close(&d);
}

/* Threads that io_uring has made for this process because something would have waited. */
static unsigned int workers(void)
{
	char path[64], comm[32];
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *t;
	unsigned int n = 0;
	FILE *f;

	while (tasks && (t = readdir(tasks))) {
		snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", t->d_name);
		f = fopen(path, "r");
		n += f && fgets(comm, sizeof(comm), f) && !strncmp(comm, "iou-wrk", 7);
		if (f)
			fclose(f);
	}
	if (tasks)
		closedir(tasks);
	return n;
}

enum { ROUNDS = 200, BATCH = 32 };

/* ns for one of ROUNDS x BATCH, all of a batch at once. */
static double by_ring(struct io_uring *ring, struct dev *d, uint32_t op, unsigned int *most)
{
	struct kz_cmd nop = { 0 };
	unsigned int i, j, n;
	double start = seconds();

	for (i = 0; i < ROUNDS; i++) {
		for (j = 0; j < BATCH; j++)
			prep(ring, d, op, &nop, 0, j);
		io_uring_submit_and_wait(ring, BATCH);
		for (j = 0; j < BATCH; j++)
			CHECK(next(ring, NULL), 0);
		if (i % 50 == 0) {
			n = workers();
			*most = n > *most ? n : *most;
		}
	}
	return (seconds() - start) * 1e9 / ROUNDS / BATCH;
}

/* The same by ioctl: a batch in one call where `batch`, else two calls a command. */
static double by_ioctl(struct dev *d, unsigned int batch)
{
	struct kz_cmd nops[BATCH] = { { 0 } };
	struct kz_done done[BATCH];
	double start = seconds();
	unsigned int i;
	uint32_t n;

	for (i = 0; i < ROUNDS * BATCH / batch; i++) {
		CHECK(submit(d, nops, batch, NULL), 0);
		CHECK(reap(d->fd, d->queue, done, batch, batch, 20000000000ll, &n), 0);
		CHECK(n, batch);
	}
	return (seconds() - start) * 1e9 / ROUNDS / BATCH;
}

/* Prices, for the record: a command that ends at once, and a NOP of the device, by io_uring and by ioctl. */
static void t_rate(void)
{
	unsigned int flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32, most = 0, i;
	double empty, ring_nop, call_empty, call_nop, call_single;
	struct kz_info info;
	struct io_uring ring;
	struct dev d;

	dev_open(&d);
	if (io_uring_queue_init(64, &ring, flags | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN))
		CHECK(io_uring_queue_init(64, &ring, flags), 0);
	empty = by_ring(&ring, &d, KZ_URING_NOP, &most);
	ring_nop = by_ring(&ring, &d, KZ_URING_SUBMIT, &most);
	call_empty = seconds();
	for (i = 0; i < ROUNDS * BATCH; i++) {
		memset(&info, 0, sizeof(info));
		info.argsz = sizeof(info);
		CHECK(call(d.fd, KZ_IOC_INFO, &info), 0);
	}
	call_empty = (seconds() - call_empty) * 1e9 / ROUNDS / BATCH;
	call_nop = by_ioctl(&d, BATCH);
	call_single = by_ioctl(&d, 1);
	printf("  ends at once: io_uring %.0f ns, ioctl %.0f ns, ratio %.2f\n", empty, call_empty, call_empty / empty);
	printf("  NOP of the device, 32 at once: io_uring %.0f ns, ioctl %.0f ns, ratio %.2f; one by one: ioctl %.0f ns\n",
	       ring_nop, call_nop, call_nop / ring_nop, call_single);
	printf("  io-wq workers: %u\n", most);
	CHECK(most, 0);
	io_uring_queue_exit(&ring);
	dev_close(&d);
}

/* A ring, then a process, goes away with commands in flight. The device goes on; the next user finds it in order. */
static void t_going_away(void)
{
	struct kz_cmd c;
	struct kz_ioc_telemetry before = { .argsz = sizeof(before) }, after = { .argsz = sizeof(after) };
	unsigned int round, i;
	struct dev d;
	int status, fd = open_node();

	CHECK(call(fd, KZ_IOC_TELEMETRY, &before), 0);
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
	for (i = 0; i < 1500; i++) { /* a ring lets go of its file when the kernel gets to it */
		CHECK(call(fd, KZ_IOC_TELEMETRY, &after), 0);
		if (after.t.hbm_free_bytes == before.t.hbm_free_bytes && after.t.contexts == before.t.contexts)
			break;
		poll(NULL, 0, 20);
	}
	CHECK(after.t.hbm_free_bytes, before.t.hbm_free_bytes);
	CHECK(after.t.contexts, before.t.contexts);
	close(fd);
	dev_open(&d);
	c = (struct kz_cmd){ .opcode = KZ_OP_NOP };
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	CHECK(d.info.state, KZ_STATE_LIVE);
	dev_close(&d);
}

const struct test uring_tests[] = {
	{ "uring.result", t_result },
	{ "uring.short_entry", t_short_entry },
	{ "uring.full", t_full },
	{ "uring.order", t_order },
	{ "uring.two_rings", t_two_rings },
	{ "uring.rate", t_rate },
	{ "uring.going_away", t_going_away },
	{ NULL, NULL }
};
