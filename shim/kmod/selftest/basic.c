// SPDX-License-Identifier: GPL-2.0-or-later
/* What the device is for: commands of every kind, through every way of naming memory. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "selftest.h"

static void t_info(void)
{
	struct dev d;

	dev_open(&d);
	CHECK(d.info.driver_abi, KZ_DRIVER_ABI);
	CHECK(d.info.state, KZ_STATE_LIVE);
	CHECK(d.info.hbm_page, 65536);
	CHECK(d.info.pci_bus != 0 || d.info.pci_devfn != 0, 1);
	dev_close(&d);
}

static void t_nop(void)
{
	struct kz_cmd nops[32] = { { 0 } };
	struct kz_done done[32];
	unsigned int round, i, got;
	struct dev d;
	uint32_t n;

	dev_open(&d);
	for (round = 0; round < 8; round++) { /* several times around the ring */
		CHECK(submit(&d, nops, 32, &got), 0);
		CHECK(got, 32);
		CHECK(submit(&d, nops, 1, &got), -EBUSY);
		CHECK(reap(d.fd, d.queue, done, 32, 32, 10000000000ll, &n), 0);
		CHECK(n, 32);
		for (i = 0; i < n; i++) {
			CHECK(done[i].status, KZ_ST_OK);
			CHECK(done[i].user_data >= 1000 && done[i].user_data < 1032, 1);
		}
	}
	dev_close(&d);
}

/* To HBM and back at sizes and offsets around pages and around what one scatter list holds. */
static void t_copy(void)
{
	static const uint32_t sizes[] = { 1, 63, 64, 65, 4095, 4096, 4097, 1048575, 1048576, 1048577, 1500001 };
	struct dev d;
	unsigned int i;

	dev_open(&d);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t len = sizes[i], from = 17 * i, to = (2u << 20) + 5 * i;
		struct kz_cmd up = cmd_copy(d.hbm + i, KZ_SP_HBM, d.host + from, KZ_SP_HOST, len);
		struct kz_cmd down = cmd_copy(d.host + to, KZ_SP_HOST, d.hbm + i, KZ_SP_HBM, len);

		fill_pattern(d.buf + from, len, i);
		memset(d.buf + to - 64 * (i > 12), 0xee, len + 64);
		CHECK(run(&d, &up, NULL), KZ_ST_OK);
		CHECK(run(&d, &down, NULL), KZ_ST_OK);
		CHECK(memcmp(d.buf + from, d.buf + to, len), 0);
		CHECK(d.buf[to + len], 0xee);
	}
	dev_close(&d);
}

static void t_copy_host_to_host(void)
{
	uint32_t len = 1900001, to = (2u << 20) + 13;
	struct dev d;
	struct kz_cmd c;

	dev_open(&d);
	fill_pattern(d.buf, len, 5);
	memset(d.buf + to, 0, len + 1);
	c = cmd_copy(d.host + to, KZ_SP_HOST, d.host + 7, KZ_SP_HOST, len);
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	CHECK(memcmp(d.buf + 7, d.buf + to, len), 0);
	CHECK(d.buf[to + len], 0);
	dev_close(&d);
}

/* A FILL of host memory is cut at every page that does not follow the one before; the pattern must not notice. */
static void t_fill_host(void)
{
	struct kz_cmd c = { .opcode = KZ_OP_FILL };
	uint64_t pattern = 0x0123456789abcdefull;
	uint32_t len = 100003, at = 5, i;
	struct dev d;

	dev_open(&d);
	memset(d.buf, 0, 1 << 18);
	c.u.fill.dst = d.host + at;
	c.u.fill.len = len;
	c.u.fill.pattern = pattern;
	c.u.fill.dst_space = KZ_SP_HOST;
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	for (i = 0; i < len; i++)
		CHECK(d.buf[at + i], (pattern >> (8 * (i % 8))) & 0xff);
	CHECK(d.buf[at - 1], 0);
	CHECK(d.buf[at + len], 0);
	dev_close(&d);
}

static void t_crc_host(void)
{
	static const uint32_t sizes[] = { 1, 9, 4096, 70001, 1048579 };
	struct kz_cmd c = { .opcode = KZ_OP_CRC32C };
	uint64_t result;
	unsigned int i;
	struct dev d;

	CHECK(crc32c((const uint8_t *)"123456789", 9), 0xe3069283); /* RFC 3720's check value */
	dev_open(&d);
	fill_pattern(d.buf, 2 << 20, 77);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		c.u.crc.src = d.host + 3;
		c.u.crc.len = sizes[i];
		c.u.crc.src_space = KZ_SP_HOST;
		CHECK(run(&d, &c, &result), KZ_ST_OK);
		CHECK(result, crc32c(d.buf + 3, sizes[i]));
	}
	dev_close(&d);
}

