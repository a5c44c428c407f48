// SPDX-License-Identifier: GPL-2.0
// Compiles before 6.18.
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#if __has_include(<linux/io_uring/cmd.h>)
#include <linux/io_uring/cmd.h>
#else
#include <linux/io_uring.h>
#endif

static int kz_uring_cmd(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	io_uring_cmd_done(cmd, 0, 7, issue_flags);
	return -EIOCBQUEUED;
}

static const struct file_operations kz_fops = {
	.owner = THIS_MODULE,
	.uring_cmd = kz_uring_cmd,
};

static struct miscdevice kz_misc = { MISC_DYNAMIC_MINOR, "kz_changes", &kz_fops };

module_misc_device(kz_misc);
MODULE_DESCRIPTION("changes: io_uring_cmd_done");
MODULE_LICENSE("GPL");
