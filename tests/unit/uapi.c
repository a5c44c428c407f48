// SPDX-License-Identifier: GPL-2.0-or-later
// The ABI headers as a C program sees them, with implicit padding forbidden by -Wpadded: the static assertions in the
// headers are the test.
#include "shim/uapi/kz_cmd.h"
#include "shim/uapi/kz_hbm.h"
#include "shim/uapi/kz_regs.h"
#include "shim/uapi/kz_telemetry.h"

unsigned long kz_uapi_sizes_in_c(void)
{
	return sizeof(struct kz_cmd) << 16 | sizeof(struct kz_cqe) << 8 | sizeof(struct kz_dbrec);
}
