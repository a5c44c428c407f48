#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Boots a lab kernel in QEMU with softtpu below a PCIe root port and runs a command in the guest.
#
# usage: qemu.sh [OPTION...] ROLE 'COMMAND'
#   ROLE                 a kernel of roots.sh: stable-1, stable, backports, sid
#   COMMAND              shell text for the guest (busybox sh); its exit status becomes ours
#   --softtpu PROGRAM    the device model (default: build/bin/softtpu)
#   --tpu 'OPTIONS'      more options for it
#   --no-tpu             no device
#   --add SRC:DEST       a file for the guest; repeatable
#   --kernel FILE        this kernel instead of the role's
#   --append TEXT        more kernel parameters
#   --qemu 'OPTIONS'     more options for QEMU
#   --iommu              with a virtual IOMMU
#   --msg-timeout MS     how long QEMU waits for the device model (10000). QEMU loses its place in the
#                        stream after a late reply, so short ones are for tests of a lost device
#   --mem SIZE           guest memory (1G)
#   --timeout S          end the guest after that many seconds (120)
#   --out DIR            keeps serial.log, softtpu.log, qemu.log, monitor socket there (default: a temporary folder)
#   -v                   the guest's console as it comes
#
# Exit: the command's status; 124 the guest hung or panicked and was ended; 125 this host cannot do it; 2 usage.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/kangzao/roots"
softtpu="$here/../../build/bin/softtpu"
msg_timeout=10000 tpu_options= add= kernel= append= qemu_options= iommu= mem=1G limit=120 out= verbose= with_tpu=1

die() { code=$1; shift; echo "qemu: $*" >&2; exit "$code"; }
usage() { sed -n '5,21s/^# \{0,1\}//p' "$0" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case "$1" in
    --softtpu) softtpu=$2; shift ;;
    --tpu) tpu_options=$2; shift ;;
    --no-tpu) with_tpu= ;;
    --add) add="$add $2"; shift ;;
    --kernel) kernel=$2; shift ;;
    --append) append=$2; shift ;;
    --qemu) qemu_options=$2; shift ;;
    --iommu) iommu=1 ;;
    --msg-timeout) msg_timeout=$2; shift ;;
    --mem) mem=$2; shift ;;
    --timeout) limit=$2; shift ;;
    --out) out=$2; shift ;;
    -v) verbose=1 ;;
    -*) usage ;;
    *) break ;;
  esac
  shift
