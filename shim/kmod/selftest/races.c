// SPDX-License-Identifier: GPL-2.0-or-later
/* What one user can do to another, and to himself with two threads: limits of his own, handles, resets at once. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "selftest.h"

#define NOTICED 0.03 /* s: a limit of 1 ms and two ticks of a clock of 100 Hz, and some */

static atomic_bool stop;
static atomic_int running;

/* A product of its own large matrices: longer than a short limit and the ticks of any kernel's clock that it takes to
 * notice. */
static struct kz_cmd slow(const struct dev *d)
{
	uint32_t dim = d->info.max_dim < 2048 ? d->info.max_dim : 2048;
	struct kz_ioc_hbm h = { .argsz = sizeof(h), .ctx = d->ctx, .len = 3ull * dim * dim * sizeof(float) };
	struct kz_cmd c = { .opcode = KZ_OP_MATMUL };

	CHECK(call(d->fd, KZ_IOC_HBM_ALLOC, &h), 0);
	c.u.matmul.a = h.addr;
	c.u.matmul.b = h.addr + h.len / 3;
	c.u.matmul.c = h.addr + h.len / 3 * 2;
	c.u.matmul.m = c.u.matmul.n = c.u.matmul.k = dim;
	c.u.matmul.lda = c.u.matmul.ldb = c.u.matmul.ldc = dim;
	c.u.matmul.dtype = KZ_DT_F32;
	return c;
}

/* A user whose own limits are too short for his commands resets his own queue, however often, and nothing else. */
static void t_short_limits(void)
{
	struct kz_info i = { .argsz = sizeof(i) };
	struct kz_entry e = { .user_data = 1, .timeout_ms = 1 };
	struct kz_ioc_submit s = { .argsz = sizeof(s), .count = 1, .entries = (uintptr_t)&e };
	unsigned int round, expired = 0;
	struct kz_cmd nop = { 0 };
	double start, took;
	struct dev d, other;
	struct kz_done done;
	uint32_t n;

	dev_open(&other);
	dev_open(&d);
	e.cmd = slow(&d);
	s.queue = d.queue;
	start = seconds();
	CHECK(run(&d, &e.cmd, NULL), KZ_ST_OK);
	took = seconds() - start;
	for (round = 0; round < 200 && expired < 6 && !failures; round++) {
		s.done = 0;
		s.error = 0;
		CHECK(call(d.fd, KZ_IOC_SUBMIT, &s), 0);
		CHECK(reap(d.fd, d.queue, &done, 1, 1, 20000000000ll, &n), 0);
		CHECK(n, 1);
		if (done.status != KZ_ST_OK) /* never lost: only one that is late takes the queue down, and it is alone */
			CHECK(done.status, KZ_ST_EXPIRED);
		expired += done.status == KZ_ST_EXPIRED;
	}
	if (took > NOTICED) /* a faster device may be ready before the driver's clock ticks */
		CHECK(expired >= 6, 1);
	CHECK(run(&other, &nop, NULL), KZ_ST_OK);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	CHECK(call(d.fd, KZ_IOC_INFO, &i), 0);
	CHECK(i.generation, d.info.generation);
	printf("  %u of %u over their user's limit of 1 ms, in itself the command takes %.0f ms\n", expired, round, took * 1e3);
	dev_close(&d);
	dev_close(&other);
}

static void *unregister_all(void *arg)
{
	int fd = *(int *)arg;
	uint32_t handle;

	while (!stop) {
		for (handle = 1; handle <= 4; handle++) {
			struct kz_ioc_buf b = { .argsz = sizeof(b), .handle = handle };

			call(fd, KZ_IOC_BUF_UNREGISTER, &b);
		}
	}
	return NULL;
}

