#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab on a host that cannot: words that are wrong, no root, no QEMU, no room, no archive. No guest is started."""
import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
import common  # noqa: E402


def cases(kz, tmp):
    lab = [kz, "lab", "--output", str(tmp / "out")]
    text = tmp / "text.txt"
    text.write_text("no kernel\n" * 200)
    empty = tmp / "empty"
    empty.mkdir()
    old = tmp / "old-qemu"
    old.write_text("#!/bin/sh\ncase \"$*\" in *version*) echo 'QEMU emulator version 7.2.19' ;; *) echo e1000 ;; esac\n")
    old.chmod(0o755)
    broken = tmp / "broken-qemu"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    ready = tmp / "model.sock"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(ready))
    # name, command, exit code, what the message says
    yield "unknown kernel", lab + ["--kernels", "stabel"], 2, r"stabel.*stable"
    yield "kernel that is no image", lab + ["--kernel", str(text)], 2, r"text\.txt.*no x86 bzImage"
    yield "kernel that is not there", lab + ["--kernel", "/nonexistent/bzImage"], 2, r"/nonexistent/bzImage"
    yield "tests named and none run", lab + ["--group", "kmod", "--profile", "none"], 2, r"no test runs"
    yield "modules without a kernel", lab + ["--modules", str(empty)], 2, r"--kernel"
    yield "driver that is not there", lab + ["--driver", "/nonexistent"], 2, r"/nonexistent"
    yield "model that is not there", lab + ["--vfio-user", "/nonexistent.sock"], 125, r"/nonexistent\.sock"
    yield "model that is a file", lab + ["--vfio-user", str(text)], 2, r"no socket"
    yield "two devices", lab + ["--vfio-user", str(ready), "--vfio", "0000:01:00.0"], 2, r"there is one"
    yield "a board and a model of QEMU's", lab + ["--vfio", "0000:01:00.0", "--pci", "edu", "--driver", str(empty)], 2, r"there is one"
    yield "another device for our driver", lab + ["--pci", "edu"], 2, r"--driver"
    yield "file for the guest that is not there", lab + ["--add", "/nonexistent:bin/"], 2, r"/nonexistent"
    yield "file for the guest without a place", lab + ["--add", str(text)], 2, r"FILE:PLACE"
    yield "unknown group", lab + ["--group", "kmodd"], 2, r"kmodd"
    yield "two devices for a shell", [kz, "lab", "shell", "stable-1", "--pci", "edu", "--no-tpu"], 2, r"software TPU"
    yield "options for a device that is not used", lab + ["--vfio-user", str(ready), "--tpu", "hbm=64M"], 2, r"software TPU"
    yield "unknown option of the TPU", lab + ["--tpu", "hbmm=64M"], 2, r"hbmm"
    yield "board with no address", lab + ["--vfio", "zz:00.0"], 2, r"zz:00\.0"
    yield "board that is not there", lab + ["--vfio", "ffff:1f:1f.7"], 125, r"ffff:1f:1f\.7"
    yield "load profile that is not there", lab + ["--load", "/nonexistent.load"], 2, r"/nonexistent\.load"
    yield "unknown test", lab + ["--filter", "dma.host_too_hbm"], 2, r"dma\."
    yield "unknown profile", lab + ["--profile", "qick"], 2, r"qick"
    yield "old QEMU", lab + ["--qemu", str(old)], 125, r"7\.2\.19.*too old.*10\.1"
    yield "QEMU that is none", lab + ["--qemu", str(broken)], 125, r"broken-qemu"
    yield "QEMU that is not there", lab + ["--qemu", "/nonexistent/qemu"], 125, r"/nonexistent/qemu"
    yield "shell of no kernel", [kz, "lab", "shell"], 2, r"role"
    yield "shell of an unknown kernel", [kz, "lab", "shell", "sidd"], 2, r"sidd"
    yield "device of no guest", [kz, "lab", "device", str(empty), "gone"], 125, r"guest\.json"
    yield "unknown action", [kz, "lab", "device", str(empty), "explode"], 2, r"explode"
    yield "resume of nothing", [kz, "resume", str(empty)], 4, r"empty"


def boards(kz, tmp):
    """The rules for a real board, on one of this machine's own: never given away unasked, or while somebody uses it."""
    found = sorted(os.listdir("/sys/bus/pci/devices")) if os.path.isdir("/sys/bus/pci/devices") else []
    if found:
        lab = [kz, "lab", "--output", str(tmp / "out"), "--vfio", found[0]]
        yield "board without leave", lab, 2, r"--destructive"
        yield "board with another driver or none", lab + ["--destructive", "--i-know"], 125, r"vfio-pci|IOMMU"


def hosts(kz, tmp):
    lab = [kz, "lab", "--output", str(tmp / "out"), "--kernels", "stable"]
    if os.geteuid() != 0:
        yield "no root", lab, 125, r"root"
        return
    yield "no root", ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *lab], 125, r"needs root"
    small = tmp / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], check=False).returncode == 0:
        yield "no room", ["env", f"XDG_CACHE_HOME={small}", kz, "lab", "--output", str(tmp / "out")], 125, r"GB needed, 0\.0 GB free"
        subprocess.run(["umount", "-l", str(small)], check=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    yield "no archive", ["env", f"XDG_CACHE_HOME={tmp}/cache", f"KZ_MIRROR=http://127.0.0.1:{port}/debian", *lab], 125, rf"127\.0\.0\.1:{port}|archive"
    assert not (tmp / "out").exists(), "a run that could not start left a folder"


def judge(name, command, want, text):
    try:
        done = common.run(command, timeout=120)
    except subprocess.TimeoutExpired:
        return ["no answer within 120 s"]
    said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    problems = []
    if done.returncode != want:
        problems.append(f"exit {done.returncode}, want {want}")
    if not any(re.search(text, line) for line in said):
        problems.append(f"no line matches {text!r}")
    if len(done.stderr.strip().splitlines()) > 4:
        problems.append(f"{len(done.stderr.splitlines())} lines of error")
    if re.search(r"terminate called|Traceback|core dumped", "\n".join(said)):
        problems.append("died instead of answering")
    return [*problems, *(f"  {line}" for line in said[-4:])] if problems else []


def list_works(kz, _):
    done = common.run([kz, "lab", "list"])
    assert done.returncode == 0 and all(role in done.stdout for role in ("stable-1", "backports", "sid", "QEMU")), done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    kz, failed, total = f"{os.path.abspath(args.bin)}/kangzao", 0, 0
    with tempfile.TemporaryDirectory(prefix="kz-labhost-") as tmp:
        tmp = pathlib.Path(tmp)
        os.chmod(tmp, 0o755)
        list_works(kz, tmp)
        for source in (cases, boards, hosts):
            for name, command, want, text in source(kz, tmp):
                total += 1
                problems = judge(name, command, want, text)
                if problems:
                    failed += 1
                    print(f"FAIL {name}: " + "\n".join(problems))
    print(f"{total + 1 - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
