// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Bus errors below a user with commands in flight. Somebody outside the guest makes them at the port above the device
 * when the line "event: inject NAME" appears on the console: QEMU's monitor, "pcie_aer_inject_error rp0 NAME". Run by
 * name only.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "selftest.h"

#define PATIENCE 90 /* s, for an outsider on a busy host and for a recovery */

struct errors {
	unsigned int seen, recovered; /* non-fatal and fatal, of the driver */
	unsigned long port; /* all that the kernel has counted at the port above */
};

static void ask_for(const char *name)
{
	printf("event: inject %s\n", name);
	fflush(stdout);
}

/* The "TOTAL_ERR_..." line at the end of an attribute of the port. */
static unsigned long total(const char *dir, const char *attribute)
{
	char path[PATH_MAX], line[128];
	unsigned long n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, attribute);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "TOTAL_ERR_%*s %lu", &n);
	if (f)
		fclose(f);
	return n;
}

static void look(const struct kz_info *i, struct errors *e)
{
	char link[128], dir[PATH_MAX], *slash;
	unsigned int corrected;
	FILE *f = fopen("/sys/class/kz/kz0/errors", "r");

	memset(e, 0, sizeof(*e));
	if (!f || fscanf(f, "corrected %u seen %u recovered %u", &corrected, &e->seen, &e->recovered) != 3)
		fail(__FILE__, __LINE__, "errors of kz0 cannot be read", 0, 1);
	if (f)
		fclose(f);
	snprintf(link, sizeof(link), "/sys/bus/pci/devices/%04x:%02x:%02x.%x", i->pci_domain, i->pci_bus,
		 i->pci_devfn >> 3, i->pci_devfn & 7);
	if (!realpath(link, dir))
		return;
	slash = strrchr(dir, '/');
	*slash = 0;
	e->port = total(dir, "aer_dev_correctable") + total(dir, "aer_dev_nonfatal") + total(dir, "aer_dev_fatal");
}

/* Until `done` says so, or the patience is over. */
static void wait_for(const struct dev *d, bool (*done)(const struct errors *now, const struct errors *before),
		     const struct errors *before, const char *what)
{
	double start = seconds();
	struct errors e;

	do {
		look(&d->info, &e);
		if (done(&e, before))
			return;
		poll(NULL, 0, 20);
	} while (seconds() - start < PATIENCE);
	printf("  %s did not come: seen %u, was %u, recovered %u, was %u, at the port %lu, was %lu\n", what, e.seen,
	       before->seen, e.recovered, before->recovered, e.port, before->port);
	fail(__FILE__, __LINE__, what, 0, 1);
}

/*
 * Keeps the queue full until the file is told that they have ended for good; by nothing slower, or all of them
 * might be over just then. How many ended as lost.
 */
static unsigned int fly_into(struct dev *d, struct kz_cmd *c)
{
	struct pollfd p = { .fd = d->fd, .events = POLLPRI };
	struct kz_done done[32];
	unsigned int i, lost = 0;
	double start = seconds();
	uint32_t got;

	do {
		if (reap(d->fd, d->queue, done, 32, 1, 100000000ll, &got))
			continue;
		if (got)
			submit(d, c, got, NULL); /* refused once the queue is dead */
		for (i = 0; i < got; i++)
			lost += done[i].status == KZ_ST_LOST;
	} while (!poll(&p, 1, 0) && seconds() - start < PATIENCE);
	CHECK(p.revents & POLLPRI, POLLPRI);
	return lost;
}

static bool at_port(const struct errors *e, const struct errors *before)
{
	return e->port > before->port;
}

static bool recovered(const struct errors *e, const struct errors *before)
{
	return e->recovered > before->recovered;
}

static void launch(struct dev *d, struct kz_cmd *c, unsigned int n)
{
	unsigned int i, got;

	for (i = 0; i < n; i++) { /* a copy is over too soon to be met by anything */
		c[i] = (struct kz_cmd){ .opcode = KZ_OP_MARCH };
		c[i].u.march.addr = d->hbm;
		c[i].u.march.len = 8 << 20;
		c[i].u.march.nops = KZ_MARCH_OPS;
		memset(c[i].u.march.ops, KZ_MARCH_W1, KZ_MARCH_OPS);
	}
	CHECK(submit(d, c, n, &got), 0);
	CHECK(got, n);
}

