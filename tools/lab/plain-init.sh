#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-or-later
# First process of a guest of qemu.sh: mounts what is needed, runs /lab/run, tells its exit status on the console, powers off.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t debugfs debugfs /sys/kernel/debug
mount -t tmpfs tmpfs /tmp
echo "lab: kernel $(uname -r)"
sh /lab/run
echo "lab: exit $?"
poweroff -f
