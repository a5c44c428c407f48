// SPDX-License-Identifier: GPL-2.0
/* PCI error recovery (Documentation/PCI/pci-error-recovery.rst) and resets from outside. */
#include <linux/pm_runtime.h>

#include "kz.h"

static pci_ers_result_t kz_error_detected(struct pci_dev *pdev, pci_channel_state_t channel)
{
	struct kz_device *kz = pci_get_drvdata(pdev);

	kz->errors_seen++;
	switch (channel) {
	case pci_channel_io_normal:
		dev_warn(&pdev->dev, "non-fatal bus error\n");
		return PCI_ERS_RESULT_CAN_RECOVER; /* nothing is lost; mmio_enabled looks */
	case pci_channel_io_frozen:
		dev_warn(&pdev->dev, "fatal bus error, waiting for the link to be reset\n");
		kz_stop(kz, KZ_STATE_RESETTING, false);
		return PCI_ERS_RESULT_NEED_RESET;
	default:
		dev_err(&pdev->dev, "bus error, device given up\n");
		kz_stop(kz, KZ_STATE_DEAD, false);
		return PCI_ERS_RESULT_DISCONNECT;
	}
}

static pci_ers_result_t kz_mmio_enabled(struct pci_dev *pdev)
{
	struct kz_device *kz = pci_get_drvdata(pdev);

	if (kz_hw_present(kz) && !(kz_rd(kz, KZ_REG_STATUS) & KZ_STATUS_FATAL))
		return PCI_ERS_RESULT_RECOVERED;
	return PCI_ERS_RESULT_NEED_RESET;
}

static pci_ers_result_t kz_slot_reset(struct pci_dev *pdev)
{
	struct kz_device *kz = pci_get_drvdata(pdev);

	if (kz_state(kz) == KZ_STATE_LIVE)
		kz_stop(kz, KZ_STATE_RESETTING, false); /* reset for a neighbour's sake */
	pci_restore_state(pdev);
	pci_save_state(pdev); /* restoring used it up */
	if (pci_reenable_device(pdev)) { /* probe has enabled it: not counted once more */
		dev_err(&pdev->dev, "cannot be enabled after the reset\n");
		return PCI_ERS_RESULT_DISCONNECT;
	}
	kz->resets[KZ_LEVEL_DEVICE]++;
	if (KZ_BUG(23))
		return kz_start_again(kz) ? PCI_ERS_RESULT_DISCONNECT : PCI_ERS_RESULT_RECOVERED;
	return kz_start(kz) ? PCI_ERS_RESULT_DISCONNECT : PCI_ERS_RESULT_RECOVERED;
}

static void kz_resume(struct pci_dev *pdev)
{
	struct kz_device *kz = pci_get_drvdata(pdev);

	kz->errors_recovered++;
	dev_info(&pdev->dev, "recovered from a bus error\n");
}

/* Awake until it is done: a wake-up between would start the device before its reset. */
static void kz_reset_prepare(struct pci_dev *pdev)
{
	pm_runtime_get_sync(&pdev->dev);
	kz_stop(pci_get_drvdata(pdev), KZ_STATE_RESETTING, true);
}

static void kz_reset_done(struct pci_dev *pdev)
{
	struct kz_device *kz = pci_get_drvdata(pdev);

	pci_save_state(pdev);
	if (!kz_start(kz))
		dev_info(&pdev->dev, "function reset, ready again\n");
	pm_runtime_mark_last_busy(&pdev->dev);
	pm_runtime_put_autosuspend(&pdev->dev);
}

static void __maybe_unused kz_cor_error_detected(struct pci_dev *pdev)
{
	struct kz_device *kz = pci_get_drvdata(pdev);

	kz->errors_corrected++;
}

const struct pci_error_handlers kz_err_handlers = {
	.error_detected = kz_error_detected,
	.mmio_enabled = kz_mmio_enabled,
	.slot_reset = kz_slot_reset,
	.resume = kz_resume,
	.reset_prepare = kz_reset_prepare,
	.reset_done = kz_reset_done,
	KZ_COR_ERROR_DETECTED(kz_cor_error_detected)
};
