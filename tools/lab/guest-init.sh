#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-or-later
# First process of a lab guest: mounts what is needed, streams the kernel log to the host, runs /lab/run, powers off.
# A folder of the host is /host; a shell for programs of the host listens on the second serial line.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/root TERM=linux LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
ip link set lo up
echo "lab: kernel $(uname -r)" >/dev/console
. /lab/env
export boot KANGZAO_HOST_PRESSURE=/host/pressure

for m in virtio_pci 9pnet_virtio 9p; do modprobe "$m" 2>/dev/null; done
if ! mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=131072 host /host; then
  echo "lab: no share: this kernel has no 9p over virtio (CONFIG_NET_9P_VIRTIO, CONFIG_9P_FS, CONFIG_VIRTIO_PCI)" >/dev/console
  poweroff -f
fi
# A reader that fell behind ends with an error and is started anew, as long as somebody listens. It gets all that is left
# then; awk passes on what is new, and says how much was overwritten unread: the second number of "6,339,5140900,-;text"
# counts up.
(until [ ! -e /dev/kmsg ] || { dd if=/dev/kmsg bs=8192 2>/dev/null; [ $? -gt 128 ]; }; do sleep 0.1; done) | awk -F'[,;]' -v last=-1 '
  /^[0-9]/ {
    known = $2 <= last
    if ($2 > last + 1) print "lost " $2 - last - 1
    if (!known) last = $2
  }
  !known { print; fflush() }' >"$boot/kernel.log" &
(while :; do cut -d' ' -f1 /proc/uptime >"$boot/alive"; sleep 1; done) &
stty -F /dev/ttyS1 raw -echo 2>/dev/null && (while read -r line; do eval "$line"; done </dev/ttyS1 >/dev/ttyS1 2>&1) &
sh /lab/run
sync
poweroff -f
