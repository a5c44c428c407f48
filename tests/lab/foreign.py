#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Group kmod on devices and stock drivers that are not ours, in a guest: it runs to its end, and finds what docs/kmod-tests.md says.

A finding that is not in KNOWN fails this: it is new, in the driver, the kernel or the suite, and has to be read first. Races show
only sometimes, so a known one that is missing does not.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
import common  # noqa: E402
from guest import host_can  # noqa: E402

FIO = "exec fio --name=load --filename={} --rw={} --bs=4k --direct=1 --ioengine=psync --thread --time_based --runtime=3600"
PING = ("until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; "
        "exec ping -A -s 1400 10.0.2.2")
DISK = "-drive if=none,id=d0,file={disk},format=raw"
NET = "-netdev user,id=n0,restrict=on"
# name: module of the driver, modules for modprobe, QEMU's device and what it needs, the load
DEVICES = {
    "nvme": ("nvme", ["nvme"], "nvme,serial=kz,drive=d0", DISK,
             "until [ -b /dev/nvme0n1 ]; do sleep 0.1; done; " + FIO.format("/dev/nvme0n1", "randrw")),
    "igb": ("igb", ["igb"], "igb,netdev=n0", NET, PING),
    "virtio-net": ("virtio_pci", ["virtio_pci", "virtio_net"], "virtio-net-pci,netdev=n0", NET, PING),
    "xhci": ("xhci_pci", ["xhci_pci", "usb_storage", "sd_mod"], "qemu-xhci", DISK + " -device usb-storage,bus=tpu0.0,drive=d0",
             "until [ -b /dev/sda ]; do sleep 0.1; done; " + FIO.format("/dev/sda", "randread")),
}
# (device, test, verdict, reason): each is read and explained in docs/kmod-tests.md.
KNOWN = [
    ("nvme", "kmod.*", "warn", r"nvme nvme\d+: (Removing after probe failure|failed to mark controller)"),
    ("igb", "kmod.used.open_races_remove", "warn", r"refcount_t: underflow"),
]


def guest_text(name):
    module, wanted, _, _, load = DEVICES[name]
    return (f"for m in {' '.join(wanted)}; do modprobe $m; done; sleep 1; kangzao run --device pci:0000:01:00.0 --group kmod --destructive --retries 0 "
            f"--module /lib/modules/$(uname -r)/{module}.ko --load-command '{load}' --output /host/run")


def check(kz, out, role, name):
    _, wanted, pci, words, _ = DEVICES[name]
    disk = out.with_suffix(".img")
    with open(disk, "wb") as f:
        f.truncate(64 << 20)
    command = [kz, "lab", "shell", role, "--no-driver", "--pci", pci, "--qemu-words", words.format(disk=disk), "--output", str(out), "--limit", "1400",
               "--run", guest_text(name), "--add", f"{shutil.which('fio') or '/usr/bin/fio'}:bin/fio"]
    for module in wanted:
        command += ["--with", module]
    done = common.run(command, timeout=1500)
    records, _ = common.read_journal(out / "run" / "journal.jsonl")
    end = records[-1]
    assert end["type"] == "run-end" and end["how"] == "complete", f"no end: {end}, {done.stderr[-600:]}"
    counts = end["counts"]
    findings = [r for r in records if r["type"] == "verdict" and r["verdict"] not in ("pass", "skip")]
    new = [r for r in findings if not any(name == k[0] and fnmatch.fnmatch(r["id"], k[1]) and r["verdict"] == k[2] and re.search(k[3], r["reason"])
                                          for k in KNOWN)]
    evidence = {r["id"]: [json.dumps(e["detail"])[:200] for e in records if e["type"] == "evidence" and e["id"] == r["id"]][:4] for r in new}
    assert not new, f"{[(r['id'], r['verdict'], r['reason'][:200]) for r in new]} evidence {evidence}"
    assert counts["pass"] >= 10, counts
    return f"{counts['pass']} passed, {counts['skip']} skipped, known findings: {[r['id'] for r in findings]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--kernels", default="stable-1")
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--keep", help="folder for the runs")
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    if why := host_can(binary):
        print(f"foreign: this host cannot: {why}")
        sys.exit(125)
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory(prefix="kz-foreign-") as tmp:
        folder = pathlib.Path(args.keep or tmp)
        folder.mkdir(parents=True, exist_ok=True)
        for role in args.kernels.split(","):
            for name in args.devices.split(","):
                begin = time.monotonic()
                try:
                    said = check(f"{binary}/kangzao", folder / f"{role}-{name}", role, name)
                    passed += 1
                    print(f"  ok   {role} {name} ({time.monotonic() - begin:.0f} s): {said}", flush=True)
                except Exception as e:  # noqa: BLE001 every check is reported
                    failed += 1
                    print(f"  FAIL {role} {name}: {type(e).__name__} {str(e)[:2500]}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
