// SPDX-License-Identifier: GPL-2.0
/* Registers: access, names, identity, enabling, telemetry. */
#include <linux/delay.h>
#include <linux/iopoll.h>

#include "kz.h"

static const struct {
	u32 reg;
	const char *name;
} kz_regs[] = {
	{ KZ_REG_MAGIC, "MAGIC" },
	{ KZ_REG_ABI, "ABI" },
	{ KZ_REG_CAP, "CAP" },
	{ KZ_REG_FEAT, "FEAT" },
	{ KZ_REG_HBM_SIZE_LO, "HBM_SIZE_LO" },
	{ KZ_REG_HBM_SIZE_HI, "HBM_SIZE_HI" },
	{ KZ_REG_HBM_PAGE, "HBM_PAGE" },
	{ KZ_REG_HBM_GEOM, "HBM_GEOM" },
	{ KZ_REG_MAX_XFER_LO, "MAX_XFER_LO" },
	{ KZ_REG_MAX_XFER_HI, "MAX_XFER_HI" },
	{ KZ_REG_MAX_DIM, "MAX_DIM" },
	{ KZ_REG_DTYPES, "DTYPES" },
	{ KZ_REG_NUMERIC(0), "NUMERIC0" },
	{ KZ_REG_NUMERIC(1), "NUMERIC1" },
	{ KZ_REG_NUMERIC(2), "NUMERIC2" },
	{ KZ_REG_NUMERIC(3), "NUMERIC3" },
	{ KZ_REG_CTRL, "CTRL" },
	{ KZ_REG_STATUS, "STATUS" },
	{ KZ_REG_RESET_COUNT, "RESET_COUNT" },
	{ KZ_REG_RESET_REASON, "RESET_REASON" },
	{ KZ_REG_FW_VERSION, "FW_VERSION" },
	{ KZ_REG_WATCHDOG_MS, "WATCHDOG_MS" },
	{ KZ_REG_SCRATCH, "SCRATCH" },
	{ KZ_REG_TIME_LO, "TIME_LO" },
	{ KZ_REG_TIME_HI, "TIME_HI" },
	{ KZ_REG_HEARTBEAT, "HEARTBEAT" },
	{ KZ_REG_IRQ_MASK, "IRQ_MASK" },
};

u32 kz_rd(struct kz_device *kz, u32 reg)
{
	return readl(kz->regs + reg);
}

void kz_wr(struct kz_device *kz, u32 reg, u32 value)
{
	writel(value, kz->regs + reg);
}

static u64 kz_rd64(struct kz_device *kz, u32 lo)
{
	u64 low = kz_rd(kz, lo);

	return low | (u64)kz_rd(kz, lo + 4) << 32;
}

unsigned int kz_reg_count(void)
{
	return ARRAY_SIZE(kz_regs);
}

u32 kz_reg_at(unsigned int i, const char **name)
{
	*name = kz_regs[i].name;
	return kz_regs[i].reg;
}

const char *kz_reg_name(u32 reg)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(kz_regs); i++) {
		if (kz_regs[i].reg == reg)
			return kz_regs[i].name;
	}
	return "?";
}

/* Everything that says what the device is and how it does, and nothing that belongs to one user. */
bool kz_reg_readable(u32 reg)
{
	unsigned int i;

	if (reg & 3)
		return false;
	if (reg >= KZ_REG_TELEMETRY && reg < KZ_REG_TELEMETRY + sizeof(struct kz_telemetry))
		return true;
	for (i = 0; i < ARRAY_SIZE(kz_regs); i++) {
		if (kz_regs[i].reg == reg)
			return true;
	}
	return false;
}

bool kz_reg_writable(u32 reg)
{
	return reg == KZ_REG_SCRATCH || reg == KZ_REG_WATCHDOG_MS;
}

int kz_wait_reg(struct kz_device *kz, u32 reg, u32 mask, u32 want, u32 ms)
{
	u32 value;
	int rc;

	rc = readl_poll_timeout(kz->regs + reg, value, (value & mask) == want && value != ~0u, 50, ms * 1000ull);
	if (rc)
		dev_err(kz_dma(kz), "%s (0x%x) is 0x%08x, wanted 0x%x under mask 0x%x within %u ms\n", kz_reg_name(reg),
			reg, value, want, mask, ms);
	return rc;
}

bool kz_hw_present(struct kz_device *kz)
{
	return kz_rd(kz, KZ_REG_MAGIC) == KZ_MAGIC;
}

static int kz_hw_check(struct kz_device *kz)
{
	u32 page = kz->hbm_page;

	if (KZ_CAP_QUEUES(kz->cap) < 2 || KZ_CAP_MAX_ORDER(kz->cap) < 1 || KZ_CAP_IOVA_BITS(kz->cap) < 32 ||
	    KZ_CAP_IOVA_BITS(kz->cap) > 64 || !kz->hbm_bytes || !kz->max_xfer || page < PAGE_SIZE ||
	    !is_power_of_2(page)) {
		dev_err(kz_dma(kz), "capabilities make no sense: CAP 0x%08x, HBM %llu in pages of %u, MAX_XFER %llu\n",
			kz->cap, kz->hbm_bytes, page, kz->max_xfer);
		return -ENODEV;
	}
	return 0;
}

