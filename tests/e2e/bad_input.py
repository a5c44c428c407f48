#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Bad input gets one clear line that names the thing and the remedy, and the right exit code."""
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


def cases(bin_dir, tmp):
    kz = f"{bin_dir}/kangzao"
    run = [kz, "run", "--profile", "quick", "--output"]
    out = iter(str(tmp / f"out-{n}") for n in range(1000))
    dead = tmp / "dead.sock"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(dead))  # nobody listens any more
    garbage = tmp / "garbage.txt"
    garbage.write_bytes(b"\x00\xffnot a dump\n" * 3)
    torn = tmp / "torn"
    torn.mkdir()
    (torn / "journal.jsonl").write_text('{"v":1,"type":"run-st')
    headless = tmp / "headless"
    headless.mkdir()
    (headless / "journal.jsonl").write_text('{"v":1,"type":"run-start","seq":0,"device":7}\n{"v":1,"type":"run-end","seq":1}\n')
    empty = tmp / "empty"
    empty.mkdir()
    # name, command, exit code, text that must stand in the message
    yield "unknown scheme", run + [next(out), "--device", "sofftpu:"], 2, r"sofftpu.*softtpu:"
    yield "no scheme", run + [next(out), "--device", "0000:01:00.0"], 2, r"0000:01:00.0"
    yield "unknown softtpu option", run + [next(out), "--device", "softtpu:hbmm=64M"], 2, r"hbmm"
    yield "bad size", run + [next(out), "--device", "softtpu:hbm=lots"], 2, r"lots"
    yield "missing socket", run + [next(out), "--device", "vfio-user:/nonexistent/x.sock"], 125, r"/nonexistent/x.sock"
    yield "dead socket", run + [next(out), "--device", f"vfio-user:{dead}"], 125, r"dead.sock"
    yield "socket path is a file", run + [next(out), "--device", f"vfio-user:{garbage}"], 125, r"garbage.txt"
    yield "malformed BDF", run + [next(out), "--device", "pci:zz:00.0"], 2, r"zz:00.0"
    yield "BDF that is not there", run + [next(out), "--device", "pci:ffff:1f:1f.7"], 125, r"ffff:1f:1f.7"
    yield "unreadable dump", run + [next(out), "--device", f"dump:{garbage}"], 125, r"garbage.txt"
    yield "missing dump", run + [next(out), "--device", "dump:/nonexistent.txt"], 125, r"/nonexistent.txt"
    yield "unknown test", run + [next(out), "--filter", "dma.host_too_hbm"], 2, r"dma\."
    yield "nothing selected", run + [next(out), "--filter", "dma.*", "--level", "1"], 125, r"nothing was selected.*kangzao list"
    yield "order of no test", run + [next(out), "--order", "dma.host_too_hbm"], 2, r"dma\."
    yield "option of a scheme that has none", run + [next(out), "--device", "vfio-user:/x.sock,irq=msi"], 2, r"irq"
    yield "dump is a folder", run + [next(out), "--device", f"dump:{tmp}"], 125, r"lspci"
    yield "unknown profile", [kz, "run", "--profile", "qick", "--output", next(out)], 2, r"qick"
    yield "unknown option", [kz, "run", "--frobnicate"], 2, r"frobnicate"
    yield "unknown command", [kz, "rum"], 2, r"rum.*run"
    yield "command like no other", [kz, "frobnicate"], 2, r"frobnicate.*--help"
    yield "no room for sockets", ["env", "TMPDIR=/nonexistent", *run, f"{tmp}/{'deep/' * 20}out"], 4, r"/nonexistent.*TMPDIR"
    yield "bad seed", run + [next(out), "--seed", "x"], 2, r"seed"
    yield "output exists", run + [str(torn)], 4, r"torn"
    yield "output below a file", run + [f"{garbage}/run"], 4, r"garbage.txt"
    yield "report of nothing", [kz, "report", str(tmp / "no-such-run")], 4, r"no-such-run"
    yield "a name that steers terminals", [kz, "report", str(tmp / "no\x1b[2Jsuch")], 4, r"no\?\[2Jsuch"
    yield "report without journal", [kz, "report", str(empty)], 4, r"empty"
    yield "report without a start", [kz, "report", str(headless)], 4, r"headless.*not the journal of a run"
    yield "compare without a start", [kz, "compare", str(headless), str(headless)], 4, r"headless.*not the journal of a run"
    yield "resume without a start", [kz, "resume", str(headless)], 4, r"headless.*start"
    yield "report of a torn start", [kz, "report", str(torn)], 4, r"torn|journal"
    yield "resume of nothing", [kz, "resume", str(tmp / "no-such-run")], 4, r"no-such-run"
    yield "compare with nothing", [kz, "compare", str(tmp / "a"), str(tmp / "b")], 4, r"/a"
    yield "gauntlet row unknown", [kz, "gauntlet", "--rows", "Z99"], 2, r"Z99"
    yield "ls of no device", [kz, "ls", "ffff:1f:1f.7"], 2, r"ffff:1f:1f.7"
    yield "softtpu without socket", [f"{bin_dir}/softtpu"], 2, r"socket"
    yield "list to a full disk", ["sh", "-c", f"{kz} list > /dev/full"], 4, r"standard output"
    yield "softtpu script that is a folder", [f"{bin_dir}/softtpu", "--socket", str(tmp / "s"), "--script", str(empty)], 4, r"empty"
    yield "softtpu script without an end", [f"{bin_dir}/softtpu", "--socket", str(tmp / "s"), "--script", "/dev/zero"], 4, r"/dev/zero"
    yield "softtpu bad fault", [f"{bin_dir}/softtpu", "--socket", str(tmp / "s"), "--control", str(tmp / "c"), "--fault", "{"], 2, r"fault"
    yield "softtpu unknown row", [f"{bin_dir}/softtpu", "--socket", str(tmp / "s"), "--control", str(tmp / "c"),
                                  "--fault", '{"row":"M99"}'], 2, r"M99"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    failed = total = 0
    with tempfile.TemporaryDirectory(prefix="kz-bad-") as tmp:
        tmp = pathlib.Path(tmp)
        for name, command, want, text in cases(os.path.abspath(args.bin), tmp):
            total += 1
            problems = []
            try:
                done = common.run(command, timeout=60, cwd=tmp)
            except subprocess.TimeoutExpired:
                print(f"FAIL {name}: no answer within 60 s")
                failed += 1
                continue
            message = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            if done.returncode != want:
                problems.append(f"exit {done.returncode}, want {want}")
            if not any(re.search(text, line) for line in message):
                problems.append(f"no line matches {text!r}")
            if len(done.stderr.strip().splitlines()) > 3:
                problems.append(f"{len(done.stderr.splitlines())} lines of error instead of one")
            if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", done.stderr):
                problems.append("control characters in the message")
            if re.search(r"terminate called|what\(\)|Segmentation|core dumped|Traceback", done.stderr + done.stdout):
                problems.append("died instead of answering")
            if problems:
                failed += 1
                print(f"FAIL {name}: {'; '.join(problems)}\n  $ {' '.join(command)}\n  " + "\n  ".join(message[-4:]))
    print(f"{total - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
