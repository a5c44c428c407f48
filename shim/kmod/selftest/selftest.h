/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A small test program of the driver's own interface, for a guest with nothing else in it. */
#ifndef KZ_SELFTEST_H
#define KZ_SELFTEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../../uapi/kz_ioctl.h"

#define DEPTH_ORDER 5
#define BUF_BYTES (4u << 20)

struct dev {
	int fd;
	uint32_t ctx;
	uint32_t queue;
	uint8_t *buf; /* BUF_BYTES, registered for both directions */
	uint64_t host; /* of buf */
	uint64_t hbm; /* 8 MiB */
	uint64_t map; /* of it, for mmap */
	struct kz_info info;
};

struct test {
	const char *name;
	void (*fn)(void);
};

extern unsigned int failures;

void fail(const char *file, int line, const char *what, long long got, long long wanted);
#define CHECK(got, wanted)                                                                          \
	do {                                                                                        \
		long long got_ = (long long)(got), wanted_ = (long long)(wanted);                   \
		if (got_ != wanted_)                                                                \
			fail(__FILE__, __LINE__, #got, got_, wanted_);                              \
	} while (0)

/* 0 or -errno */
int call(int fd, unsigned long nr, void *args);
int open_node(void);
void dev_open(struct dev *d); /* with context, queue, buffer and HBM; exits on failure */
void dev_close(struct dev *d);
int queue_create(int fd, uint32_t ctx, uint32_t order, uint32_t flags, uint32_t timeout_ms, uint32_t *queue);
int submit(struct dev *d, const struct kz_cmd *cmd, unsigned int n, unsigned int *done);
int reap(int fd, uint32_t queue, struct kz_done *to, uint32_t max, uint32_t min, int64_t timeout_ns, uint32_t *n);
/* Runs one command and returns its status, or -errno; *result may be NULL. */
int run(struct dev *d, const struct kz_cmd *cmd, uint64_t *result);
struct kz_cmd cmd_copy(uint64_t dst, uint8_t dst_space, uint64_t src, uint8_t src_space, uint64_t len);
void fill_pattern(uint8_t *p, size_t n, uint32_t seed);
bool faults(volatile uint8_t *p); /* reading it raises SIGBUS */
double seconds(void); /* of a steady clock */
uint32_t crc32c(const uint8_t *p, size_t n);

extern const struct test basic_tests[], abi_tests[], uring_tests[], life_tests[], remove_tests[], races_tests[], endings_tests[],
	events_tests[];

#endif
