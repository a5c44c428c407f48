// SPDX-License-Identifier: GPL-2.0-or-later
/* Resets with users on the device, and the way back. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "selftest.h"

static sigjmp_buf back;

static void on_bus(int signo)
{
	siglongjmp(back, signo);
}

bool faults(volatile uint8_t *p)
{
	struct sigaction a = { .sa_handler = on_bus }, old;
	bool hit = true;

	if (p == MAP_FAILED)
		return true;

	sigaction(SIGBUS, &a, &old);
	if (!sigsetjmp(back, 1)) {
		(void)*p;
		hit = false;
	}
	sigaction(SIGBUS, &old, NULL);
	return hit;
}

static void reset_kind(uint32_t kind)
{
	struct kz_ioc_reset r = { .argsz = sizeof(r), .kind = kind };
	struct kz_ioc_hbm h = { .argsz = sizeof(h), .len = 65536 };
	struct kz_ioc_queue q = { .argsz = sizeof(q) };
	struct kz_ioc_ctx c = { .argsz = sizeof(c) };
	struct kz_info i = { .argsz = sizeof(i) };
	struct kz_cmd nop = { 0 };
	struct pollfd p;
	struct dev d;
	uint8_t *map;

	dev_open(&d);
	map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, d.map);
	CHECK(map != MAP_FAILED && !faults(map), 1);
	CHECK(call(d.fd, KZ_IOC_RESET, &r), 0);
	CHECK(faults(map), 1);
	p = (struct pollfd){ .fd = d.fd, .events = POLLPRI };
	CHECK(poll(&p, 1, 0), 1);
	CHECK(run(&d, &nop, NULL), -ESTALE);
	h.ctx = d.ctx;
	CHECK(call(d.fd, KZ_IOC_HBM_ALLOC, &h), -ESTALE);
	CHECK(call(d.fd, KZ_IOC_INFO, &i), 0);
	CHECK(i.reset_count > d.info.reset_count, 1);
	CHECK(i.state, KZ_STATE_LIVE);
	CHECK(poll(&p, 1, 0), 0);
	c.ctx = d.ctx;
	CHECK(call(d.fd, KZ_IOC_CTX_DESTROY, &c), -EBUSY);
	q.queue = d.queue;
	CHECK(call(d.fd, KZ_IOC_QUEUE_DESTROY, &q), 0);
	CHECK(call(d.fd, KZ_IOC_CTX_DESTROY, &c), 0);
	c.ctx = 0;
	CHECK(call(d.fd, KZ_IOC_CTX_CREATE, &c), 0); /* the same file goes on */
	d.ctx = c.ctx;
	CHECK(queue_create(d.fd, d.ctx, DEPTH_ORDER, 0, 0, &d.queue), 0);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	h.ctx = d.ctx;
	CHECK(call(d.fd, KZ_IOC_HBM_ALLOC, &h), 0);
	nop = cmd_copy(h.addr, KZ_SP_HBM, d.host, KZ_SP_HOST, 65536); /* the buffer has survived */
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	munmap(map, 65536);
	dev_close(&d);
}

static void t_function(void)
{
	reset_kind(KZ_RESET_KIND_FUNCTION);
}

static void t_device(void)
{
	reset_kind(KZ_RESET_KIND_DEVICE);
}

static void t_firmware(void)
{
	reset_kind(KZ_RESET_KIND_FIRMWARE);
}

/* Commands in flight when their queue is reset: each is accounted for, and the queue works on. */
static void t_queue_reset(void)
{
	struct kz_ioc_queue q = { .argsz = sizeof(q) };
	struct kz_ioc_queue_stat s = { .argsz = sizeof(s) };
	struct kz_cmd c[32], nop = { 0 };
	struct kz_done done[32];
	unsigned int i, ok = 0, lost = 0, got;
	struct dev d;
	uint32_t n;

	dev_open(&d);
	for (i = 0; i < 32; i++)
		c[i] = cmd_copy(d.hbm, KZ_SP_HBM, d.host, KZ_SP_HOST, BUF_BYTES);
	CHECK(submit(&d, c, 32, &got), 0);
	q.queue = d.queue;
	CHECK(call(d.fd, KZ_IOC_QUEUE_RESET, &q), 0);
	CHECK(reap(d.fd, d.queue, done, 32, 32, 10000000000ll, &n), 0);
	CHECK(n, got);
	for (i = 0; i < n; i++) {
		ok += done[i].status == KZ_ST_OK;
		lost += done[i].status == KZ_ST_LOST;
	}
	CHECK(ok + lost, got);
	CHECK(lost, q.dropped);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	s.queue = d.queue;
	CHECK(call(d.fd, KZ_IOC_QUEUE_STAT, &s), 0);
	CHECK(s.submitted, s.completed + s.lost);
	CHECK(s.resets, 1);
	dev_close(&d);
}

/* The last descriptor counts, not the first close. */
static void t_dup(void)
{
	struct kz_cmd nop = { 0 };
	struct dev d;
	int fd;

	dev_open(&d);
	fd = dup(d.fd);
	close(d.fd);
	d.fd = fd;
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	dev_close(&d);
}

static void t_open_close(void)
{
	struct kz_ioc_telemetry t = { .argsz = sizeof(t) }, u = { .argsz = sizeof(u) };
	struct dev d;
	unsigned int i;
	int fd = open_node();

	CHECK(call(fd, KZ_IOC_TELEMETRY, &t), 0);
	for (i = 0; i < 50; i++) {
		dev_open(&d);
		dev_close(&d);
	}
	for (i = 0; i < 50; i++) { /* the block is written every 100 ms */
		CHECK(call(fd, KZ_IOC_TELEMETRY, &u), 0);
		if (u.t.hbm_free_bytes == t.t.hbm_free_bytes && u.t.contexts == t.t.contexts)
			break;
		poll(NULL, 0, 20);
	}
	CHECK(u.t.hbm_free_bytes, t.t.hbm_free_bytes);
	CHECK(u.t.contexts, t.t.contexts);
	close(fd);
}

const struct test life_tests[] = {
	{ "life.queue_reset", t_queue_reset },
	{ "life.function", t_function },
	{ "life.device", t_device },
	{ "life.firmware", t_firmware },
	{ "life.dup", t_dup },
	{ "life.open_close", t_open_close },
	{ NULL, NULL }
};