/* A small product of small integers against a plain triple loop. */
static void t_matmul(void)
{
	enum { M = 7, N = 5, K = 9 };
	struct kz_cmd c = { .opcode = KZ_OP_MATMUL };
	int8_t *a, *b;
	int32_t *out;
	struct kz_cmd up, down;
	unsigned int i, j, k;
	struct dev d;

	dev_open(&d);
	a = (int8_t *)d.buf;
	b = (int8_t *)d.buf + 4096;
	out = (int32_t *)(d.buf + 8192);
	fill_pattern(d.buf, 8192, 9);
	up = cmd_copy(d.hbm, KZ_SP_HBM, d.host, KZ_SP_HOST, 8192);
	CHECK(run(&d, &up, NULL), KZ_ST_OK);
	c.u.matmul.a = d.hbm;
	c.u.matmul.b = d.hbm + 4096;
	c.u.matmul.c = d.hbm + 8192;
	c.u.matmul.m = M;
	c.u.matmul.n = N;
	c.u.matmul.k = K;
	c.u.matmul.lda = K;
	c.u.matmul.ldb = N;
	c.u.matmul.ldc = N;
	c.u.matmul.dtype = KZ_DT_S8;
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	down = cmd_copy(d.host + 8192, KZ_SP_HOST, d.hbm + 8192, KZ_SP_HBM, sizeof(int32_t) * M * N);
	CHECK(run(&d, &down, NULL), KZ_ST_OK);
	for (i = 0; i < M; i++) {
		for (j = 0; j < N; j++) {
			int32_t sum = 0;

			for (k = 0; k < K; k++)
				sum += a[i * K + k] * b[k * N + j];
			CHECK(out[i * N + j], sum);
		}
	}
	dev_close(&d);
}

/* Reads that must fail are logged; the log is longer than a page, so it may be scattered. */
static void t_march_log(void)
{
	enum { WORDS = 256 };
	struct kz_cmd fill = { .opcode = KZ_OP_FILL }, c = { .opcode = KZ_OP_MARCH };
	struct kz_march_fail *log;
	uint64_t result;
	struct dev d;
	unsigned int i;

	dev_open(&d);
	log = (struct kz_march_fail *)(d.buf + 4000);
	memset(log, 0, (WORDS + 1) * sizeof(*log));
	fill.u.fill.dst = d.hbm;
	fill.u.fill.len = WORDS * 8;
	fill.u.fill.pattern = 0x55;
	fill.u.fill.dst_space = KZ_SP_HBM;
	CHECK(run(&d, &fill, NULL), KZ_ST_OK);
	c.u.march.addr = d.hbm;
	c.u.march.len = WORDS * 8;
	c.u.march.log = d.host + 4000;
	c.u.march.log_max = WORDS;
	c.u.march.nops = 1;
	c.u.march.ops[0] = KZ_MARCH_R0;
	CHECK(run(&d, &c, &result), KZ_ST_OK);
	CHECK(result, WORDS);
	for (i = 0; i < WORDS; i++) {
		CHECK(log[i].addr, d.hbm + 8 * i);
		CHECK(log[i].read, 0x55);
		CHECK(log[i].expected, 0);
	}
	CHECK(log[WORDS].addr, 0);
	dev_close(&d);
}

static void t_bad_places(void)
{
	struct kz_cmd c;
	struct dev d;

	dev_open(&d);
	c = cmd_copy(d.hbm, KZ_SP_HBM, d.host + BUF_BYTES, KZ_SP_HOST, 1);
	CHECK(run(&d, &c, NULL), KZ_ST_DMA_FAULT);
	c = cmd_copy(d.hbm, KZ_SP_HBM, d.host + BUF_BYTES - 1, KZ_SP_HOST, 2);
	CHECK(run(&d, &c, NULL), KZ_ST_DMA_FAULT);
	c = cmd_copy(d.hbm, KZ_SP_HBM, KZ_HOST_ADDR(4000, 0), KZ_SP_HOST, 64);
	CHECK(run(&d, &c, NULL), KZ_ST_DMA_FAULT);
	c = cmd_copy(d.hbm, KZ_SP_HBM, 0x1000, KZ_SP_HOST, 64); /* a bus address is no address here */
	CHECK(run(&d, &c, NULL), KZ_ST_DMA_FAULT);
	c = cmd_copy(d.hbm, KZ_SP_HBM, d.host, KZ_SP_HOST, 0);
	CHECK(run(&d, &c, NULL), KZ_ST_BAD_LENGTH);
	c = cmd_copy(d.hbm, KZ_SP_HBM, d.host, KZ_SP_HOST, ~0ull);
	CHECK(run(&d, &c, NULL), KZ_ST_BAD_LENGTH);
	c = cmd_copy(1ull << 60, KZ_SP_HBM, d.host, KZ_SP_HOST, 64);
	CHECK(run(&d, &c, NULL), KZ_ST_HBM_FAULT);
	c = (struct kz_cmd){ .opcode = KZ_OP_CTX_CREATE };
	CHECK(run(&d, &c, NULL), KZ_ST_DENIED);
	c = (struct kz_cmd){ .opcode = 0xf0 };
	CHECK(run(&d, &c, NULL), KZ_ST_BAD_OPCODE);
	dev_close(&d);
}

