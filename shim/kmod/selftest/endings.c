// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The ways a user ends with 1000 commands in flight: killed, its ring closed, its file passed to nobody over a socket
 * and closed. Afterwards the driver has let go of everything: queues, contexts, HBM, pins; and nothing is lost from
 * the books of a user who lives on. Wants a device whose commands take long enough to be in flight
 * (softtpu: service-time=20ms).
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "selftest.h"

enum { COMMANDS = 1000, ORDER = 10, PIN = 1 << 20, HBM_BYTES = 4 << 20 };

struct base {
	uint64_t hbm_free;
	uint32_t contexts;
	uint32_t queues_free;
	long long pinned; /* pages the kernel has pinned and not let go of, or -1 where it does not say */
};

struct user {
	int fd;
	uint32_t ctx;
	uint32_t queue;
	uint64_t host;
	uint64_t hbm;
	void *buf;
	struct io_uring ring;
};

static unsigned int rounds(void)
{
	const char *text = getenv("KZ_ROUNDS");

	return text ? strtoul(text, NULL, 10) : 100;
}

/* Each processor keeps a part of these counts to itself for a second or so, until it is made to give it up. */
static void gather_vmstat(void)
{
	FILE *f = fopen("/proc/sys/vm/stat_refresh", "r");

	if (f && fgetc(f) != EOF)
		fail(__FILE__, __LINE__, "stat_refresh says something", 1, 0);
	if (f)
		fclose(f);
}

static long long vmstat(const char *name)
{
	long long value = -1, n;
	char word[64];
	FILE *f = fopen("/proc/vmstat", "r");

	while (f && fscanf(f, "%63s %lld", word, &n) == 2) {
		if (!strcmp(word, name))
			value = n;
	}
	if (f)
		fclose(f);
	return value;
}

static void look(int fd, struct base *b)
{
	struct kz_ioc_telemetry t = { .argsz = sizeof(t) };
	struct kz_info i = { .argsz = sizeof(i) };
	long long got, given;

	gather_vmstat();
	got = vmstat("nr_foll_pin_acquired");
	given = vmstat("nr_foll_pin_released");
	CHECK(call(fd, KZ_IOC_TELEMETRY, &t), 0);
	CHECK(call(fd, KZ_IOC_INFO, &i), 0);
	b->hbm_free = t.t.hbm_free_bytes;
	b->contexts = t.t.contexts;
	b->queues_free = i.queues_free;
	b->pinned = got < 0 || given < 0 ? -1 : got - given;
}

/* Telemetry follows within 100 ms; a ring lets go of its file when the kernel gets to it. */
static double settle(int fd, const struct base *want)
{
	double start = seconds();
	struct base now;

	do {
		look(fd, &now);
		if (!memcmp(&now, want, sizeof(now)))
			return seconds() - start;
		poll(NULL, 0, 10);
	} while (seconds() - start < 30);
	CHECK(now.hbm_free, want->hbm_free);
	CHECK(now.contexts, want->contexts);
	CHECK(now.queues_free, want->queues_free);
	CHECK(now.pinned, want->pinned);
	return seconds() - start;
}

