// SPDX-License-Identifier: GPL-2.0
/*
 * Power. Contexts and queues keep the device awake, so runtime suspend finds it idle. System sleep takes HBM's power:
 * commands are given time to end, then contexts and queues end as in a reset, and their users see -ESTALE after
 * waking; open files, registered buffers, quota and settings stay.
 */
#include <linux/delay.h>
#include <linux/pm_runtime.h>

#include "kz.h"

#define KZ_DRAIN_MS 2000

static bool kz_busy(struct kz_device *kz)
{
	bool busy = false;
	unsigned int id;

	mutex_lock(&kz->life);
	for (id = 1; id < kz->nqueues; id++) {
		struct kz_queue *q = rcu_dereference_protected(kz->hwq[id], lockdep_is_held(&kz->life));

		if (!q)
			continue;
		kz_ring_poll(q, KZ_POLL_LOOK);
		busy |= READ_ONCE(q->outstanding) != READ_ONCE(q->ndone);
	}
	mutex_unlock(&kz->life);
	return busy;
}

static int kz_suspend(struct device *dev)
{
	struct kz_device *kz = dev_get_drvdata(dev);
	unsigned int waited;

	for (waited = 0; waited < KZ_DRAIN_MS && kz_busy(kz); waited += 20)
		msleep(20);
	if (waited >= KZ_DRAIN_MS)
		dev_warn(dev, "commands still running at suspend end as lost\n");
	if (kz_state(kz) == KZ_STATE_LIVE)
		kz_ctx_end_all(kz);
	kz_stop(kz, KZ_STATE_SUSPENDED, true);
	return 0;
}

/* A device that cannot be brought up again is DEAD, and says so to its users; the system's wake-up goes on. */
static int kz_resume(struct device *dev)
{
	struct kz_device *kz = dev_get_drvdata(dev);

	pci_save_state(kz->pdev); /* as below */
	if (KZ_BUG(30))
		kz_resume_settings(kz);
	if (kz_start(kz))
		kz_reset_schedule(kz, KZ_LEVEL_FUNCTION, "not ready after sleep");
	return 0;
}

static int kz_runtime_suspend(struct device *dev)
{
	struct kz_device *kz = dev_get_drvdata(dev);

	if (atomic_read(&kz->maps) || kz_state(kz) == KZ_STATE_DEAD) /* DEAD stays to be seen */
		return -EBUSY;
	kz_stop(kz, KZ_STATE_SUSPENDED, true);
	return 0;
}

/*
 * Restoring config space used up what was saved; a bus error from here on needs it again (kz_slot_reset). An error must not
 * be returned: the PM core would keep it and refuse every later wake-up, after a reset that helped too.
 */
static int kz_runtime_resume(struct device *dev)
{
	return kz_resume(dev);
}

const struct dev_pm_ops kz_pm_ops = {
	SYSTEM_SLEEP_PM_OPS(kz_suspend, kz_resume)
	RUNTIME_PM_OPS(kz_runtime_suspend, kz_runtime_resume, NULL)
};

/* The PCI core hands the device over with one reference taken; whether it may sleep is user space's power/control. */
void kz_pm_init(struct kz_device *kz, unsigned int autosuspend_ms)
{
	pm_runtime_set_autosuspend_delay(kz_dma(kz), autosuspend_ms);
	pm_runtime_use_autosuspend(kz_dma(kz));
	pm_runtime_mark_last_busy(kz_dma(kz));
	pm_runtime_put_autosuspend(kz_dma(kz));
}

void kz_pm_exit(struct kz_device *kz)
{
	pm_runtime_get_noresume(kz_dma(kz)); /* back to what the PCI core expects */
	pm_runtime_dont_use_autosuspend(kz_dma(kz));
}
