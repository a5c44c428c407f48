// SPDX-License-Identifier: GPL-2.0
/* Attributes of /sys/class/kz/kzN. Removing the class device waits for readers, so none outlives the device. */
#include <linux/capability.h>
#include <linux/sysfs.h>

#include "kz.h"

static const char *const kz_state_names[] = { "live", "resetting", "suspended", "dead", "gone" };
static const char *const kz_reasons[] = { "power-on",	 "flr",		 "bus-reset", "firmware-reset", "watchdog",
					  "thermal", "firmware-crash", "hbm-uncorrectable", "power-loss" };

/* A value that was read when the device last came up, or is the driver's own. */
#define KZ_SHOW(name, format, ...)                                                                     \
	static ssize_t name##_show(struct device *dev, struct device_attribute *attr, char *buf)       \
	{                                                                                              \
		struct kz_device *kz = dev_get_drvdata(dev);                                           \
		return sysfs_emit(buf, format "\n", __VA_ARGS__);                                      \
	}                                                                                              \
	static DEVICE_ATTR_RO(name)

KZ_SHOW(state, "%s", kz_state_names[kz_state(kz)]);
KZ_SHOW(serial, "%016llx", kz->serial);
KZ_SHOW(fw_version, "%u.%u.%u", kz->fw_version >> 24, (kz->fw_version >> 16) & 0xff, kz->fw_version & 0xffff);
KZ_SHOW(reset_count, "%u", kz->reset_count);
KZ_SHOW(reset_reason, "%s", kz->reset_reason < ARRAY_SIZE(kz_reasons) ? kz_reasons[kz->reset_reason] : "unknown");
KZ_SHOW(hbm_size, "%llu", kz->hbm_bytes);
KZ_SHOW(generation, "%u", READ_ONCE(kz->generation));
KZ_SHOW(queues, "%u", kz->nqueues - 1);
KZ_SHOW(queues_free, "%u", kz_queues_free(kz));
KZ_SHOW(vectors, "%u", kz->nvectors);
KZ_SHOW(errors, "corrected %u seen %u recovered %u", kz->errors_corrected, kz->errors_seen, kz->errors_recovered);
KZ_SHOW(resets, "queue %u function %u device %u firmware %u", kz->resets[KZ_LEVEL_QUEUE],
	kz->resets[KZ_LEVEL_FUNCTION], kz->resets[KZ_LEVEL_DEVICE], kz->resets[KZ_LEVEL_FIRMWARE]);

/* A value from the telemetry block: -EAGAIN in a reset, -EIO from a device that does not answer sense. */
static int kz_sysfs_telemetry(struct device *dev, struct kz_telemetry *t)
{
	struct kz_device *kz = dev_get_drvdata(dev);
	int idx, rc;

	rc = kz_begin_live(kz, &idx, false);
	if (rc)
		return rc;
	rc = kz_hw_telemetry(kz, t);
	kz_end_live(kz, idx);
	return rc ?: t->version == KZ_TEL_VERSION ? 0 : -EIO;
}

#define KZ_SHOW_TELEMETRY(name, format, ...)                                                           \
	static ssize_t name##_show(struct device *dev, struct device_attribute *attr, char *buf)       \
	{                                                                                              \
		struct kz_telemetry t;                                                                 \
		int rc = kz_sysfs_telemetry(dev, &t);                                                  \
		return rc ?: sysfs_emit(buf, format "\n", __VA_ARGS__);                                \
	}                                                                                              \
	static DEVICE_ATTR_RO(name)

static u64 kz_sum(const u32 *counts)
{
	u64 sum = 0;
	unsigned int i;

	for (i = 0; i < KZ_TEL_CHANNELS; i++)
		sum += counts[i];
	return sum;
}

KZ_SHOW_TELEMETRY(hbm_free, "%llu", t.hbm_free_bytes);
KZ_SHOW_TELEMETRY(contexts, "%u", t.contexts);
KZ_SHOW_TELEMETRY(heartbeat, "%u", t.heartbeat);
KZ_SHOW_TELEMETRY(pages_retired, "%u", t.pages_retired);
KZ_SHOW_TELEMETRY(ecc_corrected, "%llu", kz_sum(t.ecc_ce));
KZ_SHOW_TELEMETRY(ecc_uncorrected, "%llu", kz_sum(t.ecc_ue));
KZ_SHOW_TELEMETRY(clock_khz, "%u", t.clock_khz);
KZ_SHOW_TELEMETRY(throttle, "0x%x", t.throttle);

static ssize_t hbm_quota_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct kz_device *kz = dev_get_drvdata(dev);

	return sysfs_emit(buf, "%llu\n", READ_ONCE(kz->hbm_quota));
}

/* Bytes that one open file may hold; files that hold more keep it. */
static ssize_t hbm_quota_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t len)
{
	struct kz_device *kz = dev_get_drvdata(dev);
	u64 value;
	int rc = kstrtou64(buf, 0, &value);

	if (rc)
		return rc;
	if (value > kz->hbm_bytes)
		return -ERANGE;
	WRITE_ONCE(kz->hbm_quota, value);
	return len;
}
static DEVICE_ATTR_RW(hbm_quota);

static ssize_t timeout_ms_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct kz_device *kz = dev_get_drvdata(dev);

	return sysfs_emit(buf, "%u\n", READ_ONCE(kz->timeout_ms));
}

/* For queues made from now on. */
static ssize_t timeout_ms_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t len)
{
	struct kz_device *kz = dev_get_drvdata(dev);
	u32 value;
	int rc = kstrtou32(buf, 0, &value);

	if (rc)
		return rc;
	if (value < KZ_TIMEOUT_MIN_MS || value > KZ_TIMEOUT_MAX_MS)
		return -ERANGE;
	WRITE_ONCE(kz->timeout_ms, value);
	return len;
}
static DEVICE_ATTR_RW(timeout_ms);

/* The name of an image below /lib/firmware; active after the next firmware reset. */
static ssize_t firmware_load_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t len)
{
	struct kz_device *kz = dev_get_drvdata(dev);
	char name[128];
	int idx, rc;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (len >= sizeof(name))
		return -ENAMETOOLONG;
	strscpy(name, buf, sizeof(name));
	rc = kz_begin_live(kz, &idx, true);
	if (rc)
		return rc;
	rc = kz_fw_load(kz, strim(name));
	kz_end_live(kz, idx);
	return rc ?: len;
}
static DEVICE_ATTR_WO(firmware_load);

static struct attribute *kz_attrs[] = {
	&dev_attr_state.attr,	     &dev_attr_serial.attr,	   &dev_attr_fw_version.attr,
	&dev_attr_reset_count.attr,  &dev_attr_reset_reason.attr,  &dev_attr_hbm_size.attr,
	&dev_attr_generation.attr,   &dev_attr_queues.attr,	   &dev_attr_queues_free.attr,
	&dev_attr_vectors.attr,	     &dev_attr_errors.attr,	   &dev_attr_resets.attr,
	&dev_attr_hbm_free.attr,     &dev_attr_contexts.attr,	   &dev_attr_heartbeat.attr,
	&dev_attr_pages_retired.attr, &dev_attr_ecc_corrected.attr, &dev_attr_ecc_uncorrected.attr,
	&dev_attr_clock_khz.attr,    &dev_attr_throttle.attr,	   &dev_attr_hbm_quota.attr,
	&dev_attr_timeout_ms.attr,   &dev_attr_firmware_load.attr, NULL
};

static const struct attribute_group kz_group = { .attrs = kz_attrs };
const struct attribute_group *kz_groups[] = { &kz_group, NULL };
