// SPDX-License-Identifier: GPL-2.0-or-later
/* The edges of the calls: sizes, flags, reserved fields, limits, rights. */
#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

static void t_args(void)
{
	struct kz_ioc_reg r = { .argsz = sizeof(r), .flags = KZ_CALL_NOWAIT };
	uint8_t *page, *end;
	struct kz_info *i;
	struct dev d;

	dev_open(&d);
	page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(page + 4096, 4096, PROT_NONE);
	end = page + 4096;
	i = (struct kz_info *)(end - sizeof(*i));
	i->argsz = sizeof(*i);
	CHECK(call(d.fd, KZ_IOC_INFO, i), 0); /* not a byte beyond the end */
	memset(i, 0, sizeof(*i));
	i->argsz = sizeof(*i) - 1;
	CHECK(call(d.fd, KZ_IOC_INFO, i), -EINVAL);
	i->argsz = 0;
	CHECK(call(d.fd, KZ_IOC_INFO, i), -EINVAL);
	i->argsz = sizeof(*i) + 8;
	CHECK(call(d.fd, KZ_IOC_INFO, i), -EFAULT);
	i = (struct kz_info *)(end - sizeof(*i) - 8);
	memset(i, 0, sizeof(*i) + 8);
	i->argsz = sizeof(*i) + 8;
	CHECK(call(d.fd, KZ_IOC_INFO, i), 0); /* a newer caller, with nothing in what we do not know */
	CHECK(i->argsz, sizeof(*i));
	memset(i, 0, sizeof(*i) + 8);
	i->argsz = sizeof(*i) + 8;
	end[-1] = 1;
	CHECK(call(d.fd, KZ_IOC_INFO, i), -E2BIG);
	i->argsz = sizeof(*i);
	i->flags = 1;
	CHECK(call(d.fd, KZ_IOC_INFO, i), -EINVAL);
	i->flags = KZ_CALL_NOWAIT; /* it needs no device */
	CHECK(call(d.fd, KZ_IOC_INFO, i), -EINVAL);
	CHECK(call(d.fd, KZ_IOC_REG_READ, &r), 0);
	CHECK(r.flags, KZ_CALL_NOWAIT);
	CHECK(call(d.fd, KZ_IOC_INFO, NULL), -EFAULT);
	CHECK(call(d.fd, _IO(KZ_IOC_TYPE, 0x7f), i), -ENOTTY);
	CHECK(call(d.fd, _IO(KZ_IOC_TYPE + 1, 0), i), -ENOTTY);
	CHECK(call(d.fd, _IOR(KZ_IOC_TYPE, 0, int), i), -ENOTTY);
	munmap(page, 8192);
	dev_close(&d);
}

static void t_limits(void)
{
	struct kz_ioc_buf b = { .argsz = sizeof(b), .flags = KZ_BUF_DEVICE_READS, .addr = 4096, .len = 1ull << 40 };
	struct kz_ioc_hbm h = { .argsz = sizeof(h) };
	struct kz_ioc_reap r = { .argsz = sizeof(r) };
	struct dev d;
	uint32_t q;

	dev_open(&d);
	CHECK(queue_create(d.fd, d.ctx, 0, 0, 0, &q), -EINVAL);
	CHECK(queue_create(d.fd, d.ctx, d.info.max_order + 1, 0, 0, &q), -EINVAL);
	CHECK(queue_create(d.fd, d.ctx, 0xffffffff, 0, 0, &q), -EINVAL);
	CHECK(queue_create(d.fd, d.ctx, 3, 0x80, 0, &q), -EINVAL);
	CHECK(queue_create(d.fd, d.ctx + 77, 3, 0, 0, &q), -ENOENT);
	CHECK(call(d.fd, KZ_IOC_BUF_REGISTER, &b), -EINVAL);
	b = (struct kz_ioc_buf){ .argsz = sizeof(b), .flags = KZ_BUF_DEVICE_READS, .addr = ~0ull - 4095, .len = 8192 };
	CHECK(call(d.fd, KZ_IOC_BUF_REGISTER, &b), -EINVAL);
	b = (struct kz_ioc_buf){ .argsz = sizeof(b), .flags = KZ_BUF_DEVICE_READS, .addr = 4096, .len = 4096 };
	CHECK(call(d.fd, KZ_IOC_BUF_REGISTER, &b), -EFAULT);
	b = (struct kz_ioc_buf){ .argsz = sizeof(b), .flags = 0, .addr = (uintptr_t)d.buf, .len = 4096 };
	CHECK(call(d.fd, KZ_IOC_BUF_REGISTER, &b), -EINVAL);
	h.ctx = d.ctx;
	CHECK(call(d.fd, KZ_IOC_HBM_ALLOC, &h), -EINVAL);
	h = (struct kz_ioc_hbm){ .argsz = sizeof(h), .ctx = d.ctx, .len = ~0ull };
	CHECK(call(d.fd, KZ_IOC_HBM_ALLOC, &h), -ENOMEM);
	CHECK(h.status, KZ_ST_NO_MEMORY);
	h = (struct kz_ioc_hbm){ .argsz = sizeof(h), .ctx = d.ctx, .len = d.info.hbm_bytes };
	CHECK(call(d.fd, KZ_IOC_HBM_ALLOC, &h), -EDQUOT); /* with the 8 MiB held already */
	h = (struct kz_ioc_hbm){ .argsz = sizeof(h), .ctx = d.ctx, .addr = d.hbm + 65536 };
	CHECK(call(d.fd, KZ_IOC_HBM_FREE, &h) < 0, 1);
	h = (struct kz_ioc_hbm){ .argsz = sizeof(h), .ctx = d.ctx, .addr = d.hbm };
	CHECK(call(d.fd, KZ_IOC_HBM_FREE, &h), 0);
	CHECK(call(d.fd, KZ_IOC_HBM_FREE, &h) < 0, 1);
	r.queue = d.queue;
	CHECK(call(d.fd, KZ_IOC_REAP, &r), -EINVAL);
	dev_close(&d);
}

