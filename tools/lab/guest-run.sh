# SPDX-License-Identifier: GPL-2.0-or-later
# What a lab guest does, step by step; /lab/env says what. Each step's begin, end and exit status go to $boot/state on
# the host at once, its output to $boot/STEP.log.
. /lab/env

step() {
  name=$1
  shift
  echo "<6>lab: begin $name" >/dev/kmsg
  echo "begin $name $(cut -d' ' -f1 /proc/uptime)" >>"$boot/state"
  "$@" >"$boot/$name.log" 2>&1
  code=$?
  echo "end $name $code $(cut -d' ' -f1 /proc/uptime)" >>"$boot/state"
  return "$code"
}

load_driver() {
  for m in $needs; do modprobe "$m"; done
  insmod /lab/driver.ko $parameters || return 1
  [ -n "$node" ] || return 0
  n=0
  until [ -e "$node" ]; do
    n=$((n + 1))
    [ "$n" -le 100 ] || { echo "no $node 10 s after the module was loaded"; return 1; }
    sleep 0.1
  done
}

# What was allocated and lost, told by kernels that look for it: two scans, because a young object is not counted.
leaks() {
  for n in 1 2; do
    echo scan >/sys/kernel/debug/kmemleak
    sleep 6
  done
  cat /sys/kernel/debug/kmemleak
  ! grep -q . /sys/kernel/debug/kmemleak
}

unload_driver() {
  rmmod "$driver" || return 1
  ! grep -q "^$driver " /proc/modules
}

all_steps() {
  [ -z "$driver" ] || step load load_driver || return
  # Of the ways in which a user can end; a hundred of each are for a run of their own (docs/kmod.md).
  export KZ_ROUNDS=5
  [ -z "$selftest" ] || step selftest kz-selftest
  # With it tests can make bus errors of their own; not every kernel has it.
  [ -z "$run" ] || modprobe -q aer_inject || true
  [ -z "$run" ] || step run sh -c "$run"
  [ -z "$load" ] || step traffic sh -c "$load"
  [ ! -e /sys/kernel/debug/kmemleak ] || step leaks leaks
  [ -z "$driver" ] || step unload unload_driver
}

# The last word of the kernel log: once it is on the host, all of the log is.
end_log() {
  last="lab: end of ${boot#/host/}"
  echo "<6>$last" >/dev/kmsg
  n=0
  until grep -q "$last" "$boot/kernel.log" || [ "$n" -ge 100 ]; do
    n=$((n + 1))
    sleep 0.1
  done
}

tell_taint() { echo "taint $1 $(cat /proc/sys/kernel/tainted)" >>"$boot/state"; }

tell_taint before
echo "begin boot 0" >>"$boot/state"
echo "end boot 0 $(cut -d' ' -f1 /proc/uptime)" >>"$boot/state"
all_steps
tell_taint after
end_log
echo "begin poweroff $(cut -d' ' -f1 /proc/uptime)" >>"$boot/state"
