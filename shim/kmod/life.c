// SPDX-License-Identifier: GPL-2.0
/*
 * Whether the device can be used: the gate that every call passes, and bringing the device up and down.
 *
 * kz->generation counts what ended all contexts and queues. It changes under kz->life before anything is torn down, so
 * whoever holds admin_lock and sees the old number talks to the old device or to nobody, never to the next one.
 *
 * What stops the device to start it again (resets, error recovery, sleep, remove) holds the PCI device's lock or keeps the
 * device awake over both, so that no two of them are at it at once. Who only stops it asks for a reset afterwards.
 */
#include <linux/pm_runtime.h>

#include "kz.h"

#define KZ_STATE_WAIT_MS 30000

/* GONE is for good. */
void kz_set_state(struct kz_device *kz, u8 state)
{
	unsigned long flags;

	spin_lock_irqsave(&kz->state_lock, flags);
	if (kz->state != KZ_STATE_GONE)
		WRITE_ONCE(kz->state, state);
	spin_unlock_irqrestore(&kz->state_lock, flags);
	wake_up_all(&kz->state_wait);
}

/* For calls that need the structures only. Every success is paired with kz_end(). */
int kz_begin(struct kz_device *kz, int *idx)
{
	*idx = srcu_read_lock(&kz->srcu);
	if (kz_state(kz) != KZ_STATE_GONE) {
		__release(&kz->srcu); /* sparse: held on one way out only */
		return 0;
	}
	srcu_read_unlock(&kz->srcu, *idx);
	return -ENODEV;
}

void kz_end(struct kz_device *kz, int idx)
{
	__acquire(&kz->srcu);
	srcu_read_unlock(&kz->srcu, idx);
}

static bool kz_settled(struct kz_device *kz)
{
	u8 state = kz_state(kz);

	return state != KZ_STATE_RESETTING && state != KZ_STATE_SUSPENDED;
}

static int kz_begin_awake(struct kz_device *kz, int *idx)
{
	int rc = kz_begin(kz, idx);

	if (rc)
		return rc;
	rc = pm_runtime_resume_and_get(kz_dma(kz));
	if (rc) {
		kz_end(kz, *idx);
		return kz_state(kz) == KZ_STATE_GONE ? -ENODEV : -EIO;
	}
	if (kz_state(kz) == KZ_STATE_LIVE)
		return 0;
	pm_runtime_put_autosuspend(kz_dma(kz));
	kz_end(kz, *idx);
	return -EAGAIN;
}

/*
 * For calls that need the device: awake, and a reset that runs now is waited for. -EAGAIN without `wait`.
 * Every success is paired with kz_end_live().
 */
int kz_begin_live(struct kz_device *kz, int *idx, bool wait)
{
	for (;;) {
		int rc = kz_begin_awake(kz, idx);
		long left;

		if (rc != -EAGAIN)
			return rc;
		if (kz_state(kz) == KZ_STATE_DEAD)
			return -EIO;
		if (!wait)
			return -EAGAIN;
		left = wait_event_interruptible_timeout(kz->state_wait, kz_settled(kz),
							msecs_to_jiffies(KZ_STATE_WAIT_MS));
		if (left < 0)
			return -EINTR;
		if (!left)
			return -EIO;
	}
}

void kz_end_live(struct kz_device *kz, int idx)
{
	pm_runtime_mark_last_busy(kz_dma(kz));
	pm_runtime_put_autosuspend(kz_dma(kz));
	kz_end(kz, idx);
}

/* Takes kz->life of a live device whose generation is the given one. */
int kz_life_lock(struct kz_device *kz, u32 generation)
{
	int rc = mutex_lock_killable(&kz->life);

	if (rc)
		return -EINTR;
	if (kz_state(kz) == KZ_STATE_LIVE && kz->generation == generation)
		return 0;
	mutex_unlock(&kz->life);
	return -ESTALE;
}

static void kz_wake_files(struct kz_device *kz)
{
	struct kz_file *kf;

	if (KZ_BUG_IS(28, 2))
		return;
	mutex_lock(&kz->files_lock);
	list_for_each_entry(kf, &kz->files, node)
		wake_up_all(&kf->wait);
	mutex_unlock(&kz->files_lock);
}

