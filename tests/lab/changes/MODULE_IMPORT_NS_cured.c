// SPDX-License-Identifier: GPL-2.0
#include <linux/dma-buf.h>
#include <linux/err.h>
#include <linux/module.h>

static int fd = -1;
module_param(fd, int, 0);

static int __init kz_init(void)
{
	struct dma_buf *buf = dma_buf_get(fd);

	if (!IS_ERR(buf))
		dma_buf_put(buf);
	return 0;
}

static void __exit kz_exit(void)
{
}

module_init(kz_init);
module_exit(kz_exit);
#if KZ_OLD
MODULE_IMPORT_NS(DMA_BUF);
#else
MODULE_IMPORT_NS("DMA_BUF");
#endif
MODULE_DESCRIPTION("changes: MODULE_IMPORT_NS");
MODULE_LICENSE("GPL");
