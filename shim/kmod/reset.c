// SPDX-License-Identifier: GPL-2.0
/*
 * The reset ladder: queue (queue.c), function, device, firmware last. Function and device resets go through the PCI
 * core, which saves config space and calls reset_prepare and reset_done in err.c; so the same code runs when somebody
 * resets the function from outside.
 */
#include <linux/delay.h>
#include <linux/pm_runtime.h>

#include "kz.h"

#define KZ_LOCK_TRIES 250 /* of 20 ms: how long to try for the PCI device's lock */

static const char *const kz_level_name[] = { "queue", "function", "device", "firmware" };

/* The PCI core's locks are only tried: remove holds them while it waits for the callers of this. */
static int kz_reset_pci(struct kz_device *kz, enum kz_level level)
{
	unsigned int tries;
	int rc = -EAGAIN;

	for (tries = 0; tries < KZ_LOCK_TRIES && rc == -EAGAIN; tries++) {
		if (kz_state(kz) == KZ_STATE_GONE)
			return -ENODEV;
		rc = level == KZ_LEVEL_FUNCTION ? pci_try_reset_function(kz->pdev) : pci_reset_bus(kz->pdev);
		if (rc == -EAGAIN)
			msleep(20);
	}
	return rc;
}

/* What pci_reset_bus() would do, asked before anything is stopped for it. */
bool kz_can_reset_device(struct kz_device *kz)
{
	return !pci_probe_reset_slot(kz->pdev->slot) || !pci_probe_reset_bus(kz->pdev->bus);
}

/* Where the device can be reached: not between a fatal bus error and the reset of its link. */
static int kz_lock_reachable(struct kz_device *kz)
{
	unsigned int tries;

	for (tries = 0; tries < KZ_LOCK_TRIES; tries++) {
		if (kz_state(kz) == KZ_STATE_GONE)
			return -ENODEV;
		if (device_trylock(kz_dma(kz))) {
			if (!pci_channel_offline(kz->pdev))
				return 0;
			device_unlock(kz_dma(kz));
		}
		msleep(20);
	}
	return -EAGAIN;
}

/* Under the PCI device's lock: no other reset, recovery, sleep or remove at the same time. */
static int kz_reset_firmware_locked(struct kz_device *kz)
{
	int rc;

	kz_stop(kz, KZ_STATE_RESETTING, true);
	kz_wr(kz, KZ_REG_RESET, KZ_RESET_FIRMWARE);
	rc = kz_wait_reg(kz, KZ_REG_STATUS, KZ_STATUS_RESETTING, 0, kz->ready_ms);
	if (rc) {
		kz_set_state(kz, KZ_STATE_DEAD);
		return rc;
	}
	return kz_start(kz);
}

static int kz_reset_firmware(struct kz_device *kz)
{
	int rc = kz_lock_reachable(kz);

	if (rc)
		return rc;
	rc = kz_reset_firmware_locked(kz);
	device_unlock(kz_dma(kz));
	return rc;
}

static int kz_reset_once(struct kz_device *kz, enum kz_level level, const char *why, bool asked)
{
	u32 starts = READ_ONCE(kz->starts);
	int rc;

	if (asked)
		dev_info(kz_dma(kz), "%s reset: %s\n", kz_level_name[level], why);
	else
		dev_warn(kz_dma(kz), "%s reset: %s\n", kz_level_name[level], why);
	kz->resets[level]++;
	rc = level == KZ_LEVEL_FIRMWARE ? kz_reset_firmware(kz) : kz_reset_pci(kz, level);
	/* The state may be that of another reset already, which came from outside since. */
	if (!rc && (kz_state(kz) == KZ_STATE_GONE || READ_ONCE(kz->starts) == starts))
		rc = kz_state(kz) == KZ_STATE_GONE ? -ENODEV : -EIO;
	if (rc)
		dev_err(kz_dma(kz), "%s reset failed: %d\n", kz_level_name[level], rc);
	return rc;
}

/*
 * From the given level upwards until the device is live. A firmware reset is tried only where it is asked for. `asked`:
 * by a user, and so nothing to warn of.
 */
int kz_reset_now(struct kz_device *kz, enum kz_level level, const char *why, bool asked)
{
	u32 generation;
	int rc;

	mutex_lock(&kz->reset_lock);
	generation = READ_ONCE(kz->generation);
	if (asked && level == KZ_LEVEL_DEVICE && !kz_can_reset_device(kz)) {
		mutex_unlock(&kz->reset_lock); /* nothing has begun, nothing is lost */
		return -EOPNOTSUPP;
	}
	kz_coredump(kz, why);
	rc = kz_reset_once(kz, level, why, asked);
	if (level == KZ_LEVEL_FIRMWARE)
		level = KZ_LEVEL_QUEUE; /* and if that failed, from the mildest up */
	while (rc && rc != -ENODEV && level < KZ_LEVEL_DEVICE)
		rc = kz_reset_once(kz, ++level, why, false);
	if (rc && rc != -ENODEV) {
		if (kz_give_up(kz, generation))
			dev_err(kz_dma(kz), "device cannot be brought back\n");
		else
			rc = 0;
	}
	mutex_unlock(&kz->reset_lock);
	return rc && rc != -ENODEV ? -EIO : rc;
}

void kz_reset_work(struct work_struct *work)
{
	struct kz_device *kz = container_of(work, struct kz_device, reset_work);
	int level = atomic_xchg(&kz->reset_level, -1);

	if (level < 0)
		return;
	pm_runtime_get_sync(kz_dma(kz)); /* awake, or failed to wake: then the reset may help */
	kz_reset_now(kz, (enum kz_level)level, READ_ONCE(kz->reset_why), false);
	pm_runtime_mark_last_busy(kz_dma(kz));
	pm_runtime_put_autosuspend(kz_dma(kz));
}

/* Any context that may not wait. Several requests before it runs are one, at the highest level. */
void kz_reset_schedule(struct kz_device *kz, enum kz_level level, const char *why)
{
	int old = atomic_read(&kz->reset_level);

	while (old < (int)level && !atomic_try_cmpxchg(&kz->reset_level, &old, level))
		;
	WRITE_ONCE(kz->reset_why, why);
	if (kz_state(kz) != KZ_STATE_GONE)
		queue_work(kz->wq, &kz->reset_work);
}
