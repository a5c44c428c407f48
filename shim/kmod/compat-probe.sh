#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Asks the headers of the target kernel, by compiling against them, what its interfaces look like.
# usage: compat-probe.sh OUT        environment: KZ_CC (the compiler with all kernel flags)
# Writes OUT with one "#define KZ_HAVE_..." per probe that compiles. Distributions backport, so version numbers would
# be wrong. A probe that must hold everywhere (control) guards against flags that make everything fail.
set -u

out=$1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

compiles() {
  {
    cat
    echo 'MODULE_LICENSE("GPL");'
  } >"$tmp/$1.c"
  # shellcheck disable=SC2086
  $KZ_CC -Werror -Wno-unused-function -Wno-unused-variable -Wno-missing-prototypes -Wno-missing-declarations \
    -DKBUILD_MODNAME='"probe"' -DKBUILD_BASENAME='"probe"' -c -o "$tmp/$1.o" "$tmp/$1.c" >"$tmp/$1.log" 2>&1
}

probe() {
  name=$1
  if compiles "$name"; then echo "#define $name 1"; else echo "/* $name: no */"; fi
}

if ! echo '#include <linux/module.h>' | compiles control; then
  echo "compat-probe: a file with nothing but linux/module.h does not compile:" >&2
  cat "$tmp/control.log" >&2
  exit 1
fi

{
  echo '/* SPDX-License-Identifier: GPL-2.0 */'
  echo '/* Made by compat-probe.sh from the headers of the kernel this is built for. */'

  # class_create() lost its module argument.
  probe KZ_HAVE_CLASS_CREATE_NAME <<'C'
#include <linux/module.h>
#include <linux/device.h>
struct class *f(void) { return class_create("kz"); }
C
  # class.devnode() takes a const device.
  probe KZ_HAVE_DEVNODE_CONST <<'C'
#include <linux/module.h>
#include <linux/device.h>
static char *f(const struct device *d, umode_t *m) { return NULL; }
struct class c = { .devnode = f };
C
  # vm_flags became read-only and is changed by helpers.
  probe KZ_HAVE_VM_FLAGS_SET <<'C'
#include <linux/module.h>
#include <linux/mm.h>
void f(struct vm_area_struct *v) { vm_flags_set(v, VM_IO); }
C
  # Pinning for reading unshares anonymous pages only, not the zero page; later it looks at the mapping, too.
  probe KZ_HAVE_UNSHARE_ANON_ONLY <<'C'
#include <linux/module.h>
#include <linux/mm.h>
bool f(struct page *p) { return gup_must_unshare(FOLL_PIN, p); }
C
  # Corrected bus errors are told to drivers too.
  probe KZ_HAVE_COR_ERROR_DETECTED <<'C'
#include <linux/module.h>
#include <linux/pci.h>
static void f(struct pci_dev *p) { }
const struct pci_error_handlers h = { .cor_error_detected = f };
C
  # Plugging moved out of blkdev.h.
  probe KZ_HAVE_BLK_PLUG_H <<'C'
#include <linux/module.h>
#include <linux/blk_plug.h>
void *f(blk_plug_cb_fn fn, void *d) { return blk_check_plugged(fn, d, sizeof(struct blk_plug_cb)); }
C
  # io_uring commands moved to a header of their own.
  probe KZ_HAVE_URING_CMD_H <<'C'
#include <linux/module.h>
#include <linux/io_uring/cmd.h>
struct io_uring_cmd c;
C
  # The payload is reached through the submission entry.
  probe KZ_HAVE_URING_SQE <<'C'
#include <linux/module.h>
#if __has_include(<linux/io_uring/cmd.h>)
#include <linux/io_uring/cmd.h>
#else
#include <linux/io_uring.h>
#endif
const void *f(struct io_uring_cmd *c) { return c->sqe->cmd; }
C
  # Completion with a second result has a name of its own.
  probe KZ_HAVE_URING_DONE32 <<'C'
#include <linux/module.h>
#include <linux/io_uring/cmd.h>
void f(struct io_uring_cmd *c) { io_uring_cmd_done32(c, 0, 0, 0); }
C
  # Task work gets a request token instead of the command.
  probe KZ_HAVE_URING_TW_REQ <<'C'
#include <linux/module.h>
#include <linux/io_uring/cmd.h>
static void t(struct io_tw_req r, io_tw_token_t w) { io_uring_cmd_from_tw(r); }
void f(struct io_uring_cmd *c) { io_uring_cmd_complete_in_task(c, t); }
C
  # Commands can be cancelled one by one.
  probe KZ_HAVE_URING_CANCEL <<'C'
#include <linux/module.h>
#include <linux/io_uring/cmd.h>
int f(struct io_uring_cmd *c, unsigned int fl)
{
	io_uring_cmd_mark_cancelable(c, fl);
	return fl & IO_URING_F_CANCEL;
}
C
} >"$tmp/config.h"

if [ "$(cat "$tmp/config.h")" != "$(cat "$out" 2>/dev/null)" ]; then cp "$tmp/config.h" "$out"; fi
