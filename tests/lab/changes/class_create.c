// SPDX-License-Identifier: GPL-2.0
// Compiles before 6.4.
#include <linux/device.h>
#include <linux/module.h>

static struct class *kz_class;

static int __init kz_init(void)
{
	kz_class = class_create(THIS_MODULE, "kz_changes");
	return PTR_ERR_OR_ZERO(kz_class);
}

static void __exit kz_exit(void)
{
	class_destroy(kz_class);
}

module_init(kz_init);
module_exit(kz_exit);
MODULE_DESCRIPTION("changes: class_create");
MODULE_LICENSE("GPL");
