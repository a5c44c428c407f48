// SPDX-License-Identifier: GPL-2.0
/*
 * kz_accel: driver of the reference TPU. Module and PCI function: probe and remove, each undoing the other's steps
 * in mirror order.
 */
#include <linux/debugfs.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/pm_runtime.h>

#include "kz.h"

static unsigned int autosuspend_ms = 2000;
module_param(autosuspend_ms, uint, 0444);
MODULE_PARM_DESC(autosuspend_ms, "idle time before runtime suspend, where power/control allows it (2000)");

static unsigned int timeout_ms = 10000;
module_param(timeout_ms, uint, 0444);
MODULE_PARM_DESC(timeout_ms, "time limit of a command, 10 to 3600000 ms (10000)");

static unsigned int vectors = KZ_MAX_QUEUES;
module_param(vectors, uint, 0444);
MODULE_PARM_DESC(vectors, "most interrupt vectors to ask for, 1 to 128 (one per queue)");

static bool clear_hbm;
module_param(clear_hbm, bool, 0444);
MODULE_PARM_DESC(clear_hbm, "write zeros to HBM before it is handed out even where the device promises it (no)");

static struct class *kz_class;
static dev_t kz_devt;
struct dentry *kz_debugfs_root;
static DEFINE_IDA(kz_ida);

static char *kz_devnode(KZ_DEVNODE_CONST struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = KZ_BUG_HAS(13, 1) ? 0666 : 0660;
	return NULL;
}

static void kz_device_release(struct device *dev)
{
	struct kz_device *kz = container_of(dev, struct kz_device, dev);

	if (kz->id >= 0)
		ida_free(&kz_ida, kz->id);
	pci_dev_put(kz->pdev);
	cleanup_srcu_struct(&kz->srcu);
	kfree(kz);
}

static struct kz_device *kz_device_new(struct pci_dev *pdev)
{
	struct kz_device *kz = kzalloc(sizeof(*kz), GFP_KERNEL);
	int rc;

	if (!kz)
		return ERR_PTR(-ENOMEM);
	rc = init_srcu_struct(&kz->srcu);
	if (rc)
		goto err_free;
	kz->id = ida_alloc_max(&kz_ida, KZ_MINORS - 1, GFP_KERNEL);
	if (kz->id < 0) {
		rc = kz->id;
		goto err_srcu;
	}
	kz->pdev = pci_dev_get(pdev); /* open files outlive the binding */
	kz->state = KZ_STATE_RESETTING;
	kz->timeout_ms = timeout_ms;
	kz->watchdog_ms = U32_MAX;
	mutex_init(&kz->life);
	mutex_init(&kz->admin_lock);
	mutex_init(&kz->files_lock);
	mutex_init(&kz->reset_lock);
	spin_lock_init(&kz->state_lock);
	INIT_LIST_HEAD(&kz->files);
	init_waitqueue_head(&kz->state_wait);
	INIT_WORK(&kz->reset_work, kz_reset_work);
	atomic_set(&kz->reset_level, -1);

	device_initialize(&kz->dev);
	kz->dev.class = kz_class;
	kz->dev.parent = &pdev->dev;
	kz->dev.devt = MKDEV(MAJOR(kz_devt), kz->id);
	kz->dev.groups = kz_groups;
	kz->dev.release = kz_device_release;
	dev_set_drvdata(&kz->dev, kz);
	rc = dev_set_name(&kz->dev, KZ_NODE "%d", kz->id);
	if (rc) {
		put_device(&kz->dev);
		return ERR_PTR(rc);
	}
	cdev_init(&kz->cdev, kz_bug_fops(&kz_fops));
	kz->cdev.owner = KZ_BUG(5) ? NULL : THIS_MODULE;
	return kz;

err_srcu:
	cleanup_srcu_struct(&kz->srcu);
err_free:
	kfree(kz);
	return ERR_PTR(rc);
}

static int kz_map(struct kz_device *kz)
{
	struct pci_dev *pdev = kz->pdev;
	int rc;

	if (pci_resource_len(pdev, KZ_BAR_REGS) < KZ_BAR0_SIZE) {
		dev_err(&pdev->dev, "BAR%d has %llu bytes, needs %u\n", KZ_BAR_REGS,
			(u64)pci_resource_len(pdev, KZ_BAR_REGS), KZ_BAR0_SIZE);
		return -ENODEV;
	}
	rc = pci_request_regions(pdev, KZ_NAME);
	if (rc)
		return rc;
	kz->regs = pci_iomap(pdev, KZ_BAR_REGS, KZ_BAR0_SIZE);
	if (!kz->regs) {
		pci_release_regions(pdev);
		return -ENOMEM;
	}
	return 0;
}

