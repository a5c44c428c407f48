// SPDX-License-Identifier: GPL-2.0
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

static int kz_open(struct inode *inode, struct file *file)
{
	return nonseekable_open(inode, file);
}

static const struct file_operations kz_fops = {
	.owner = THIS_MODULE,
	.open = kz_open,
};

static struct miscdevice kz_misc = { MISC_DYNAMIC_MINOR, "kz_changes", &kz_fops };

module_misc_device(kz_misc);
MODULE_DESCRIPTION("changes: no_llseek");
MODULE_LICENSE("GPL");
