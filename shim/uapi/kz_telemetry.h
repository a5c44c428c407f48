/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * The telemetry block at KZ_REG_TELEMETRY of BAR0. The firmware rewrites it every 100 ms and after every event that
 * changes a counter. A reader takes a consistent copy by reading `seq` before and after: odd means being written.
 */
#ifndef KZ_TELEMETRY_H
#define KZ_TELEMETRY_H

#include "kz_types.h"

#define KZ_TEL_CHANNELS 32 /* room for ECC counters; unused ones read 0 */
#define KZ_TEL_VERSION 1

#define KZ_THROTTLE_THERMAL (1u << 0)
#define KZ_THROTTLE_POWER (1u << 1)
#define KZ_THROTTLE_BROWNOUT (1u << 2)

struct kz_telemetry {
	__u32 seq;
	__u16 version; /* KZ_TEL_VERSION */
	__u16 size;    /* bytes of this structure */
	__u64 time_ns; /* device clock when written */
	__s32 temp_core_mc; /* millidegrees Celsius */
	__s32 temp_hbm_mc;
	__s32 temp_limit_mc; /* throttling starts here */
	__s32 temp_critical_mc; /* the device stops itself here */
	__u32 power_mw;
	__u32 power_cap_mw;
	__u32 clock_khz;
	__u32 clock_max_khz;
	__u32 fan_rpm; /* 0 where the board has no fan; see fan_present */
	__u32 fan_present;
	__u32 throttle; /* KZ_THROTTLE_* in force */
	__u32 throttle_ms; /* time spent throttled since power-on, ms */
	__u32 heartbeat;
	__u32 fw_version;
	__u32 reset_count;
	__u32 reset_reason;
	__u64 hbm_bytes;
	__u64 hbm_free_bytes;
	__u32 contexts;
	__u32 pages_retired;
	__u32 pages_retire_max; /* the device is to be replaced beyond this */
	__u32 ecc_channels; /* valid entries below */
	__u64 commands; /* completed since power-on */
	__u64 dma_bytes; /* moved over the bus since power-on */
	__u32 ecc_ce[KZ_TEL_CHANNELS];
	__u32 ecc_ue[KZ_TEL_CHANNELS];
};

KZ_ASSERT_SIZE(struct kz_telemetry, 384);
KZ_ASSERT_OFFSET(struct kz_telemetry, time_ns, 8);
KZ_ASSERT_OFFSET(struct kz_telemetry, hbm_bytes, 80);
KZ_ASSERT_OFFSET(struct kz_telemetry, ecc_ce, 128);

#endif
