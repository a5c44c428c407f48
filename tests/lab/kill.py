#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Kills QEMU, or the lab itself, with SIGKILL at random moments of a run, or interrupts the lab as Ctrl-C does.

After each the guest's journal on the host is readable to its last line, what it had judged stays judged, nothing is
left running, and the run ends with a verdict for every test: by itself where QEMU died, by `kangzao resume` where the lab
died or was interrupted. An interrupted lab says so by its exit code, and no test is taken for crashed.
"""
import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
import common  # noqa: E402
from guest import host_can  # noqa: E402

VICTIMS = ["QEMU", "lab", "Ctrl-C"]
INTERRUPTED = 130
FILTER = ["identify.*", "dma.*", "queue.*"]


def qemu_of(lab):
    return [pid for pid, (parent, cmd) in common.processes().items() if parent == lab and "-machine" in cmd.split(" ")]


def wait_for_kill_time(child, out, rng, span):
    """Some seconds into the boot, or into the tests."""
    deadline = time.monotonic() + rng.uniform(2, span)
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    while child.poll() is None and not qemu_of(child.pid) and time.monotonic() < deadline + 60:
        time.sleep(0.05)


def lines_of(journal):
    if not journal.exists():
        return {}, []
    records, _ = common.read_journal(journal)
    return common.verdicts(records), records


def lab_command(args, out, seed):
    return [f"{args.bin}/kangzao", "lab", "--kernels", args.kernel, "--output", str(out), "--seed", str(seed), "--retries", "0",
            *sum((["--filter", f] for f in FILTER), [])]


def whole_run(args, base):
    """Seconds of a run that nobody disturbs, without the build of the driver, which later runs find in the cache."""
    out, began = pathlib.Path(base, "whole"), time.monotonic()
    common.run(lab_command(args, out, 1), timeout=900)
    took = time.monotonic() - began
    _, records = lines_of(out / "journal.jsonl")
    return took - sum(r["seconds"] for r in records if r["type"] == "verdict" and r["id"] == args.kernel + ".build")


def one_round(args, rng, base, n):
    out = pathlib.Path(base, f"round-{n}")
    victim = rng.choice(VICTIMS)
    with open(pathlib.Path(base, f"round-{n}.txt"), "wb") as sink:
        child = subprocess.Popen(lab_command(args, out, n + 1), stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        wait_for_kill_time(child, out, rng, args.span)
        pids = qemu_of(child.pid) if victim == "QEMU" else [child.pid]
        hit = child.poll() is None and bool(pids)
        for pid in pids if hit else []:
            os.kill(pid, signal.SIGINT if victim == "Ctrl-C" else signal.SIGKILL)
        inner = out / args.kernel / "run" / "journal.jsonl"
        time.sleep(0.5)
        before, _ = lines_of(inner)  # raises where a line before the last cannot be read
        code = child.wait(900)
    problems = []
    left = {}
    for _ in range(100):
        left = common.touching(out)
        if not left:
            break
        time.sleep(0.1)
    if left:
        problems.append(f"left running: {left}")
    if victim == "Ctrl-C" and hit and code != INTERRUPTED:
        hit = False  # it was over already
        if code != 0:
            problems.append(f"exit {code} of an interrupted run")
    if victim != "QEMU" and hit:
        done = common.run([f"{args.bin}/kangzao", "resume", str(out)], timeout=900)
        code = done.returncode
        if not (out / "journal.jsonl").exists():
            return victim, hit, problems  # killed before it began
    after, records = lines_of(out / "journal.jsonl")
    wanted = {t["id"] for t in records[0]["tests"]} if records else set()
    if records and records[-1]["type"] != "run-end":
        problems.append(f"the lab's journal ends with {records[-1]['type']}")
    if missing := sorted(wanted - set(after)):
        problems.append(f"no verdict: {missing}")
    changed = {t: (v, after.get(f"{args.kernel}.{t}")) for t, v in before.items() if after.get(f"{args.kernel}.{t}") != v}
    if changed:
        problems.append(f"verdicts changed: {changed}")
    crashed = {t: v for t, v in after.items() if v not in ("pass", "skip")}
    if set(crashed.values()) - {"crash", "not-run"} or len([v for v in crashed.values() if v == "crash"]) > (hit and victim != "Ctrl-C"):
        problems.append(f"verdicts that the kill does not explain: {crashed}")
    if code not in (0, 1, 125):
        problems.append(f"exit {code}")
    return victim, hit, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--span", type=float, help="the kill comes within this many seconds (default: what a whole run takes)")
    parser.add_argument("--kernel", default="stable")
    args = parser.parse_args()
    args.bin = os.path.abspath(args.bin)
    if why := host_can(args.bin):
        print(f"kill: this host cannot: {why}")
        sys.exit(125)
    rng = random.Random(args.seed)
    failed, hits = 0, dict.fromkeys(VICTIMS, 0)
    with tempfile.TemporaryDirectory(prefix="kz-kill-") as base:
        args.span = args.span or whole_run(args, base)
        print(f"kill: within {args.span:.1f} s", flush=True)
        for n in range(args.rounds):
            victim, hit, problems = one_round(args, rng, base, n)
            hits[victim] += hit
            if problems:
                failed += 1
                print(f"round {n}: {victim}: " + "; ".join(problems)[:3000], flush=True)
    print(f"kill: {hits['QEMU']} of QEMU, {hits['lab']} of the lab, {hits['Ctrl-C']} interrupts struck in {args.rounds} rounds")
    print(f"{args.rounds - failed} passed, {failed} failed")
    sys.exit(1 if failed or sum(hits.values()) < 0.6 * args.rounds else 0)


if __name__ == "__main__":
    main()
