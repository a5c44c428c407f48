// SPDX-License-Identifier: GPL-2.0
/*
 * A small driver for the "edu" device of QEMU (docs/specs/edu.rst there; 1234:11e8): its 4 KiB of memory behind a character
 * device. A write() goes there by DMA, a read() comes from there. It stands here for a driver that somebody brings along;
 * docs/vendor-driver.md tests it, sound and with each of three bugs:
 *
 *   EDU_BUG=1  the file operations have no owner
 *   EDU_BUG=2  what probe allocated is not all freed
 *   EDU_BUG=3  remove does not care who is in read() or write()
 */
#include <linux/completion.h>
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define EDU_IRQ_STATUS 0x24
#define EDU_IRQ_ACK 0x64
#define EDU_DMA_SRC 0x80
#define EDU_DMA_DST 0x88
#define EDU_DMA_COUNT 0x90
#define EDU_DMA_CMD 0x98
#define EDU_DMA_START 0x1
#define EDU_DMA_FROM_DEVICE 0x2
#define EDU_DMA_IRQ 0x4

#define EDU_MEMORY 0x40000 /* the device's address of its own memory */
#define EDU_BYTES 4096
#define EDU_DMA_BITS 28

struct edu {
	struct kref ref; /* the binding and each open file */
	struct mutex lock; /* one transfer at a time; `gone` */
	bool gone;
	struct pci_dev *pdev;
	void __iomem *regs;
	void *buf;
	dma_addr_t dma;
	char *name; /* of the node, "edu0" */
	struct completion done;
	struct miscdevice misc;
};

static void edu_release_memory(struct kref *ref)
{
	struct edu *edu = container_of(ref, struct edu, ref);

	if (EDU_BUG != 2)
		kfree(edu->name);
	kfree(edu);
}

static irqreturn_t edu_irq(int irq, void *data)
{
	struct edu *edu = data;
	u32 status = readl(edu->regs + EDU_IRQ_STATUS);

	if (!status || status == ~0u)
		return IRQ_NONE;
	writel(status, edu->regs + EDU_IRQ_ACK);
	complete(&edu->done);
	return IRQ_HANDLED;
}

static int edu_transfer(struct edu *edu, size_t count, bool from_device)
{
	bool told;

	reinit_completion(&edu->done);
	writeq(from_device ? EDU_MEMORY : edu->dma, edu->regs + EDU_DMA_SRC);
	writeq(from_device ? edu->dma : EDU_MEMORY, edu->regs + EDU_DMA_DST);
	writeq(count, edu->regs + EDU_DMA_COUNT);
	writeq(EDU_DMA_START | EDU_DMA_IRQ | (from_device ? EDU_DMA_FROM_DEVICE : 0), edu->regs + EDU_DMA_CMD);
	told = wait_for_completion_timeout(&edu->done, 2 * HZ);
	if (readq(edu->regs + EDU_DMA_CMD) & EDU_DMA_START)
		return -EIO; /* still running */
	return told ? 0 : -ETIMEDOUT;
}

static struct edu *edu_of(struct file *file)
{
	return container_of(file->private_data, struct edu, misc);
}

static int edu_enter(struct edu *edu)
{
	if (mutex_lock_interruptible(&edu->lock))
		return -ERESTARTSYS;
	if (!edu->gone || EDU_BUG == 3)
		return 0;
	mutex_unlock(&edu->lock);
	return -ENODEV;
}

static ssize_t edu_read(struct file *file, char __user *to, size_t count, loff_t *pos)
{
	struct edu *edu = edu_of(file);
	int rc = edu_enter(edu);

	if (rc)
		return rc;
	count = min_t(size_t, count, EDU_BYTES);
	rc = count ? edu_transfer(edu, count, true) : 0;
	if (!rc && copy_to_user(to, edu->buf, count))
		rc = -EFAULT;
	mutex_unlock(&edu->lock);
	return rc ? rc : count;
}

static ssize_t edu_write(struct file *file, const char __user *from, size_t count, loff_t *pos)
{
	struct edu *edu = edu_of(file);
	int rc = edu_enter(edu);

	if (rc)
		return rc;
	count = min_t(size_t, count, EDU_BYTES);
	if (copy_from_user(edu->buf, from, count))
		rc = -EFAULT;
	else if (count)
		rc = edu_transfer(edu, count, false);
	mutex_unlock(&edu->lock);
	return rc ? rc : count;
}