static void t_read_only_buffer(void)
{
	struct kz_ioc_buf a = { .argsz = sizeof(a), .flags = KZ_BUF_DEVICE_READS, .len = 4096 };
	struct kz_cmd c;
	struct dev d;
	void *p;

	dev_open(&d);
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	a.addr = (uintptr_t)p;
	CHECK(call(d.fd, KZ_IOC_BUF_REGISTER, &a), 0);
	fill_pattern(p, 4096, 21); /* first touched here: the device must see these pages, not those of before */
	c = cmd_copy(d.hbm, KZ_SP_HBM, a.base, KZ_SP_HOST, 4096);
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	c = cmd_copy(d.host, KZ_SP_HOST, d.hbm, KZ_SP_HBM, 4096);
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	CHECK(memcmp(d.buf, p, 4096), 0);
	c = cmd_copy(a.base, KZ_SP_HOST, d.hbm, KZ_SP_HBM, 4096);
	CHECK(run(&d, &c, NULL), KZ_ST_DMA_FAULT);
	a = (struct kz_ioc_buf){ .argsz = sizeof(a), .handle = a.handle };
	CHECK(call(d.fd, KZ_IOC_BUF_UNREGISTER, &a), 0);
	CHECK(call(d.fd, KZ_IOC_BUF_UNREGISTER, &a), -ENOENT);
	munmap(p, 4096);
	dev_close(&d);
}

static void t_polled(void)
{
	struct kz_cmd nop = { 0 };
	uint32_t irq_queue, queue, n;
	struct kz_done done;
	struct dev d;

	dev_open(&d);
	irq_queue = d.queue;
	CHECK(queue_create(d.fd, d.ctx, 3, KZ_QUEUE_POLLED, 0, &queue), 0);
	d.queue = queue;
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	CHECK(submit(&d, &nop, 1, NULL), 0);
	while (!reap(d.fd, queue, &done, 1, 0, 0, &n) && !n)
		;
	CHECK(n, 1);
	d.queue = irq_queue;
	dev_close(&d);
}

static void t_poll(void)
{
	struct kz_cmd nop = { 0 };
	struct kz_done done;
	struct pollfd p;
	struct dev d;
	uint32_t n;

	dev_open(&d);
	p = (struct pollfd){ .fd = d.fd, .events = POLLIN | POLLPRI };
	CHECK(poll(&p, 1, 0), 0);
	CHECK(submit(&d, &nop, 1, NULL), 0);
	CHECK(poll(&p, 1, 10000), 1);
	CHECK(p.revents, POLLIN);
	CHECK(reap(d.fd, d.queue, &done, 1, 1, 0, &n), 0);
	CHECK(poll(&p, 1, 0), 0);
	dev_close(&d);
}

/* Readable memory that is not writable, and a shared file's, can be registered for reading all the same. */
static void t_not_writable(void)
{
	struct kz_ioc_buf a = { .argsz = sizeof(a), .flags = KZ_BUF_DEVICE_READS, .len = 8192 };
	int file = memfd_create("kz", MFD_CLOEXEC);
	uint8_t pattern[8192], *p;
	struct kz_cmd c;
	struct dev d;

	dev_open(&d);
	fill_pattern(pattern, sizeof(pattern), 33);
	CHECK(write(file, pattern, sizeof(pattern)), sizeof(pattern));
	p = mmap(NULL, 8192, PROT_READ, MAP_SHARED, file, 0);
	a.addr = (uintptr_t)p;
	CHECK(call(d.fd, KZ_IOC_BUF_REGISTER, &a), 0);
	c = cmd_copy(d.hbm, KZ_SP_HBM, a.base, KZ_SP_HOST, 8192);
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	c = cmd_copy(d.host, KZ_SP_HOST, d.hbm, KZ_SP_HBM, 8192);
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	CHECK(memcmp(d.buf, pattern, 8192), 0);
	a = (struct kz_ioc_buf){ .argsz = sizeof(a), .flags = KZ_BUF_DEVICE_WRITES, .addr = (uintptr_t)p, .len = 8192 };
	CHECK(call(d.fd, KZ_IOC_BUF_REGISTER, &a), -EFAULT);
	munmap(p, 8192);
	close(file);
	dev_close(&d);
}