static bool kernel_warned(void)
{
	unsigned long taint = 0;
	FILE *f = fopen("/proc/sys/kernel/tainted", "r");

	if (!f || fscanf(f, "%lu", &taint) != 1)
		fail(__FILE__, __LINE__, "the kernel's taint cannot be read", 0, 1);
	if (f)
		fclose(f);
	return taint & (1ul << 9);
}

/* The longest buffer that can be named: no memory, and no warning of the kernel that there is none. */
static void t_longest_buffer(void)
{
	struct kz_ioc_buf b = { .argsz = sizeof(b), .flags = KZ_BUF_DEVICE_READS, .addr = 4096, .len = (1ull << 40) - 1 };
	bool before = kernel_warned();
	int fd = open_node();
	int rc = call(fd, KZ_IOC_BUF_REGISTER, &b);

	CHECK(rc == -ENOMEM || rc == -EFAULT, 1);
	CHECK(kernel_warned(), before);
	close(fd);
}

/* Where DMA is bounced (swiotlb=force) a buffer that stays mapped would be stale on one side: refused, not corrupted. */
static void t_bounced(void)
{
	struct kz_ioc_buf b = { .argsz = sizeof(b), .flags = KZ_BUF_DEVICE_READS, .len = 4096 };
	uint8_t *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char line[4096] = "";
	FILE *f = fopen("/proc/cmdline", "r");
	int fd = open_node();

	CHECK(f && fgets(line, sizeof(line), f), 1);
	if (f)
		fclose(f);
	b.addr = (uintptr_t)p;
	CHECK(call(fd, KZ_IOC_BUF_REGISTER, &b), strstr(line, "swiotlb=force") ? -EOPNOTSUPP : 0);
	close(fd);
	munmap(p, 4096);
}