done
[ $# -eq 2 ] || usage
role=$1
command=$2

tmp=
if [ -z "$out" ]; then
  tmp=$(mktemp -d)
  out=$tmp
fi
mkdir -p "$out"
tpu_pid= qemu_pid= tail_pid=
finish() {
  for pid in $tail_pid $qemu_pid $tpu_pid; do kill "$pid" 2>/dev/null || :; done
  wait 2>/dev/null || :
  [ -z "$tmp" ] || rm -rf "$tmp"
}
trap finish EXIT
trap 'exit 130' INT TERM

# QEMU with vfio-user: the host's, else the extracted one, started through its own loader.
find_qemu() {
  if command -v qemu-system-x86_64 >/dev/null 2>&1 &&
    qemu-system-x86_64 -device help 2>/dev/null | grep -q vfio-user-pci; then
    qemu=qemu-system-x86_64
    return
  fi
  r="$cache/qemu"
  lib="$r/usr/lib/x86_64-linux-gnu"
  [ -x "$r/usr/bin/qemu-system-x86_64" ] || die 125 "no QEMU with vfio-user; first: roots.sh get qemu"
  qemu="$lib/ld-linux-x86-64.so.2 --library-path $lib:$lib/pulseaudio $r/usr/bin/qemu-system-x86_64 -L $r/usr/share/qemu -L $r/usr/share/seabios"
}

find_kernel() {
  [ -z "$kernel" ] || return 0
  root=$("$here/roots.sh" path "$role")
  release=$("$here/roots.sh" version "$role")
  for k in "$root/boot/vmlinuz-$release" "$root/usr/lib/modules/$release/vmlinuz"; do
    if [ -r "$k" ]; then kernel=$k; return; fi
  done
  die 1 "no kernel image in $root"
}

find_busybox() {
  busybox="$cache/.busybox/bin/busybox"
  [ -x "$cache/.busybox/usr/bin/busybox" ] && busybox="$cache/.busybox/usr/bin/busybox"
  [ -x "$busybox" ] && return
  mkdir -p "$cache/.busybox"
  (cd "$cache/.busybox" && apt-get -qq -o APT::Sandbox::User=root download busybox-static && dpkg-deb -x busybox-static_*.deb . &&
    rm -f busybox-static_*.deb) || die 125 "busybox-static is not to be had from the archive"
  [ -x "$busybox" ] || busybox="$cache/.busybox/usr/bin/busybox"
}

make_initrd() {
  printf '%s\n' "$command" >"$out/run"
  # shellcheck disable=SC2086
  python3 "$here/initrd.py" "$out/initrd" "$busybox:bin/busybox:755" "$here/plain-init.sh:init:755" "$out/run:lab/run:644" $add
}

start_softtpu() {
  [ -x "$softtpu" ] || die 125 "no softtpu at $softtpu"
  # shellcheck disable=SC2086
  "$softtpu" --socket "$out/tpu.sock" --control "$out/tpu.ctl" --log "$out/softtpu.log" $tpu_options >"$out/softtpu.out" 2>&1 &
  tpu_pid=$!
  n=0
  until grep -q '^ready' "$out/softtpu.out"; do
    n=$((n + 1))
    if [ "$n" -gt 100 ] || ! kill -0 "$tpu_pid" 2>/dev/null; then
      cat "$out/softtpu.out" >&2
      die 1 "softtpu did not get ready"
    fi
    sleep 0.1
  done
}

# KVM may exist and hang, so it must first bring this kernel to user space.
pick_accel() {
  accel="tcg,thread=multi"
  [ -w /dev/kvm ] || return 0
  printf 'true\n' >"$out/run"
  python3 "$here/initrd.py" "$out/probe" "$busybox:bin/busybox:755" "$here/plain-init.sh:init:755" "$out/run:lab/run:644"
  # shellcheck disable=SC2086
  timeout 10 $qemu -M q35 -cpu host -accel kvm -m 512M -nographic -no-reboot -kernel "$kernel" -initrd "$out/probe" \
    -append "console=ttyS0 panic=-1 quiet" </dev/null >"$out/probe.log" 2>&1 || :
  if grep -q '^lab: exit 0' "$out/probe.log"; then accel=kvm; fi
}

start_qemu() {
  machine="q35,memory-backend=mem"
  set --
  if [ -n "$iommu" ]; then
    machine="$machine,kernel-irqchip=split"
    set -- -device intel-iommu,caching-mode=on,intremap=on
    append="$append intel_iommu=on iommu=nopt"
  fi
  if [ -n "$with_tpu" ]; then
    set -- "$@" -device pcie-root-port,id=rp0,slot=1,chassis=1 -device \
      '{"driver":"vfio-user-pci","id":"tpu0","bus":"rp0","socket":{"type":"unix","path":"'"$out/tpu.sock"'"},"x-msg-timeout":'"$msg_timeout"'}'
  fi
  cpu=max
  [ "$accel" != kvm ] || cpu=host
  # shellcheck disable=SC2086
  $qemu -object memory-backend-memfd,id=mem,size="$mem",share=on -machine "$machine" -cpu $cpu -m "$mem" -smp 2 \
    -accel "$accel" -global ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off -display none -no-reboot \
    -serial "file:$out/serial.log" -monitor "unix:$out/monitor,server,nowait" -kernel "$kernel" -initrd "$out/initrd" \
    -append "console=ttyS0 panic=-1 quiet $append" "$@" $qemu_options </dev/null >"$out/qemu.log" 2>&1 &
  qemu_pid=$!
}

find_qemu
find_kernel
find_busybox
pick_accel
make_initrd
[ -z "$with_tpu" ] || start_softtpu
: >"$out/serial.log"
start_qemu
if [ -n "$verbose" ]; then
  tail -n +1 -f "$out/serial.log" &
  tail_pid=$!
fi
echo "qemu: $role, $(basename "$kernel"), accelerator $accel" >&2
n=0
while kill -0 "$qemu_pid" 2>/dev/null; do
  n=$((n + 1))
  if [ "$n" -gt "$((limit * 10))" ]; then
    kill "$qemu_pid"
    echo "qemu: guest ended after $limit s" >&2
    break
  fi
  sleep 0.1
done
wait "$qemu_pid" 2>/dev/null || :
qemu_pid=
status=$(sed -n 's/^lab: exit \([0-9]*\).*/\1/p' "$out/serial.log" | tail -n 1)
if [ -z "$status" ]; then
  cat "$out/qemu.log" >&2
  [ -n "$verbose" ] || tail -n 40 "$out/serial.log" >&2
  exit 124
fi
[ -n "$verbose" ] || cat "$out/serial.log"
exit "$status"