int kz_hw_identify(struct kz_device *kz)
{
	u32 magic = kz_rd(kz, KZ_REG_MAGIC);
	unsigned int i;

	kz->abi = kz_rd(kz, KZ_REG_ABI);
	if (magic != KZ_MAGIC || kz->abi >> 16 != KZ_ABI_MAJOR) {
		dev_err(kz_dma(kz), "not a device this driver knows: MAGIC 0x%08x, ABI 0x%08x\n", magic, kz->abi);
		return -ENODEV;
	}
	kz->cap = kz_rd(kz, KZ_REG_CAP);
	kz->feat = kz_rd(kz, KZ_REG_FEAT);
	kz->hbm_bytes = kz_rd64(kz, KZ_REG_HBM_SIZE_LO);
	kz->hbm_page = kz_rd(kz, KZ_REG_HBM_PAGE);
	kz->hbm_geom = kz_rd(kz, KZ_REG_HBM_GEOM);
	kz->max_xfer = kz_rd64(kz, KZ_REG_MAX_XFER_LO);
	kz->max_dim = kz_rd(kz, KZ_REG_MAX_DIM);
	kz->dtypes = kz_rd(kz, KZ_REG_DTYPES);
	for (i = 0; i < 4; i++)
		kz->numeric[i] = kz_rd(kz, KZ_REG_NUMERIC(i));
	kz->nqueues = min_t(u32, KZ_CAP_QUEUES(kz->cap), KZ_MAX_QUEUES);
	kz->ready_ms = max(KZ_CAP_READY_100MS(kz->cap), 1u) * 100;
	kz->hbm_quota = kz->hbm_bytes;
	kz->serial = pci_get_dsn(kz->pdev);
	return kz_hw_check(kz);
}

/* What a driver left behind that did not come to its remove: contexts with memory, queues. Before DMA is let on. */
int kz_hw_clean(struct kz_device *kz)
{
	struct pci_dev *pdev = kz->pdev;
	struct kz_telemetry t;
	int rc;

	if (kz_hw_telemetry(kz, &t) || (!t.contexts && !kz_rd(kz, KZ_REG_CTRL)))
		return 0;
	dev_info(&pdev->dev, "%u contexts left by somebody else, function reset\n", t.contexts);
	pci_save_state(pdev);
	rc = pcie_reset_flr(pdev, PCI_RESET_DO_RESET);
	pci_restore_state(pdev);
	return rc;
}

int kz_hw_enable(struct kz_device *kz)
{
	int rc;

	/* After a reset it may take as long to answer at all as to get ready. */
	if (kz_wait_reg(kz, KZ_REG_MAGIC, ~0u, KZ_MAGIC, kz->ready_ms)) {
		dev_err(kz_dma(kz), "device does not answer: MAGIC 0x%08x\n", kz_rd(kz, KZ_REG_MAGIC));
		return -ENODEV;
	}
	kz_wr(kz, KZ_REG_CTRL, KZ_CTRL_ENABLE);
	rc = kz_wait_reg(kz, KZ_REG_STATUS, KZ_STATUS_READY | KZ_STATUS_FATAL | KZ_STATUS_RESETTING, KZ_STATUS_READY,
			 kz->ready_ms);
	if (rc)
		return rc;
	kz->fw_version = kz_rd(kz, KZ_REG_FW_VERSION);
	kz->reset_count = kz_rd(kz, KZ_REG_RESET_COUNT);
	kz->reset_reason = kz_rd(kz, KZ_REG_RESET_REASON);
	if (kz->watchdog_ms != U32_MAX)
		kz_wr(kz, KZ_REG_WATCHDOG_MS, kz->watchdog_ms);
	return 0;
}

/* Stops all queues; the read makes sure that the write has arrived. */
void kz_hw_disable(struct kz_device *kz)
{
	kz_wr(kz, KZ_REG_CTRL, 0);
	kz_rd(kz, KZ_REG_CTRL);
}

int kz_hw_telemetry(struct kz_device *kz, struct kz_telemetry *t)
{
	unsigned int tries;

	for (tries = 0; tries < 100; tries++) {
		u32 before = kz_rd(kz, KZ_REG_TELEMETRY);

		if (!(before & 1)) {
			memcpy_fromio(t, kz->regs + KZ_REG_TELEMETRY, sizeof(*t));
			if (kz_rd(kz, KZ_REG_TELEMETRY) == before && t->seq == before)
				return 0;
		}
		usleep_range(20, 100);
	}
	return -EAGAIN;
}

int kz_status_errno(u16 status)
{
	switch (status) {
	case KZ_ST_OK:
		return 0;
	case KZ_ST_NO_MEMORY:
		return -ENOMEM;
	case KZ_ST_NO_CONTEXT:
		return -ENOSPC;
	case KZ_ST_BUSY:
		return -EBUSY;
	case KZ_ST_HBM_FAULT:
	case KZ_ST_DMA_FAULT:
		return -EFAULT;
	case KZ_ST_DENIED:
		return -EACCES;
	case KZ_ST_BAD_OPCODE:
	case KZ_ST_BAD_FIELD:
	case KZ_ST_BAD_LENGTH:
	case KZ_ST_MISALIGNED:
	case KZ_ST_BAD_IMAGE:
		return -EINVAL;
	default:
		return -EREMOTEIO;
	}
}