/* In a child without privileges: what needs them is refused, what does not works. */
static void unprivileged(void)
{
	struct kz_ioc_reset r = { .argsz = sizeof(r), .kind = KZ_RESET_KIND_FUNCTION };
	struct kz_ioc_fw f = { .argsz = sizeof(f) };
	struct kz_ioc_ecc e = { .argsz = sizeof(e) };
	struct kz_ioc_reg w = { .argsz = sizeof(w), .offset = 0x7c };
	struct kz_ioc_hbm h = { .argsz = sizeof(h), .len = 65536 };
	struct kz_ioc_buf b = { .argsz = sizeof(b), .flags = KZ_BUF_DEVICE_READS };
	struct rlimit limit = { 1 << 20, 1 << 20 };
	struct kz_cmd nop = { 0 };
	struct dev d;
	uint32_t q;

	dev_open(&d);
	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	CHECK(setgroups(0, NULL), 0);
	CHECK(setresgid(1000, 1000, 1000), 0);
	CHECK(setresuid(1000, 1000, 1000), 0);
	CHECK(call(d.fd, KZ_IOC_RESET, &r), -EPERM);
	CHECK(call(d.fd, KZ_IOC_FW_UPDATE, &f), -EPERM);
	CHECK(call(d.fd, KZ_IOC_ECC_INJECT, &e), -EPERM);
	CHECK(call(d.fd, KZ_IOC_REG_WRITE, &w), -EPERM);
	CHECK(call(d.fd, KZ_IOC_HBM_ALLOC, &h), -EPERM); /* in context 0 */
	CHECK(queue_create(d.fd, KZ_CTX_ROOT, 3, 0, 0, &q), -EPERM);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, d.fd, 0) == MAP_FAILED, 1);
	b.addr = (uintptr_t)d.buf;
	b.len = 2 << 20; /* beyond the limit, beside the 4 MiB from before */
	CHECK(call(d.fd, KZ_IOC_BUF_REGISTER, &b), -ENOMEM);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	CHECK(open_node() < 0, 1); /* mode 0660 */
	dev_close(&d);
}

static void t_rights(void)
{
	struct stat s;
	int status;
	pid_t pid;

	CHECK(stat("/dev/kz0", &s), 0);
	CHECK(s.st_mode & 07777, 0660);
	pid = fork();
	if (!pid) {
		unprivileged();
		exit(failures != 0);
	}
	CHECK(waitpid(pid, &status, 0), pid);
	CHECK(status, 0);
}

/* A context sees neither another file's handles nor what was in the memory it gets. */
static void t_isolation(void)
{
	struct kz_ioc_ctx c = { .argsz = sizeof(c) };
	struct kz_cmd cmd;
	unsigned int round, i, dirty = 0;
	struct dev a, b;

	dev_open(&a);
	dev_open(&b);
	c.ctx = a.ctx;
	CHECK(call(b.fd, KZ_IOC_CTX_DESTROY, &c), -ENOENT);
	for (round = 0; round < 4; round++) {
		memset(a.buf, 0xa5, BUF_BYTES);
		cmd = cmd_copy(a.hbm, KZ_SP_HBM, a.host, KZ_SP_HOST, BUF_BYTES);
		CHECK(run(&a, &cmd, NULL), KZ_ST_OK);
		dev_close(&a);
		dev_open(&a);
		cmd = cmd_copy(a.host, KZ_SP_HOST, a.hbm, KZ_SP_HBM, BUF_BYTES);
		CHECK(run(&a, &cmd, NULL), KZ_ST_OK);
		for (i = 0; i < BUF_BYTES; i++)
			dirty += a.buf[i] != 0;
	}
	CHECK(dirty, 0);
	dev_close(&b);
	dev_close(&a);
}

static void t_accounts(void)
{
	struct kz_info i = { .argsz = sizeof(i) };
	struct kz_ioc_buf b = { .argsz = sizeof(b) };
	struct kz_ioc_queue_stat s = { .argsz = sizeof(s) };
	struct kz_cmd nop = { 0 };
	struct dev d;

	dev_open(&d);
	CHECK(call(d.fd, KZ_IOC_INFO, &i), 0);
	CHECK(i.hbm_used, 8 << 20);
	CHECK(i.pinned, BUF_BYTES);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	s.queue = d.queue;
	CHECK(call(d.fd, KZ_IOC_QUEUE_STAT, &s), 0);
	CHECK(s.submitted, 1);
	CHECK(s.completed, 1);
	CHECK(s.outstanding, 0);
	CHECK(s.entries, 1);
	CHECK(s.unknown_cid + s.repeated_cid + s.wrong_queue + s.bad_sq_head + s.lost, 0);
	b.handle = d.host >> KZ_HOST_SHIFT;
	CHECK(call(d.fd, KZ_IOC_BUF_UNREGISTER, &b), 0);
	memset(&i, 0, sizeof(i));
	i.argsz = sizeof(i);
	CHECK(call(d.fd, KZ_IOC_INFO, &i), 0);
	CHECK(i.pinned, 0);
	dev_close(&d);
}

const struct test abi_tests[] = {
	{ "abi.args", t_args },
	{ "abi.limits", t_limits },
	{ "abi.longest_buffer", t_longest_buffer },
	{ "abi.bounced", t_bounced },
	{ "abi.rights", t_rights },
	{ "abi.isolation", t_isolation },
	{ "abi.accounts", t_accounts },
	{ NULL, NULL }
};