/* What a queue leaves unreaped goes with it: nobody is told of completions that nobody can fetch. */
static void t_poll_after_destroy(void)
{
	struct kz_ioc_queue q = { .argsz = sizeof(q) };
	struct kz_cmd c[32], nop = { 0 };
	struct pollfd p;
	unsigned int i;
	struct dev d;

	dev_open(&d);
	for (i = 0; i < 32; i++)
		c[i] = cmd_copy(d.hbm, KZ_SP_HBM, d.host, KZ_SP_HOST, BUF_BYTES);
	CHECK(submit(&d, c, 32, NULL), 0);
	q.queue = d.queue;
	CHECK(call(d.fd, KZ_IOC_QUEUE_DESTROY, &q), 0);
	p = (struct pollfd){ .fd = d.fd, .events = POLLIN | POLLPRI };
	CHECK(poll(&p, 1, 0), 0);
	CHECK(queue_create(d.fd, d.ctx, DEPTH_ORDER, 0, 0, &d.queue), 0);
	CHECK(poll(&p, 1, 0), 0);
	CHECK(submit(&d, &nop, 1, NULL), 0);
	CHECK(poll(&p, 1, 10000), 1);
	CHECK(p.revents, POLLIN);
	dev_close(&d);
}

static void t_mmap(void)
{
	struct kz_cmd c;
	uint8_t *map;
	struct dev d;

	dev_open(&d);
	map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, d.map);
	CHECK(map == MAP_FAILED, 0);
	if (map == MAP_FAILED)
		goto out;
	fill_pattern(d.buf, 1 << 20, 3);
	c = cmd_copy(d.hbm, KZ_SP_HBM, d.host, KZ_SP_HOST, 1 << 20);
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	CHECK(memcmp(map, d.buf, 1 << 20), 0);
	map[70000] ^= 0xff;
	c = cmd_copy(d.host + 70000, KZ_SP_HOST, d.hbm + 70000, KZ_SP_HBM, 1);
	d.buf[70000] = 0;
	CHECK(run(&d, &c, NULL), KZ_ST_OK);
	CHECK(d.buf[70000], map[70000]);
	munmap(map, 1 << 20);
out:
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, d.fd, d.map + (8 << 20)) == MAP_FAILED, 1);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, d.fd, d.map + (1ull << KZ_MMAP_SHIFT)) == MAP_FAILED, 1);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, d.fd, d.map) == MAP_FAILED, 1);
	CHECK(mmap(NULL, 16 << 20, PROT_READ, MAP_SHARED, d.fd, d.map) == MAP_FAILED, 1);
	dev_close(&d);
}

static void t_telemetry(void)
{
	struct kz_ioc_telemetry t = { .argsz = sizeof(t) };
	struct kz_ioc_reg r = { .argsz = sizeof(r), .offset = KZ_IOC_TYPE };
	struct dev d;

	dev_open(&d);
	CHECK(call(d.fd, KZ_IOC_TELEMETRY, &t), 0);
	CHECK(t.t.version, KZ_TEL_VERSION);
	CHECK(t.t.hbm_bytes, d.info.hbm_bytes);
	CHECK(t.t.contexts >= 1, 1);
	CHECK(call(d.fd, KZ_IOC_REG_READ, &r), -EACCES);
	r.offset = 0; /* MAGIC */
	CHECK(call(d.fd, KZ_IOC_REG_READ, &r), 0);
	CHECK(r.value, 0x50545a4b);
	dev_close(&d);
}

const struct test basic_tests[] = {
	{ "basic.info", t_info },
	{ "basic.nop", t_nop },
	{ "basic.copy", t_copy },
	{ "basic.copy_host_to_host", t_copy_host_to_host },
	{ "basic.fill_host", t_fill_host },
	{ "basic.crc_host", t_crc_host },
	{ "basic.matmul", t_matmul },
	{ "basic.march_log", t_march_log },
	{ "basic.bad_places", t_bad_places },
	{ "basic.read_only_buffer", t_read_only_buffer },
	{ "basic.polled", t_polled },
	{ "basic.poll", t_poll },
	{ "basic.not_writable", t_not_writable },
	{ "basic.poll_after_destroy", t_poll_after_destroy },
	{ "basic.mmap", t_mmap },
	{ "basic.telemetry", t_telemetry },
	{ NULL, NULL }
};
