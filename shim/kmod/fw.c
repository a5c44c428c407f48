// SPDX-License-Identifier: GPL-2.0
/* Firmware images: from a user's memory or from /lib/firmware. The device checks them; they become active at reset. */
#include <linux/firmware.h>
#include <linux/uaccess.h>

#include "kz.h"

#define KZ_FW_MAX SZ_4M /* the image must lie in one piece for the device */

/* Either `user` or `kernel` holds the image. */
int kz_fw_update(struct kz_device *kz, const void __user *user, const void *kernel, size_t len, u32 *status)
{
	struct kz_cmd cmd = { .opcode = KZ_OP_FW_UPDATE };
	u32 generation = READ_ONCE(kz->generation);
	dma_addr_t dma;
	void *image;
	int rc;

	if (!(kz->feat & KZ_FEAT_FW_UPDATE))
		return -EOPNOTSUPP;
	if (len < sizeof(struct kz_fw_header))
		return -EINVAL;
	if (len > KZ_FW_MAX)
		return -EFBIG;
	image = dma_alloc_coherent(kz_dma(kz), len, &dma, GFP_KERNEL | __GFP_NOWARN);
	if (!image)
		return -ENOMEM;
	if (kernel)
		memcpy(image, kernel, len);
	else if (copy_from_user(image, user, len)) {
		rc = -EFAULT;
		goto out;
	}
	cmd.u.copy.src = dma;
	cmd.u.copy.len = len;
	cmd.u.copy.src_space = KZ_SP_HOST;
	rc = kz_admin(kz, generation, &cmd, NULL, KZ_FW_MS);
	*status = rc > 0 ? rc : 0;
	if (rc > 0) {
		dev_info(kz_dma(kz), "firmware image refused with status 0x%x\n", rc);
		rc = kz_status_errno(rc);
	}
out:
	dma_free_coherent(kz_dma(kz), len, image, dma);
	return rc;
}

/* `name` is a path below /lib/firmware. */
int kz_fw_load(struct kz_device *kz, const char *name)
{
	const struct firmware *fw;
	u32 status = 0;
	int rc;

	if (!*name || *name == '/' || strstr(name, ".."))
		return -EINVAL;
	rc = request_firmware(&fw, name, kz_dma(kz));
	if (rc)
		return rc;
	rc = kz_fw_update(kz, NULL, fw->data, fw->size, &status);
	release_firmware(fw);
	return rc;
}