/* Everything a user can hold. 0 or -errno. */
static int user_open(struct user *u)
{
	struct kz_ioc_ctx ctx = { .argsz = sizeof(ctx) };
	struct kz_ioc_buf buf = { .argsz = sizeof(buf), .flags = KZ_BUF_DEVICE_READS | KZ_BUF_DEVICE_WRITES,
				  .len = PIN };
	struct kz_ioc_hbm hbm = { .argsz = sizeof(hbm), .len = HBM_BYTES };
	int rc;

	memset(u, 0, sizeof(*u));
	u->fd = open_node();
	if (u->fd < 0)
		return -errno;
	rc = call(u->fd, KZ_IOC_CTX_CREATE, &ctx);
	u->ctx = ctx.ctx;
	if (!rc)
		rc = queue_create(u->fd, u->ctx, ORDER, 0, 0, &u->queue);
	u->buf = mmap(NULL, PIN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	buf.addr = (uintptr_t)u->buf;
	if (!rc)
		rc = call(u->fd, KZ_IOC_BUF_REGISTER, &buf);
	u->host = buf.base;
	hbm.ctx = u->ctx;
	if (!rc)
		rc = call(u->fd, KZ_IOC_HBM_ALLOC, &hbm);
	u->hbm = hbm.addr;
	return rc;
}

static int ring_up(struct user *u)
{
	return io_uring_queue_init(1024, &u->ring, IORING_SETUP_SQE128 | IORING_SETUP_CQE32);
}

/* Copies between pinned memory and HBM, both ways, through the ring. Returns how many were taken. */
static int fly(struct user *u)
{
	unsigned int i;

	for (i = 0; i < COMMANDS; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
		struct kz_uring_cmd c = { .queue = u->queue };
		uint64_t host = u->host + 1024 * i % PIN, hbm = u->hbm + 4096 * i % HBM_BYTES;

		if (!sqe)
			return -1;
		c.cmd = i & 1 ? cmd_copy(hbm, KZ_SP_HBM, host, KZ_SP_HOST, 1024) :
				cmd_copy(host, KZ_SP_HOST, hbm, KZ_SP_HBM, 1024);
		memset(sqe, 0, 2 * sizeof(*sqe));
		sqe->opcode = IORING_OP_URING_CMD;
		sqe->fd = u->fd;
		sqe->cmd_op = KZ_URING_SUBMIT;
		sqe->user_data = 1 + i;
		memcpy(sqe->cmd, &c, sizeof(c));
	}
	return io_uring_submit(&u->ring);
}

/* What the driver's books of the queue say is in flight now. */
static long long in_flight(struct user *u)
{
	struct kz_ioc_queue_stat s = { .argsz = sizeof(s), .queue = u->queue };

	return call(u->fd, KZ_IOC_QUEUE_STAT, &s) ? -1 : (long long)s.outstanding;
}

/* Only a device that takes its time has them all in flight. */
static long long must_fly(int fd)
{
	struct kz_info i = { .argsz = sizeof(i) };

	CHECK(call(fd, KZ_IOC_INFO, &i), 0);
	if (i.feat & (1u << 8)) /* KZ_FEAT_FIXED_TIME of kz_regs.h */
		return COMMANDS / 2;
	printf("  commands may have ended before their user: the device has no fixed service time\n");
	return 0;
}

/* In a child: flies, tells how many are in flight, and waits for its end. */
static void child(int tell)
{
	struct user u;
	long long n = -1;

	if (!user_open(&u) && !ring_up(&u) && fly(&u) == COMMANDS)
		n = in_flight(&u);
	if (write(tell, &n, sizeof(n)) != sizeof(n))
		_exit(1);
	pause();
	_exit(1);
}

static void t_killed(void)
{
	unsigned int round, all = rounds();
	double longest = 0;
	struct base want;
	int fd = open_node();
	long long fewest = COMMANDS, least = must_fly(fd);

	look(fd, &want);
	for (round = 0; round < all && !failures; round++) {
		long long n = -1;
		int ends[2], status;
		double took;
		pid_t pid;

		CHECK(pipe(ends), 0);
		pid = fork();
		if (!pid) {
			close(fd);
			child(ends[1]);
		}
		close(ends[1]);
		CHECK(read(ends[0], &n, sizeof(n)), sizeof(n));
		close(ends[0]);
		CHECK(n >= least, 1);
		fewest = n < fewest ? n : fewest;
		kill(pid, SIGKILL);
		CHECK(waitpid(pid, &status, 0), pid);
		CHECK(WTERMSIG(status), SIGKILL);
		took = settle(fd, &want);
		longest = took > longest ? took : longest;
	}
	printf("  %u processes killed with %lld of %u or more commands in flight, all back after at most %.3f s\n", round,
	       fewest, COMMANDS, longest);
	close(fd);
}

/* The ring goes, the file stays: its queue ends every command, cancelled or not, and goes on. */
static void t_ring_closed(void)
{
	unsigned int round, all = rounds();
	struct base want, mine;
	struct user u;
	int fd = open_node();
	double longest = 0;
	long long fewest = COMMANDS, least = must_fly(fd), n;

	look(fd, &want);
	CHECK(user_open(&u), 0);
	look(fd, &mine);
	for (round = 0; round < all && !failures; round++) {
		struct kz_ioc_queue_stat s = { .argsz = sizeof(s), .queue = u.queue };
		double start;

		CHECK(ring_up(&u), 0);
		CHECK(fly(&u), COMMANDS);
		n = in_flight(&u);
		CHECK(n >= least, 1);
		fewest = n < fewest ? n : fewest;
		io_uring_queue_exit(&u.ring);
		start = seconds();
		while (in_flight(&u) > 0 && seconds() - start < 30)
			poll(NULL, 0, 5);
		longest = seconds() - start > longest ? seconds() - start : longest;
		CHECK(call(u.fd, KZ_IOC_QUEUE_STAT, &s), 0);
		CHECK(s.outstanding, 0);
		CHECK(s.submitted, (uint64_t)COMMANDS * (round + 1));
		CHECK(s.submitted, s.completed + s.lost);
		CHECK(s.lost, 0);
		settle(fd, &mine);
	}
	printf("  %u rings closed with %lld of %u or more commands in flight, the last one ended at most %.3f s later\n", round,
	       fewest, COMMANDS, longest);
	close(u.fd);
	munmap(u.buf, PIN);
	settle(fd, &want);
	close(fd);
}

static int send_file(int socket, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	return sendmsg(socket, &m, 0) == 1 ? 0 : -errno;
}

/* The only reference left is in a message that nobody receives; it goes with the socket. */
static void t_passed_and_closed(void)
{
	unsigned int round, all = rounds();
	struct kz_entry *e = calloc(COMMANDS, sizeof(*e));
	double longest = 0;
	struct base want;
	int fd = open_node();
	long long fewest = COMMANDS, least = must_fly(fd);

	look(fd, &want);
	for (round = 0; round < all && !failures; round++) {
		struct kz_ioc_submit a = { .argsz = sizeof(a), .count = COMMANDS, .entries = (uintptr_t)e };
		int ends[2];
		struct user u;
		double took;
		long long n;
		unsigned int i;

		CHECK(user_open(&u), 0);
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
		for (i = 0; i < COMMANDS; i++) {
			e[i].cmd = cmd_copy(u.host + 1024 * i % PIN, KZ_SP_HOST, u.hbm, KZ_SP_HBM, 1024);
			e[i].user_data = i;
		}
		a.queue = u.queue;
		CHECK(call(u.fd, KZ_IOC_SUBMIT, &a), 0);
		CHECK(a.done, COMMANDS);
		n = in_flight(&u);
		CHECK(n >= least, 1);
		fewest = n < fewest ? n : fewest;
		CHECK(send_file(ends[0], u.fd), 0);
		close(u.fd);
		close(ends[0]);
		close(ends[1]);
		took = settle(fd, &want);
		longest = took > longest ? took : longest;
		munmap(u.buf, PIN);
	}
	printf("  %u files closed in a socket with %lld of %u or more commands in flight, all back after at most %.3f s\n",
	       round, fewest, COMMANDS, longest);
	free(e);
	close(fd);
}

const struct test endings_tests[] = {
	{ "endings.killed", t_killed },
	{ "endings.ring_closed", t_ring_closed },
	{ "endings.passed_and_closed", t_passed_and_closed },
	{ NULL, NULL }
};
