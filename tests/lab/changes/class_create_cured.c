// SPDX-License-Identifier: GPL-2.0
#include <linux/device.h>
#include <linux/module.h>

#if KZ_NEW
#define kz_class_create(name) class_create(name)
#else
#define kz_class_create(name) class_create(THIS_MODULE, name)
#endif

static struct class *kz_class;

static int __init kz_init(void)
{
	kz_class = kz_class_create("kz_changes");
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