/* Handles can be guessed: one thread registers, the other unregisters what it has not been told of yet. */
static void t_handles(void)
{
	uint8_t *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct kz_info i = { .argsz = sizeof(i) };
	unsigned int round, handle;
	int fd = open_node();
	pthread_t thread;

	stop = false;
	CHECK(pthread_create(&thread, NULL, unregister_all, &fd), 0);
	for (round = 0; round < 20000 && !failures; round++) {
		struct kz_ioc_buf b = { .argsz = sizeof(b), .flags = KZ_BUF_DEVICE_READS, .addr = (uintptr_t)p, .len = 8192 };

		CHECK(call(fd, KZ_IOC_BUF_REGISTER, &b), 0);
		CHECK(b.handle >= 1 && b.handle <= 4096, 1);
		CHECK(b.base, KZ_HOST_ADDR(b.handle, 0));
		CHECK(b.segments >= 1 && b.segments <= 2, 1);
		memset(&i, 0, sizeof(i));
		i.argsz = sizeof(i);
		CHECK(call(fd, KZ_IOC_INFO, &i), 0);
		CHECK((int64_t)i.pinned >= 0, 1);
		b = (struct kz_ioc_buf){ .argsz = sizeof(b), .handle = b.handle };
		call(fd, KZ_IOC_BUF_UNREGISTER, &b); /* unless it has been */
	}
	stop = true;
	CHECK(pthread_join(thread, NULL), 0);
	for (handle = 1; handle <= 4096; handle++) {
		struct kz_ioc_buf b = { .argsz = sizeof(b), .handle = handle };

		call(fd, KZ_IOC_BUF_UNREGISTER, &b);
	}
	memset(&i, 0, sizeof(i));
	i.argsz = sizeof(i);
	CHECK(call(fd, KZ_IOC_INFO, &i), 0);
	CHECK(i.pinned, 0);
	close(fd);
	munmap(p, 8192);
}

enum { RESETS = 12 };

static void *by_call(void *arg)
{
	struct kz_ioc_reset r = { .argsz = sizeof(r), .kind = KZ_RESET_KIND_FIRMWARE };
	unsigned int i;
	int fd = *(int *)arg;
	intptr_t bad = 0;

	for (i = 0; i < RESETS; i++)
		bad += call(fd, KZ_IOC_RESET, &r) != 0;
	running--;
	return (void *)bad;
}

/* As an administrator does it, without the driver being asked. */
static void *from_outside(void *arg)
{
	const struct kz_info *info = arg;
	intptr_t bad = 0;
	char path[96];
	unsigned int i;
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.%x/reset", info->pci_domain, info->pci_bus,
		 info->pci_devfn >> 3, info->pci_devfn & 7);
	for (i = 0; i < RESETS; i++) {
		fd = open(path, O_WRONLY | O_CLOEXEC);
		bad += fd < 0 || write(fd, "1", 1) != 1;
		close(fd);
	}
	running--;
	return (void *)bad;
}

/* 0, or the status or -errno that no reset explains. */
static int try_once(int fd, unsigned int *good)
{
	struct kz_ioc_queue q = { .argsz = sizeof(q) };
	struct kz_ioc_ctx c = { .argsz = sizeof(c) };
	struct kz_cmd nop = { 0 };
	struct dev d = { .fd = fd };
	int rc = call(fd, KZ_IOC_CTX_CREATE, &c);

	if (rc)
		return rc == -ESTALE ? 0 : rc;
	rc = queue_create(fd, c.ctx, 3, 0, 0, &d.queue);
	if (!rc) {
		rc = run(&d, &nop, NULL);
		*good += rc == KZ_ST_OK;
		q.queue = d.queue;
		CHECK(call(fd, KZ_IOC_QUEUE_DESTROY, &q), 0);
	}
	CHECK(call(fd, KZ_IOC_CTX_DESTROY, &c), 0);
	return rc == -ESTALE || rc == KZ_ST_LOST ? 0 : rc;
}

/* Resets by the driver and from outside at the same time, with somebody on the device who makes contexts meanwhile. */
static void t_resets(void)
{
	struct kz_info i = { .argsz = sizeof(i) };
	pthread_t inner, outer;
	unsigned int good = 0;
	void *bad_call, *bad_write;
	struct pollfd p;
	int fd = open_node();

	CHECK(call(fd, KZ_IOC_INFO, &i), 0);
	running = 2;
	CHECK(pthread_create(&inner, NULL, by_call, &fd), 0);
	CHECK(pthread_create(&outer, NULL, from_outside, &i), 0);
	while (atomic_load(&running) && !failures)
		CHECK(try_once(fd, &good), 0);
	CHECK(pthread_join(inner, &bad_call), 0);
	CHECK(pthread_join(outer, &bad_write), 0);
	CHECK((intptr_t)bad_call, 0);
	CHECK((intptr_t)bad_write, 0);
	good = 0;
	CHECK(try_once(fd, &good), 0);
	CHECK(good, 1);
	i = (struct kz_info){ .argsz = sizeof(i) };
	CHECK(call(fd, KZ_IOC_INFO, &i), 0);
	CHECK(i.state, KZ_STATE_LIVE);
	p = (struct pollfd){ .fd = fd, .events = POLLIN | POLLPRI };
	CHECK(poll(&p, 1, 0), 0);
	close(fd);
}

const struct test races_tests[] = {
	{ "races.short_limits", t_short_limits },
	{ "races.handles", t_handles },
	{ "races.resets", t_resets },
	{ NULL, NULL }
};
