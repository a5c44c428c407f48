#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab with kernels and drivers that break, and with parts that are not its own.

A driver that oopses, panics, hangs or refuses at load, a kernel that finds no root: each run ends by itself with the right
verdict, a line that names the reason, and the evidence on the host. Somebody's own kernel, finished module and device model
pass.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
import common  # noqa: E402
from guest import host_can  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROLE = "stable-1"


class Lab:
    """One run of the lab: verdicts, reasons, files."""

    def __init__(self, kz, out, *options, limit=900):
        began = time.monotonic()
        self.out = out
        self.done = common.run([kz, "lab", "--output", str(out), "--retries", "0", *options], timeout=limit)
        self.seconds = time.monotonic() - began
        self.records, _ = common.read_journal(out / "journal.jsonl")
        self.verdict = common.verdicts(self.records)
        self.reason = {r["id"]: r.get("reason", "") for r in self.records if r["type"] == "verdict"}

    def says(self, test, verdict, pattern=""):
        got, reason = self.verdict.get(test), self.reason.get(test, "")
        assert got == verdict and re.search(pattern, reason), f"{test} is {got}: {reason!r}; wanted {verdict}, {pattern!r}"

    def kept(self, *names, role=ROLE):
        for name in names:
            file = self.out / role / "boot-1" / name
            assert file.exists() and file.stat().st_size, f"{file} is not there"

    def ended(self, code):
        assert self.done.returncode == code, f"exit {self.done.returncode}, wanted {code}: {self.done.stdout[-800:]} {self.done.stderr[-400:]}"
        assert self.records[-1]["type"] == "run-end", self.records[-1]
        wanted = {t["id"] for t in self.records[0]["tests"]}
        assert wanted == set(self.verdict), f"no verdict: {wanted - set(self.verdict)}"


def bad_driver(tmp, kind):
    folder = tmp / f"driver-{kind.lower()}"
    folder.mkdir()
    (folder / "kz_bad.c").write_text((HERE / "broken" / "kz_bad.c").read_text())
    (folder / "Makefile").write_text(f"obj-m := kz_bad.o\nccflags-y := -DKZ_BAD={kind}\n")
    return ["--kernels", ROLE, "--profile", "none", "--driver", str(folder)]


def driver_oopses(kz, tmp):
    lab = Lab(kz, tmp / "oops", *bad_driver(tmp, "OOPS"))
    lab.ended(1)
    lab.says(f"{ROLE}.load", "fail")
    lab.says(f"{ROLE}.kernel_log", "fail", r"NULL pointer dereference|Oops")
    lab.kept("kernel.log", "serial.log")


def driver_panics(kz, tmp):
    lab = Lab(kz, tmp / "panic", *bad_driver(tmp, "PANIC"))
    lab.ended(1)
    lab.says(f"{ROLE}.load", "crash", r"the board is on fire")
    lab.says(f"{ROLE}.kernel_log", "fail", r"the board is on fire")
    lab.kept("serial.log", "registers.txt", "memory.kdump")
    lab.says(f"{ROLE}.unload", "not-run")


def driver_hangs(kz, tmp):
    lab = Lab(kz, tmp / "hang", *bad_driver(tmp, "HANG"))
    lab.ended(1)
    lab.says(f"{ROLE}.load", "timeout", r"no sign of life|had no end within")
    lab.kept("serial.log", "registers.txt", "memory.kdump")


def driver_sleeps(kz, tmp):
    """insmod never comes back, and everything else lives."""
    lab = Lab(kz, tmp / "sleep", *bad_driver(tmp, "SLEEP"))
    lab.ended(1)
    lab.says(f"{ROLE}.load", "timeout", r"load had no end within")
    log = (lab.out / ROLE / "boot-1" / "kernel.log").read_text(errors="replace")
    assert "Show Blocked State" in log and "kz_bad_init" in log, f"where it hangs is not in the log: {log[-800:]}"


def driver_refuses(kz, tmp):
    lab = Lab(kz, tmp / "refuse", *bad_driver(tmp, "REFUSE"))
    lab.ended(1)
    lab.says(f"{ROLE}.load", "fail", r"No such file|bad\.bin|insmod")
    lab.says(f"{ROLE}.kernel_log", "pass")
    assert "firmware image kz/bad.bin is missing" in (lab.out / ROLE / "boot-1" / "kernel.log").read_text(errors="replace")


def kernel_panics_at_boot(kz, tmp):
    lab = Lab(kz, tmp / "boot", "--kernels", ROLE, "--profile", "none", "--append", "rdinit=/nowhere root=/dev/nothing")
    lab.ended(1)
    lab.says(f"{ROLE}.boot", "crash", r"VFS|Unable to mount root|No working init|not syncing")
    lab.kept("serial.log", "registers.txt", "memory.kdump")


