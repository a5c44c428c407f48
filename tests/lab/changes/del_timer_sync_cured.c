// SPDX-License-Identifier: GPL-2.0
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/timer.h>

#if !KZ_NEW
#define timer_delete_sync del_timer_sync
#endif

static struct timer_list kz_timer;

static void kz_tick(struct timer_list *t)
{
	mod_timer(t, jiffies + HZ);
}

static int __init kz_init(void)
{
	timer_setup(&kz_timer, kz_tick, 0);
	mod_timer(&kz_timer, jiffies + HZ);
	return 0;
}

static void __exit kz_exit(void)
{
	timer_delete_sync(&kz_timer);
}

module_init(kz_init);
module_exit(kz_exit);
MODULE_DESCRIPTION("changes: del_timer_sync");
MODULE_LICENSE("GPL");
