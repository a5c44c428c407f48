/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * Fixed-width types and compile-time layout checks for the reference TPU's ABI.
 *
 * Every structure in this folder is little-endian, has no implicit padding and is the same in C, C++ and
 * kernel code. Fields called `rsvd*` must be zero: the device refuses a command that has anything else there.
 */
#ifndef KZ_TYPES_H
#define KZ_TYPES_H

#include <linux/types.h>

#ifdef __cplusplus
#include <cstddef>
#define KZ_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
#ifdef __KERNEL__
#include <linux/build_bug.h>
#include <linux/stddef.h>
#else
#include <stddef.h>
#endif
#define KZ_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

#define KZ_ASSERT_SIZE(type, size) KZ_STATIC_ASSERT(sizeof(type) == (size), #type " must be " #size " bytes")
#define KZ_ASSERT_OFFSET(type, field, off) \
	KZ_STATIC_ASSERT(offsetof(type, field) == (off), #type "." #field " must be at " #off)

#endif
