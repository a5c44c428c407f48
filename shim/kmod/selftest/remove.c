// SPDX-License-Identifier: GPL-2.0-or-later
/* The device goes away and comes back below its users; the driver sleeps and wakes; commands run out of time. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "selftest.h"

#define DRIVER "/sys/bus/pci/drivers/kz_accel/"

static char slot[32]; /* PCI address of the device */

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	int rc = fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;

	if (fd >= 0)
		close(fd);
	return rc;
}

static int read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return n < 0 ? -errno : 0;
}

static void find_slot(const struct kz_info *i)
{
	snprintf(slot, sizeof(slot), "%04x:%02x:%02x.%x", i->pci_domain, i->pci_bus, i->pci_devfn >> 3,
		 i->pci_devfn & 7);
}

/* The node appears when devtmpfs gets to it. */
static int wait_node(void)
{
	int tries, fd;

	for (tries = 0; tries < 500; tries++) {
		fd = open_node();
		if (fd >= 0) {
			close(fd);
			return 0;
		}
		poll(NULL, 0, 10);
	}
	return -ETIMEDOUT;
}

static void *unbind(void *unused)
{
	(void)unused;
	return (void *)(intptr_t)write_file(DRIVER "unbind", slot);
}

/* Unbound below an open file with commands in flight and a mapping; everything answers, nothing hangs; then again. */
static void t_unbind(void)
{
	struct kz_ioc_telemetry t = { .argsz = sizeof(t) };
	struct kz_done done[32];
	struct kz_cmd c[32];
	unsigned int round, i;
	struct pollfd p;
	pthread_t thread;
	struct dev d;
	void *rc, *map;
	uint32_t n;
	int res;

	for (round = 0; round < 10; round++) {
		dev_open(&d);
		CHECK(call(d.fd, KZ_IOC_TELEMETRY, &t), 0);
		CHECK(t.t.contexts, 1); /* nothing was left behind in the device */
		find_slot(&d.info);
		map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, d.map);
		CHECK(map == MAP_FAILED, 0);
		CHECK(faults(map), 0);
		for (i = 0; i < 32; i++)
			c[i] = cmd_copy(d.hbm, KZ_SP_HBM, d.host, KZ_SP_HOST, BUF_BYTES);
		CHECK(submit(&d, c, 32, NULL), 0);
		CHECK(pthread_create(&thread, NULL, unbind, NULL), 0);
		do { /* until the device has gone below it; what had ended is delivered first */
			res = reap(d.fd, d.queue, done, 32, 32, 20000000000ll, &n);
		} while (!res);
		CHECK(res, -ENODEV);
		CHECK(pthread_join(thread, &rc), 0);
		CHECK((intptr_t)rc, 0);
		CHECK(call(d.fd, KZ_IOC_TELEMETRY, &t), -ENODEV);
		CHECK(submit(&d, c, 1, NULL), -ENODEV);
		CHECK(faults(map), 1);
		p = (struct pollfd){ .fd = d.fd, .events = POLLIN };
		CHECK(poll(&p, 1, 0), 1);
		CHECK(p.revents, POLLERR | POLLHUP);
		CHECK(open_node() < 0, 1);
		munmap(map, 65536);
		if (round & 1) { /* closed before, or after, the device is back */
			dev_close(&d);
			CHECK(write_file(DRIVER "bind", slot), 0);
		} else {
			CHECK(write_file(DRIVER "bind", slot), 0);
			dev_close(&d);
		}
		CHECK(wait_node(), 0);
	}
}

/* Idle, it sleeps; a call wakes it; a context keeps it awake. */
static void t_runtime_pm(void)
{
	struct kz_ioc_telemetry t = { .argsz = sizeof(t) };
	struct kz_cmd nop = { 0 };
	char path[128], state[32] = "";
	unsigned int tries;
	struct dev d;
	int fd;

	dev_open(&d);
	find_slot(&d.info);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/power/control", slot);
	CHECK(write_file(path, "auto"), 0);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/power/runtime_status", slot);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	poll(NULL, 0, 3000); /* longer than the autosuspend delay */
	CHECK(read_file(path, state, sizeof(state)), 0);
	CHECK(strcmp(state, "active\n"), 0);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	dev_close(&d);
	for (tries = 0; tries < 1000 && strcmp(state, "suspended\n"); tries++) {
		poll(NULL, 0, 10);
		read_file(path, state, sizeof(state));
	}
	CHECK(strcmp(state, "suspended\n"), 0);
	fd = open_node();
	CHECK(call(fd, KZ_IOC_TELEMETRY, &t), 0);
	CHECK(t.t.version, KZ_TEL_VERSION);
	close(fd);
	dev_open(&d);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	dev_close(&d);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/power/control", slot);
	CHECK(write_file(path, "on"), 0);
}

/*
 * A command whose completion never comes (the guest's starter plants that) ends by the driver's limit; the queue goes
 * on. Without such a fault all commands end well, and the test says so.
 */
static void t_expired(void)
{
	struct kz_entry e = { .cmd = { .opcode = KZ_OP_TIMESTAMP }, .user_data = 7, .timeout_ms = 600 };
	struct kz_ioc_submit s = { .argsz = sizeof(s), .count = 1, .entries = (uintptr_t)&e };
	struct kz_ioc_queue_stat stat = { .argsz = sizeof(stat) };
	unsigned int i, expired = 0;
	struct kz_done done;
	struct dev d;
	uint32_t n;

	dev_open(&d);
	s.queue = d.queue;
	for (i = 0; i < 50; i++) {
		s.done = 0;
		s.error = 0;
		CHECK(call(d.fd, KZ_IOC_SUBMIT, &s), 0);
		CHECK(reap(d.fd, d.queue, &done, 1, 1, 20000000000ll, &n), 0);
		CHECK(n, 1);
		CHECK(done.user_data, 7);
		CHECK(done.status == KZ_ST_OK || done.status == KZ_ST_EXPIRED, 1);
		expired += done.status == KZ_ST_EXPIRED;
	}
	stat.queue = d.queue;
	CHECK(call(d.fd, KZ_IOC_QUEUE_STAT, &stat), 0);
	CHECK(stat.resets, expired);
	CHECK(stat.lost, expired);
	if (getenv("KZ_EXPECT_LATE"))
		CHECK(stat.found_late > 0 && stat.interrupts_lost + stat.interrupts_owed == stat.found_late, 1);
	if (getenv("KZ_EXPECT_EXPIRED"))
		CHECK(expired > 0, 1);
	printf("  %u of 50 ran out of time, %llu found without their interrupt\n", expired,
	       (unsigned long long)stat.found_late);
	dev_close(&d);
}

const struct test remove_tests[] = {
	{ "remove.expired", t_expired },
	{ "remove.unbind", t_unbind },
	{ "remove.runtime_pm", t_runtime_pm },
	{ NULL, NULL }
};
