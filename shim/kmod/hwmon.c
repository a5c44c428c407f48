// SPDX-License-Identifier: GPL-2.0
/* Temperatures, power and fan for sensors(1): millidegrees, microwatts, revolutions a minute. */
#include <linux/hwmon.h>

#include "kz.h"

static const char *const kz_temp_labels[] = { "core", "hbm" };

static int kz_hwmon_temp(const struct kz_telemetry *t, u32 attr, int channel, long *value)
{
	switch (attr) {
	case hwmon_temp_input:
		*value = (channel ? t->temp_hbm_mc : t->temp_core_mc) / (KZ_BUG_IS(34, 1) ? 1000 : 1);
		return 0;
	case hwmon_temp_max:
		*value = t->temp_limit_mc;
		return 0;
	case hwmon_temp_crit:
		*value = t->temp_critical_mc;
		return 0;
	case hwmon_temp_crit_alarm:
		*value = (channel ? t->temp_hbm_mc : t->temp_core_mc) >= t->temp_critical_mc;
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

static int kz_hwmon_power(const struct kz_telemetry *t, u32 attr, long *value)
{
	switch (attr) {
	case hwmon_power_input:
		*value = t->power_mw * (KZ_BUG_IS(34, 2) ? 1l : 1000l); /* mW to uW */
		return 0;
	case hwmon_power_cap:
		*value = t->power_cap_mw * 1000l;
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

static int kz_hwmon_read(struct device *dev, enum hwmon_sensor_types type, u32 attr, int channel, long *value)
{
	struct kz_device *kz = dev_get_drvdata(dev);
	struct kz_telemetry t;
	int idx, rc;

	rc = kz_begin_live(kz, &idx, false);
	if (rc)
		return rc;
	rc = kz_hw_telemetry(kz, &t);
	kz_end_live(kz, idx);
	if (!rc && t.version != KZ_TEL_VERSION)
		rc = -EIO; /* all ones or nonsense is no temperature */
	if (rc)
		return rc;
	if (type == hwmon_temp)
		return kz_hwmon_temp(&t, attr, channel, value);
	if (type == hwmon_power)
		return kz_hwmon_power(&t, attr, value);
	*value = t.fan_rpm / (KZ_BUG_IS(34, 3) ? 60 : 1);
	return t.fan_present ? 0 : -ENODATA;
}

static int kz_hwmon_string(struct device *dev, enum hwmon_sensor_types type, u32 attr, int channel, const char **text)
{
	*text = kz_temp_labels[channel];
	return 0;
}

static umode_t kz_hwmon_visible(const void *data, enum hwmon_sensor_types type, u32 attr, int channel)
{
	return 0444;
}

static const struct hwmon_ops kz_hwmon_ops = {
	.is_visible = kz_hwmon_visible,
	.read = kz_hwmon_read,
	.read_string = kz_hwmon_string,
};

#define KZ_TEMP (HWMON_T_INPUT | HWMON_T_MAX | HWMON_T_CRIT | HWMON_T_CRIT_ALARM | HWMON_T_LABEL)

static const struct hwmon_channel_info *kz_hwmon_info[] = {
	HWMON_CHANNEL_INFO(temp, KZ_TEMP, KZ_TEMP),
	HWMON_CHANNEL_INFO(power, HWMON_P_INPUT | HWMON_P_CAP),
	HWMON_CHANNEL_INFO(fan, HWMON_F_INPUT),
	NULL
};

static const struct hwmon_chip_info kz_hwmon_chip = {
	.ops = &kz_hwmon_ops,
	.info = kz_hwmon_info,
};

int kz_hwmon_init(struct kz_device *kz)
{
	if (!IS_REACHABLE(CONFIG_HWMON))
		return 0;
	kz->hwmon = hwmon_device_register_with_info(kz_dma(kz), KZ_NAME, kz, &kz_hwmon_chip, NULL);
	return PTR_ERR_OR_ZERO(kz->hwmon);
}

void kz_hwmon_exit(struct kz_device *kz)
{
	if (IS_REACHABLE(CONFIG_HWMON))
		hwmon_device_unregister(kz->hwmon);
}