def qemu_refuses(kz, tmp):
    """No guest can be started: each kernel says so in QEMU's own words, and the run comes to its end."""
    qemu = tmp / "refusing-qemu"
    qemu.write_text("#!/bin/sh\ncase \"$*\" in *--version*) echo 'QEMU emulator version 11.1.3' ;; *-device\\ help*) echo vfio-user-pci ;;"
                    " *) echo 'qemu: cannot set up guest memory: out of luck' >&2; exit 1 ;; esac\n")
    qemu.chmod(0o755)
    lab = Lab(kz, tmp / "refused", "--kernels", f"{ROLE},stable", "--profile", "none", "--qemu", str(qemu))
    lab.ended(125)
    for role in (ROLE, "stable"):
        lab.says(f"{role}.build", "pass")
        lab.says(f"{role}.boot", "blocked", r"out of luck")
        for step in ("load", "kernel_log", "poweroff"):
            lab.says(f"{role}.{step}", "not-run", r"out of luck")


def shell_of_a_text(kz, tmp, text, *options):
    """`lab shell --run`, in a folder where an earlier one went well."""
    out = tmp / f"shell-{len(list(tmp.iterdir()))}"
    (out / "boot-1").mkdir(parents=True)
    (out / "boot-1" / "status").write_text("0\n")
    done = common.run([kz, "lab", "shell", ROLE, "--no-tpu", "--no-driver", "--output", str(out), "--run", text, *options], timeout=300)
    return done, out / "boot-1"


def shell_has_a_limit(kz, tmp):
    done, boot = shell_of_a_text(kz, tmp, "sleep 1000", "--limit", "40")
    assert done.returncode == 1 and "no end within" in done.stderr, f"exit {done.returncode}: {done.stderr[-400:]}"
    assert (boot / "registers.txt").stat().st_size and (boot / "memory.kdump").stat().st_size
    done, boot = shell_of_a_text(kz, tmp, "poweroff -f", "--limit", "200")
    assert done.returncode == 1, f"exit {done.returncode} of a guest that left no status"
    done, boot = shell_of_a_text(kz, tmp, "exit 7", "--limit", "200")
    assert done.returncode == 7, f"exit {done.returncode}"


def finished_module(role):
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "kangzao", "lab", "drivers")
    found = sorted(cache.glob(f"{role}-*/**/kz_accel.ko"), key=lambda p: p.stat().st_mtime)
    assert found, f"no finished module for {role} in {cache}"
    return found[-1]


def own_kernel_and_module(kz, tmp):
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "kangzao", "roots", "bookworm")
    image = sorted(root.glob("boot/vmlinuz-*"))[-1]
    release = image.name.split("-", 1)[1]
    modules = next(p for p in (root / "usr/lib/modules" / release, root / "lib/modules" / release) if p.is_dir())
    lab = Lab(kz, tmp / "own", "--kernel", str(image), "--modules", str(modules), "--driver", str(finished_module(release)),
              "--device", "dev:/dev/kz0", "--filter", "identify.*", "--filter", "dma.*")
    lab.ended(0)
    lab.says("given.load", "pass")
    lab.says("given.unload", "pass")
    dma = {t: v for t, v in lab.verdict.items() if t.startswith("given.dma.")}
    assert list(dma.values()).count("pass") >= 8, dma


def own_device_model(kz, tmp):
    socket = tmp / "model.sock"
    model = subprocess.Popen([str(pathlib.Path(kz).parent / "softtpu"), "--socket", str(socket), "--control", str(tmp / "model.ctl")],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if socket.exists():
                break
            time.sleep(0.1)
        lab = Lab(kz, tmp / "model", "--kernels", ROLE, "--vfio-user", str(socket), "--filter", "identify.*", "--filter", "dma.*")
        lab.ended(0)
        lab.says(f"{ROLE}.load", "pass")
        assert model.poll() is None, "the model is gone"
    finally:
        model.terminate()
        model.wait(20)


CHECKS = [qemu_refuses, driver_oopses, driver_panics, driver_hangs, driver_sleeps, driver_refuses, kernel_panics_at_boot, shell_has_a_limit, own_device_model,
          own_kernel_and_module]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--only", help="regular expression: checks to run")
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    if why := host_can(binary):
        print(f"broken: this host cannot: {why}")
        sys.exit(125)
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory(prefix="kz-broken-") as tmp:
        for check in CHECKS:
            if args.only and not re.search(args.only, check.__name__):
                continue
            begin = time.monotonic()
            try:
                check(f"{binary}/kangzao", pathlib.Path(tmp))
                left = common.touching(tmp)
                assert not left, f"left running: {left}"
                passed += 1
                print(f"  ok   {check.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
            except Exception as e:  # noqa: BLE001 every check is reported
                failed += 1
                print(f"  FAIL {check.__name__}: {type(e).__name__} {str(e)[:2500]}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