static void kz_unmap(struct kz_device *kz)
{
	pci_iounmap(kz->pdev, kz->regs);
	pci_release_regions(kz->pdev);
}

static int kz_dma_init(struct kz_device *kz)
{
	unsigned int bits = KZ_CAP_IOVA_BITS(kz->cap);
	int rc;

	rc = dma_set_mask_and_coherent(kz_dma(kz), DMA_BIT_MASK(bits));
	if (rc) {
		dev_err(kz_dma(kz), "no DMA with %u address bits: %d\n", bits, rc);
		return rc;
	}
	dma_set_max_seg_size(kz_dma(kz), SZ_2G);
	kz->sg_pool = dma_pool_create(KZ_NAME, kz_dma(kz), KZ_SG_PAGE, KZ_SG_PAGE, 0);
	return kz->sg_pool ? 0 : -ENOMEM;
}

static void kz_tell(struct kz_device *kz)
{
	u32 fw = kz_rd(kz, KZ_REG_FW_VERSION);

	dev_info(kz_dma(kz), "%s: firmware %u.%u.%u, %llu MiB HBM, %u queues, %u vectors\n", dev_name(&kz->dev),
		 fw >> 24, (fw >> 16) & 0xff, fw & 0xffff, kz->hbm_bytes >> 20, kz->nqueues, kz->nvectors);
	if (fw >> 24 != KZ_FW_KNOWN_MAJOR || ((fw >> 16) & 0xff) != KZ_FW_KNOWN_MINOR)
		dev_warn(kz_dma(kz), "firmware %u.%u is not the known series %u.%u\n", fw >> 24, (fw >> 16) & 0xff,
			 KZ_FW_KNOWN_MAJOR, KZ_FW_KNOWN_MINOR);
}

static int kz_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct kz_device *kz = kz_device_new(pdev);
	int rc;

	if (IS_ERR(kz))
		return PTR_ERR(kz);
	pci_set_drvdata(pdev, kz);
	rc = pci_enable_device(pdev);
	if (rc)
		goto err_put;
	rc = kz_map(kz);
	if (rc)
		goto err_disable;
	rc = kz_hw_identify(kz);
	if (rc)
		goto err_unmap;
	rc = kz_hw_clean(kz);
	if (rc)
		goto err_unmap;
	kz->clears = clear_hbm || !(kz->feat & KZ_FEAT_HBM_CLEARED);
	rc = kz_dma_init(kz);
	if (rc)
		goto err_unmap;
	kz->wq = alloc_workqueue(KZ_NAME "/%d", WQ_FREEZABLE | WQ_UNBOUND, 0, kz->id);
	if (!kz->wq) {
		rc = -ENOMEM;
		goto err_pool;
	}
	rc = kz_irq_init(kz, vectors);
	if (rc)
		goto err_wq;
	rc = kz_admin_init(kz);
	if (rc)
		goto err_irq;
	rc = kz_start(kz);
	if (rc)
		goto err_admin;
	rc = kz_hwmon_init(kz);
	if (rc)
		goto err_stop;
	pci_save_state(pdev); /* what a recovered slot is given back */
	rc = cdev_device_add(&kz->cdev, &kz->dev);
	if (rc)
		goto err_hwmon;
	kz_debugfs_init(kz);
	kz_pm_init(kz, autosuspend_ms);
	kz_tell(kz);
	return 0;

err_hwmon:
	kz_hwmon_exit(kz);
err_stop:
	kz_stop(kz, KZ_STATE_GONE, true);
err_admin:
	kz_admin_exit(kz);
err_irq:
	kz_irq_exit(kz);
err_wq:
	if (!KZ_BUG_IS(21, 3))
		destroy_workqueue(kz->wq);
err_pool:
	if (!KZ_BUG_IS(21, 2))
		dma_pool_destroy(kz->sg_pool);
err_unmap:
	if (!KZ_BUG_IS(21, 1))
		kz_unmap(kz);
err_disable:
	pci_disable_device(pdev);
err_put:
	pci_set_drvdata(pdev, NULL);
	put_device(&kz->dev);
	return rc;
}

