// SPDX-License-Identifier: GPL-2.0
/* A driver that kills its kernel at load, in the way that KZ_BAD says. */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/smp.h>

#define OOPS 1
#define PANIC 2
#define HANG 3
#define REFUSE 4
#define SLEEP 5

static __maybe_unused int *volatile kz_nowhere;

/* On every processor, with interrupts off: nobody is left to tell anybody. */
static __maybe_unused void kz_spin(void *unused)
{
	for (;;)
		cpu_relax();
}

static int __init kz_bad_init(void)
{
#if KZ_BAD == OOPS
	return *kz_nowhere;
#elif KZ_BAD == PANIC
	panic("kz_bad: the board is on fire");
#elif KZ_BAD == HANG
	on_each_cpu(kz_spin, NULL, 1);
#elif KZ_BAD == REFUSE
	pr_err("kz_bad: firmware image kz/bad.bin is missing\n");
	return -ENOENT;
#elif KZ_BAD == SLEEP
	for (;;)
		msleep(1000);
#endif
	return 0;
}

static void __exit kz_bad_exit(void)
{
}

module_init(kz_bad_init);
module_exit(kz_bad_exit);
MODULE_DESCRIPTION("Breaks at load, for tests of the lab");
MODULE_LICENSE("GPL");
