// SPDX-License-Identifier: GPL-2.0-or-later
/* Runs the tests named by group or name prefix, or all; prints a line a test and a count. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "selftest.h"

unsigned int failures;

void fail(const char *file, int line, const char *what, long long got, long long wanted)
{
	if (failures++ < 8)
		printf("  %s:%d: %s is %lld, wanted %lld\n", file, line, what, got, wanted);
}

int call(int fd, unsigned long nr, void *args)
{
	return ioctl(fd, nr, args) < 0 ? -errno : 0;
}

int open_node(void)
{
	const char *node = getenv("KZ_NODE");

	return open(node ? node : "/dev/kz0", O_RDWR | O_CLOEXEC);
}

int queue_create(int fd, uint32_t ctx, uint32_t order, uint32_t flags, uint32_t timeout_ms, uint32_t *queue)
{
	struct kz_ioc_queue a = { .argsz = sizeof(a), .flags = flags, .ctx = ctx, .order = order, .timeout_ms = timeout_ms };
	int rc = call(fd, KZ_IOC_QUEUE_CREATE, &a);

	*queue = a.queue;
	return rc;
}

static void must(int rc, const char *what)
{
	if (rc >= 0)
		return;
	printf("cannot %s: %s\n", what, strerror(-rc));
	exit(1);
}

void dev_open(struct dev *d)
{
	struct kz_ioc_ctx ctx = { .argsz = sizeof(ctx) };
	struct kz_ioc_buf buf = { .argsz = sizeof(buf), .flags = KZ_BUF_DEVICE_READS | KZ_BUF_DEVICE_WRITES };
	struct kz_ioc_hbm hbm = { .argsz = sizeof(hbm), .len = 8 << 20 };

	memset(d, 0, sizeof(*d));
	d->fd = open_node();
	must(d->fd < 0 ? -errno : 0, "open the node");
	d->info.argsz = sizeof(d->info);
	must(call(d->fd, KZ_IOC_INFO, &d->info), "get INFO");
	must(call(d->fd, KZ_IOC_CTX_CREATE, &ctx), "create a context");
	d->ctx = ctx.ctx;
	must(queue_create(d->fd, d->ctx, DEPTH_ORDER, 0, 0, &d->queue), "create a queue");
	d->buf = mmap(NULL, BUF_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	buf.addr = (uintptr_t)d->buf;
	buf.len = BUF_BYTES;
	must(call(d->fd, KZ_IOC_BUF_REGISTER, &buf), "register a buffer");
	d->host = buf.base;
	hbm.ctx = d->ctx;
	must(call(d->fd, KZ_IOC_HBM_ALLOC, &hbm), "allocate HBM");
	d->hbm = hbm.addr;
	d->map = hbm.map;
}

void dev_close(struct dev *d)
{
	close(d->fd);
	munmap(d->buf, BUF_BYTES);
}

int submit(struct dev *d, const struct kz_cmd *cmd, unsigned int n, unsigned int *done)
{
	struct kz_entry *e = calloc(n, sizeof(*e));
	struct kz_ioc_submit a = { .argsz = sizeof(a), .queue = d->queue, .count = n, .entries = (uintptr_t)e };
	unsigned int i;
	int rc;

	for (i = 0; i < n; i++) {
		e[i].cmd = cmd[i];
		e[i].user_data = 1000 + i;
	}
	rc = call(d->fd, KZ_IOC_SUBMIT, &a);
	if (done)
		*done = a.done;
	free(e);
	return rc;
}

int reap(int fd, uint32_t queue, struct kz_done *to, uint32_t max, uint32_t min, int64_t timeout_ns, uint32_t *n)
{
	struct kz_ioc_reap a = { .argsz = sizeof(a), .queue = queue, .max = max, .min = min, .timeout_ns = timeout_ns,
				 .entries = (uintptr_t)to };
	int rc = call(fd, KZ_IOC_REAP, &a);

	*n = a.count;
	return rc;
}

double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int run(struct dev *d, const struct kz_cmd *cmd, uint64_t *result)
{
	struct kz_done done = { 0 };
	uint32_t n;
	int rc = submit(d, cmd, 1, NULL);

	if (!rc)
		rc = reap(d->fd, d->queue, &done, 1, 1, 20000000000ll, &n);
	if (rc)
		return rc;
	if (n != 1)
		return -ETIME;
	if (result)
		*result = done.result;
	return done.status;
}

struct kz_cmd cmd_copy(uint64_t dst, uint8_t dst_space, uint64_t src, uint8_t src_space, uint64_t len)
{
	struct kz_cmd c = { .opcode = KZ_OP_COPY };

	c.u.copy.src = src;
	c.u.copy.dst = dst;
	c.u.copy.len = len;
	c.u.copy.src_space = src_space;
	c.u.copy.dst_space = dst_space;
	return c;
}

void fill_pattern(uint8_t *p, size_t n, uint32_t seed)
{
	size_t i;

	for (i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		p[i] = seed >> 24;
	}
}

uint32_t crc32c(const uint8_t *p, size_t n)
{
	uint32_t crc = ~0u;
	int bit;

	while (n--) {
		crc ^= *p++;
		for (bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return ~crc;
}

int main(int argc, char **argv)
{
	const struct test *groups[] = { basic_tests, abi_tests, uring_tests, life_tests, remove_tests, races_tests, endings_tests, events_tests };
	unsigned int passed = 0, failed = 0, g;
	const struct test *t;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
		for (t = groups[g]; t->name; t++) {
			struct timespec a, b;

			if (argc > 1 ? strncmp(t->name, argv[1], strlen(argv[1])) : groups[g] == events_tests)
				continue; /* those need somebody outside the guest */
			failures = 0;
			clock_gettime(CLOCK_MONOTONIC, &a);
			t->fn();
			clock_gettime(CLOCK_MONOTONIC, &b);
			printf("%s %s (%.3f s)\n", failures ? "FAIL" : "ok", t->name,
			       b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) / 1e9);
			failures ? failed++ : passed++;
		}
	}
	printf("%u passed, %u failed\n", passed, failed);
	return failed || !passed;
}