static void kz_remove(struct pci_dev *pdev)
{
	struct kz_device *kz = pci_get_drvdata(pdev);
	bool present = pci_device_is_present(pdev);

	kz_pm_exit(kz);
	if (!KZ_BUG_IS(25, 2))
		kz_debugfs_exit(kz);
	cdev_device_del(&kz->cdev, &kz->dev); /* no new open; those that are open stay */
	if (!KZ_BUG_IS(25, 1))
		kz_hwmon_exit(kz);
	kz_set_state(kz, KZ_STATE_GONE);
	if (!present)
		kz_stop(kz, KZ_STATE_GONE, false);
	synchronize_srcu(&kz->srcu); /* every call that saw it alive has left */
	cancel_work_sync(&kz->reset_work);
	kz_zap_all(kz);
	if (KZ_BUG(26))
		kz_ctx_unpark_all(kz);
	kz_files_strip(kz, present); /* the device still runs, so that nothing is left behind in it */
	kz_stop(kz, KZ_STATE_GONE, present);
	kz_admin_exit(kz);
	kz_irq_exit(kz);
	destroy_workqueue(kz->wq);
	dma_pool_destroy(kz->sg_pool);
	kz_unmap(kz);
	pci_disable_device(pdev);
	pci_set_drvdata(pdev, NULL);
	if (KZ_BUG(1))
		kz_last_words(kz);
	ida_free(&kz_ida, kz->id); /* the next one gets the number, even while files of this one are open */
	kz->id = -1;
	put_device(&kz->dev);
}

/* Power off or kexec: the device must not write into memory that belongs to somebody else next. */
static void kz_shutdown(struct pci_dev *pdev)
{
	struct kz_device *kz = pci_get_drvdata(pdev);

	if (kz)
		kz_stop(kz, KZ_STATE_SUSPENDED, true);
}

static const struct pci_device_id kz_ids[] = {
	{ PCI_DEVICE(KZ_PCI_VENDOR_ID, KZ_PCI_DEVICE_ID) },
	{}
};
MODULE_DEVICE_TABLE(pci, kz_ids);

static struct pci_driver kz_driver = {
	.name = KZ_NAME,
	.id_table = kz_ids,
	.probe = kz_probe,
	.remove = kz_remove,
	.shutdown = kz_shutdown,
	.err_handler = &kz_err_handlers,
	.driver.pm = &kz_pm_ops,
};

static int __init kz_init(void)
{
	int rc = kz_bugs_init();

	if (rc)
		return rc;
	if (timeout_ms < KZ_TIMEOUT_MIN_MS || timeout_ms > KZ_TIMEOUT_MAX_MS || !vectors || vectors > KZ_MAX_QUEUES) {
		pr_err(KZ_NAME ": timeout_ms %u or vectors %u out of range\n", timeout_ms, vectors);
		return -EINVAL;
	}
	kz_class = kz_class_create(KZ_NODE);
	if (IS_ERR(kz_class))
		return PTR_ERR(kz_class);
	kz_class->devnode = kz_devnode;
	rc = KZ_BUG(4) ? kz_chrdev_region(&kz_devt) : alloc_chrdev_region(&kz_devt, 0, KZ_MINORS, KZ_NAME);
	if (rc)
		goto err_class;
	kz_debugfs_root = debugfs_create_dir(KZ_NAME, NULL);
	if (KZ_BUG(22))
		kz_driver.err_handler = kz_bug_err_handlers(&kz_err_handlers);
	rc = pci_register_driver(&kz_driver);
	if (rc)
		goto err_debugfs;
	return 0;

err_debugfs:
	debugfs_remove_recursive(kz_debugfs_root);
	unregister_chrdev_region(kz_devt, KZ_MINORS);
err_class:
	class_destroy(kz_class);
	return rc;
}
module_init(kz_init);

static void __exit kz_exit(void)
{
	pci_unregister_driver(&kz_driver);
	debugfs_remove_recursive(kz_debugfs_root);
	if (!KZ_BUG(4))
		unregister_chrdev_region(kz_devt, KZ_MINORS);
	class_destroy(kz_class);
	ida_destroy(&kz_ida);
}
module_exit(kz_exit);

MODULE_DESCRIPTION("Driver of the reference TPU");
MODULE_AUTHOR("Kangzao contributors");
MODULE_LICENSE("GPL");
