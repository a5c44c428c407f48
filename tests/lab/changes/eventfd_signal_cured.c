// SPDX-License-Identifier: GPL-2.0
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

#if KZ_NEW
#define kz_signal(ctx) eventfd_signal(ctx)
#else
#define kz_signal(ctx) eventfd_signal(ctx, 1)
#endif

static long kz_ioctl(struct file *file, unsigned int cmd, unsigned long fd)
{
	struct eventfd_ctx *ctx = eventfd_ctx_fdget(fd);

	if (IS_ERR(ctx))
		return PTR_ERR(ctx);
	kz_signal(ctx);
	eventfd_ctx_put(ctx);
	return 0;
}

static const struct file_operations kz_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = kz_ioctl,
};

static struct miscdevice kz_misc = { MISC_DYNAMIC_MINOR, "kz_changes", &kz_fops };

module_misc_device(kz_misc);
MODULE_DESCRIPTION("changes: eventfd_signal");
MODULE_LICENSE("GPL");