/*
 * Brings up a device that is in the state after power-on or reset. Leaves it LIVE or DEAD. One that is up already is
 * left alone: its users' queues run.
 */
int kz_start(struct kz_device *kz)
{
	int rc;

	mutex_lock(&kz->life);
	if (kz_state(kz) == KZ_STATE_GONE || kz->up) {
		rc = kz->up ? 0 : -ENODEV;
		mutex_unlock(&kz->life);
		return rc;
	}
	pci_set_master(kz->pdev);
	rc = kz_hw_enable(kz);
	if (!rc) {
		mutex_lock(&kz->admin_lock);
		rc = kz_queue_start(kz->admin);
		mutex_unlock(&kz->admin_lock);
	}
	if (rc) {
		pci_clear_master(kz->pdev);
		dev_err(kz_dma(kz), "cannot be brought up: %d\n", rc);
	}
	WRITE_ONCE(kz->up, !rc);
	WRITE_ONCE(kz->starts, kz->starts + !rc);
	kz_set_state(kz, rc ? KZ_STATE_DEAD : KZ_STATE_LIVE);
	mutex_unlock(&kz->life);
	if (rc)
		kz_wake_files(kz);
	return rc;
}

static void kz_seal_all(struct kz_device *kz)
{
	unsigned int id;

	for (id = 0; id < kz->nqueues; id++) {
		struct kz_queue *q = rcu_dereference_protected(kz->hwq[id], lockdep_is_held(&kz->life));

		if (q)
			kz_queue_seal(q);
	}
}

static void kz_end_all(struct kz_device *kz)
{
	unsigned int id;

	for (id = 0; id < kz->nqueues; id++) {
		struct kz_queue *q = rcu_dereference_protected(kz->hwq[id], lockdep_is_held(&kz->life));

		if (!q)
			continue;
		kz_queue_end(q, KZ_QUEUE_DEAD, false);
		if (q != kz->admin) /* which starts again in the same memory */
			kz_queue_unpublish(q);
	}
}

/* Under kz->life. The generation changes first, so that who still talks to the device is told that it was another. */
static void kz_stop_locked(struct kz_device *kz, u8 state, bool touch)
{
	lockdep_assert_held(&kz->life);
	kz_set_state(kz, state);
	WRITE_ONCE(kz->up, false);
	WRITE_ONCE(kz->generation, kz->generation + 1);
	kz_seal_all(kz);
	if (KZ_BUG(9))
		kz_mark_files(kz);
	if (touch)
		kz_hw_disable(kz);
	pci_clear_master(kz->pdev);
	kz_end_all(kz);
	if (!KZ_BUG(18))
		kz_zap_all(kz);
}

/*
 * Ends everything: no command enters, the device is stopped (`touch`: its registers may be used), every outstanding
 * command ends as lost, mappings are gone. Commands end only when the device can no longer reach memory.
 */
void kz_stop(struct kz_device *kz, u8 state, bool touch)
{
	kz_set_state(kz, state); /* nobody new comes in while life is waited for; a start that has it now ends LIVE first */
	mutex_lock(&kz->life);
	kz_stop_locked(kz, state, touch);
	mutex_unlock(&kz->life);
	kz_wake_files(kz);
}

/* The same on behalf of who found a fault in the device of the given generation; one that has been reset since goes on. */
void kz_stop_old(struct kz_device *kz, u32 generation)
{
	bool stopped;

	mutex_lock(&kz->life);
	stopped = kz->up && kz->generation == generation;
	if (stopped)
		kz_stop_locked(kz, KZ_STATE_RESETTING, true);
	mutex_unlock(&kz->life);
	if (stopped)
		kz_wake_files(kz);
}

/* No reset helped. False: somebody else's has, the device is up and not of the given generation. */
bool kz_give_up(struct kz_device *kz, u32 generation)
{
	bool dead;

	mutex_lock(&kz->life);
	dead = !kz->up || kz->generation == generation;
	if (dead)
		kz_stop_locked(kz, KZ_STATE_DEAD, false);
	mutex_unlock(&kz->life);
	if (dead)
		kz_wake_files(kz);
	return dead;
}