/* misc_open() has put the miscdevice there, and keeps misc_deregister() out meanwhile. */
static int edu_open(struct inode *inode, struct file *file)
{
	kref_get(&edu_of(file)->ref);
	return nonseekable_open(inode, file);
}

static int edu_close(struct inode *inode, struct file *file)
{
	kref_put(&edu_of(file)->ref, edu_release_memory);
	return 0;
}

static const struct file_operations edu_fops = {
	.owner = EDU_BUG == 1 ? NULL : THIS_MODULE,
	.open = edu_open,
	.release = edu_close,
	.read = edu_read,
	.write = edu_write,
};

static int edu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct edu *edu = kzalloc(sizeof(*edu), GFP_KERNEL);
	int rc = -ENOMEM;

	if (!edu)
		return -ENOMEM;
	kref_init(&edu->ref);
	mutex_init(&edu->lock);
	init_completion(&edu->done);
	edu->pdev = pdev;
	pci_set_drvdata(pdev, edu);
	edu->name = kasprintf(GFP_KERNEL, "edu%u", PCI_DEVID(pdev->bus->number, pdev->devfn));
	if (!edu->name)
		goto put;
	rc = pci_enable_device(pdev);
	if (rc)
		goto put;
	rc = pci_request_regions(pdev, KBUILD_MODNAME);
	if (rc)
		goto disable;
	rc = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(EDU_DMA_BITS));
	if (rc)
		goto regions;
	rc = -ENOMEM;
	edu->regs = pci_iomap(pdev, 0, 0);
	if (!edu->regs)
		goto regions;
	edu->buf = dma_alloc_coherent(&pdev->dev, EDU_BYTES, &edu->dma, GFP_KERNEL);
	if (!edu->buf)
		goto unmap;
	pci_set_master(pdev);
	rc = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSI);
	if (rc < 0)
		goto buffer;
	rc = request_irq(pci_irq_vector(pdev, 0), edu_irq, 0, KBUILD_MODNAME, edu);
	if (rc)
		goto vectors;
	edu->misc.minor = MISC_DYNAMIC_MINOR;
	edu->misc.name = edu->name;
	edu->misc.fops = &edu_fops;
	edu->misc.parent = &pdev->dev;
	rc = misc_register(&edu->misc);
	if (rc)
		goto irq;
	return 0;

irq:
	free_irq(pci_irq_vector(pdev, 0), edu);
vectors:
	pci_free_irq_vectors(pdev);
buffer:
	pci_clear_master(pdev);
	dma_free_coherent(&pdev->dev, EDU_BYTES, edu->buf, edu->dma);
unmap:
	pci_iounmap(pdev, edu->regs);
regions:
	pci_release_regions(pdev);
disable:
	pci_disable_device(pdev);
put:
	kref_put(&edu->ref, edu_release_memory);
	return rc;
}

static void edu_remove(struct pci_dev *pdev)
{
	struct edu *edu = pci_get_drvdata(pdev);

	misc_deregister(&edu->misc);
	if (EDU_BUG != 3) {
		mutex_lock(&edu->lock); /* a transfer ends by itself, in 2 s at most */
		edu->gone = true;
		mutex_unlock(&edu->lock);
	}
	free_irq(pci_irq_vector(pdev, 0), edu);
	pci_free_irq_vectors(pdev);
	pci_clear_master(pdev);
	dma_free_coherent(&pdev->dev, EDU_BYTES, edu->buf, edu->dma);
	pci_iounmap(pdev, edu->regs);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
	kref_put(&edu->ref, edu_release_memory);
}

static const struct pci_device_id edu_ids[] = { { PCI_DEVICE(0x1234, 0x11e8) }, { 0 } };
MODULE_DEVICE_TABLE(pci, edu_ids);

static struct pci_driver edu_driver = {
	.name = KBUILD_MODNAME,
	.id_table = edu_ids,
	.probe = edu_probe,
	.remove = edu_remove,
};
module_pci_driver(edu_driver);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("memory of QEMU's edu device, as an example of a driver under test");