/* All that are in the queue end; how many as lost. */
static unsigned int land(struct dev *d)
{
	struct kz_ioc_queue_stat s = { .argsz = sizeof(s), .queue = d->queue };
	struct kz_done done[32];
	unsigned int i, lost = 0;
	double start = seconds();
	uint32_t got;

	do {
		CHECK(call(d->fd, KZ_IOC_QUEUE_STAT, &s), 0);
	} while (s.outstanding && seconds() - start < PATIENCE && !poll(NULL, 0, 5));
	CHECK(s.outstanding, 0);
	CHECK(s.submitted, s.completed + s.lost);
	if (reap(d->fd, d->queue, done, 32, 0, 0, &got) == -ESTALE)
		got = 0; /* all of them had been fetched */
	for (i = 0; i < got; i++) {
		CHECK(done[i].status == KZ_ST_OK || done[i].status == KZ_ST_LOST, 1);
		lost += done[i].status == KZ_ST_LOST;
	}
	return lost;
}

/* The user notices nothing of an error that was corrected, or that cost nothing. */
static void goes_on(const char *name, bool (*done)(const struct errors *, const struct errors *))
{
	struct kz_cmd c[32], nop = { 0 };
	struct errors before;
	struct dev d;

	dev_open(&d);
	look(&d.info, &before);
	launch(&d, c, 32);
	ask_for(name);
	wait_for(&d, done, &before, name);
	CHECK(land(&d), 0);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	dev_close(&d);
}

static void t_correctable(void)
{
	goes_on("RCVR", at_port);
}

static void t_nonfatal(void)
{
	goes_on("COMP_TIME", recovered);
}

/* The link is reset: commands end as lost, contexts are dead, registered memory stays, a new context works. */
static void recover_once(const char *name)
{
	struct kz_info i = { .argsz = sizeof(i) };
	struct kz_ioc_ctx ctx = { .argsz = sizeof(ctx) };
	struct kz_ioc_queue q = { .argsz = sizeof(q) };
	struct kz_cmd c[32], nop = { 0 };
	struct errors before;
	unsigned int lost;
	struct dev d;

	dev_open(&d);
	look(&d.info, &before);
	launch(&d, c, 32);
	ask_for(name);
	lost = fly_into(&d, c);
	wait_for(&d, recovered, &before, name);
	CHECK(lost + land(&d) > 0, 1); /* the error met commands in flight */
	CHECK(run(&d, &nop, NULL), -ESTALE);
	q.queue = d.queue;
	CHECK(call(d.fd, KZ_IOC_QUEUE_DESTROY, &q), 0);
	CHECK(call(d.fd, KZ_IOC_INFO, &i), 0);
	CHECK(i.state, KZ_STATE_LIVE);
	CHECK(i.pinned, BUF_BYTES);
	CHECK(call(d.fd, KZ_IOC_CTX_CREATE, &ctx), 0);
	CHECK(queue_create(d.fd, ctx.ctx, DEPTH_ORDER, 0, 0, &d.queue), 0);
	CHECK(run(&d, &nop, NULL), KZ_ST_OK);
	dev_close(&d);
}

static void t_fatal(void)
{
	recover_once("DLP");
}

static void t_surprise_down(void)
{
	recover_once("SDN");
}

static void t_fatal_again(void)
{
	unsigned int i;

	for (i = 0; i < 10 && !failures; i++)
		recover_once("DLP");
}

/* After sleeping, when config space was saved by the PCI core and restored by it. */
static void t_fatal_after_sleep(void)
{
	char path[128], state[32] = "";
	unsigned int tries;
	struct dev d;
	FILE *f;

	dev_open(&d);
	dev_close(&d);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.%x/power/control", d.info.pci_domain,
		 d.info.pci_bus, d.info.pci_devfn >> 3, d.info.pci_devfn & 7);
	f = fopen(path, "w");
	CHECK(f && fputs("auto", f) >= 0 && !fclose(f), 1);
	strcpy(strrchr(path, '/'), "/runtime_status");
	for (tries = 0; tries < 1500 && strcmp(state, "suspended\n"); tries++) {
		poll(NULL, 0, 10);
		f = fopen(path, "r");
		if (!f || !fgets(state, sizeof(state), f))
			state[0] = 0;
		if (f)
			fclose(f);
	}
	CHECK(strcmp(state, "suspended\n"), 0);
	recover_once("DLP");
	strcpy(strrchr(path, '/'), "/control");
	f = fopen(path, "w");
	CHECK(f && fputs("on", f) >= 0 && !fclose(f), 1);
}

const struct test events_tests[] = {
	{ "events.correctable", t_correctable },
	{ "events.nonfatal", t_nonfatal },
	{ "events.fatal", t_fatal },
	{ "events.surprise_down", t_surprise_down },
	{ "events.fatal_again", t_fatal_again },
	{ "events.fatal_after_sleep", t_fatal_after_sleep },
	{ NULL, NULL }
};
