#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Kills the runner, a test or the device with SIGKILL at a random moment of a run, many times.

After each kill: the journal is readable, every verdict that was printed is in it, `resume` ends with a verdict for every
selected test and changes none that was there, and no process, socket or lock is left behind.
"""
import argparse
import fcntl
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
import common  # noqa: E402

# Short tests of every kind, destructive ones among them, so that a round takes a few seconds.
DEFAULT_FILTER = ["dma.*", "queue.*", "identify.*", "context.*", "boundary.*"]
# What the one test that was running may end with.
EXPLAINED = {"runner": {"crash"}, "test": {"crash"}, "device": {"crash", "fail", "timeout", "device-lost"}}


def victims(kind, runner_pid):
    """pids of the wanted kind below the runner."""
    table = common.processes()
    if kind == "runner":
        return [runner_pid] if runner_pid in table else []
    name = "softtpu" if kind == "device" else "kz-test-"
    return [p for p, (parent, cmd) in table.items() if parent == runner_pid and name in cmd.split(" ")[0]]


def wait_gone(directory, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = common.touching(directory)
        if not left:
            return {}
        time.sleep(0.05)
    return common.touching(directory)


def one_round(args, n, rng, base):
    out = pathlib.Path(base, f"round-{n}")
    select = sum((["--filter", f] for f in args.filter), [])
    command = [f"{args.bin}/kangzao", "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--seed", str(n + 1),
               *select, "--destructive"]
    kind = rng.choice(["runner", "test", "device"])
    delay = rng.uniform(0.02, args.span)
    log = pathlib.Path(base, f"round-{n}.out")
    with open(log, "wb") as sink:
        child = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    time.sleep(delay)
    hit = False
    end = time.monotonic() + 5
    while not hit and child.poll() is None and time.monotonic() < end:
        for pid in victims(kind, child.pid):
            try:
                os.kill(pid, signal.SIGKILL)
                hit = True
            except ProcessLookupError:
                pass
    code = child.wait(timeout=180)

    problems = []
    left = wait_gone(out, 5)
    if left:
        problems.append(f"processes left after the {kind} was killed: {left}")
    journal = out / "journal.jsonl"
    if not journal.exists():
        # Killed before the run began (a device or a program that lists its tests): host trouble, nothing to resume.
        if kind != "runner" and (code != 4 or out.exists()):
            problems.append(f"no journal, exit {code}")
        return kind, hit, problems
    before, _ = common.read_journal(journal)
    if kind == "runner" and not before:
        return kind, hit, problems  # the run never began
    done = common.verdicts(before)
    # What stands in for tests that never ran is no result yet: resume runs them.
    ran = common.verdicts(r for r in before if r.get("ran") is not False)
    if not hit and kind != "runner" and code not in (0, 1):
        problems.append(f"exit {code} though nothing was killed")
    printed = {w for line in log.read_text(errors="replace").splitlines() for w in line.split() if w in args.ids
               and any(v in line.split() for v in ("pass", "fail", "warn", "skip", "blocked", "crash", "timeout"))}
    lost = printed - set(done)
    if lost:
        problems.append(f"printed but not in the journal: {sorted(lost)}")

    for attempt in range(3):
        resumed = common.run([f"{args.bin}/kangzao", "resume", str(out)], timeout=240)
        if resumed.returncode in (0, 1):
            break
    after, torn = common.read_journal(journal)
    final = common.verdicts(after)
    missing = args.ids - set(final)
    if missing and resumed.returncode != 3:
        problems.append(f"no verdict after resume (exit {resumed.returncode}): {sorted(missing)}: {resumed.stderr[-300:]}")
    if resumed.returncode not in (0, 1):
        problems.append(f"resume ended with {resumed.returncode}: {(resumed.stdout + resumed.stderr)[-400:]}")
    changed = {t: (v, final.get(t)) for t, v in ran.items() if final.get(t) != v}
    if changed:
        problems.append(f"finished results changed: {changed}")
    unclean = {t: v for t, v in final.items() if v not in ("pass", "skip", "warn")}
    if len(unclean) > hit or not set(unclean.values()) <= EXPLAINED[kind]:
        reasons = {r["id"]: r.get("reason", "") for r in after if r.get("type") == "verdict" and r["id"] in unclean}
        problems.append(f"verdicts that the kill does not explain: {unclean}: {reasons}")
    if wait_gone(out, 5):
        problems.append(f"processes left after resume: {common.touching(out)}")
    if common.sockets_in(out):
        problems.append(f"sockets left: {common.sockets_in(out)}")
    for lock in out.glob("*lock*"):
        with open(lock) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problems.append(f"lock left: {lock}")
    return kind, hit, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--span", type=float, default=6.0, help="the kill comes within this many seconds of the start")
    parser.add_argument("--filter", action="append")
    args = parser.parse_args()
    args.bin = os.path.abspath(args.bin)
    args.filter = args.filter or DEFAULT_FILTER
    listed = common.run([f"{args.bin}/kangzao", "list", "--json", *sum((["--filter", f] for f in args.filter), [])])
    if listed.returncode != 0:
        sys.exit(f"chaos: list failed: {listed.stderr}")
    import json
    table = json.loads(listed.stdout)
    args.ids = {t["id"] for t in (table["tests"] if isinstance(table, dict) else table)}
    rng = random.Random(args.seed)
    base = tempfile.mkdtemp(prefix="kz-chaos-")
    failed, hits = 0, {"runner": 0, "test": 0, "device": 0}
    start = time.monotonic()
    for n in range(args.rounds):
        kind, hit, problems = one_round(args, n, rng, base)
        hits[kind] += hit
        if problems:
            failed += 1
            print(f"round {n}: killed {kind}: " + "; ".join(problems), flush=True)
        if not problems:
            shutil.rmtree(pathlib.Path(base, f"round-{n}"), ignore_errors=True)
    print(f"chaos: {sum(hits.values())} kills that struck ({hits['runner']} runner, {hits['test']} test, {hits['device']} device) "
          f"in {args.rounds} rounds of {len(args.ids)} tests, {time.monotonic() - start:.0f} s")
    weak = ["no kill of a " + kind for kind, n in hits.items() if n == 0 and args.rounds >= 30]
    if sum(hits.values()) < 0.8 * args.rounds:
        weak.append("fewer than 80% of the rounds had a kill that struck")
    for why in weak:
        print(f"chaos: {why}")
    print(f"{args.rounds - failed} passed, {failed} failed")
    if failed == 0:
        shutil.rmtree(base, ignore_errors=True)
    else:
        print(f"chaos: the runs of failed rounds are kept in {base}")
    sys.exit(1 if failed or weak else 0)


if __name__ == "__main__":
    main()
