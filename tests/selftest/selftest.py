#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of the detector that need more than one run: kills, lost devices, full disks, hostile tests.

tests/e2e/runner.py has the table of verdicts and exit codes. Every journal that is written here is checked against
docs/journal-schema.json line by line, and after every run nothing of it may be left: no process, no socket, no lock.
"""
import argparse
import fcntl
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import common  # noqa: E402

DEVICE = "softtpu:hbm=64M"
SECONDS = 60  # for any single step; the machine may be busy


def wait_for(condition, what):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {SECONDS} s")


class Bench:
    def __init__(self, binary, tmp):
        self.kz, self.bin, self.tmp, self.n = f"{binary}/kangzao", binary, pathlib.Path(tmp), 0

    def folder(self):
        self.n += 1
        return self.tmp / f"run-{self.n}"

    def command(self, out, tests, *more, device=DEVICE):
        select = sum((["--filter", f"selftest.{t}"] for t in tests), [])
        order = sum((["--order", f"selftest.{t}"] for t in tests), [])
        return [self.kz, "run", "--device", device, "--output", str(out), "--json", *select, *order, *more]

    def run(self, tests, *more, device=DEVICE, **kwargs):
        out = self.folder()
        done = common.run(self.command(out, tests, *more, device=device), timeout=3 * SECONDS, **kwargs)
        return done, out

    def start(self, out, tests, *more, device=DEVICE, stderr=subprocess.DEVNULL):
        """A run in the background, one of whose first tests is waiting for the file `go` now."""
        child = subprocess.Popen(self.command(out, tests, *more, device=device), stdout=subprocess.DEVNULL,
                                 stderr=stderr, stdin=subprocess.DEVNULL)
        wait_for(lambda: any(r["type"] == "danger" for r in self.records(out)), "dangerous step in the journal")
        return child

    def resume(self, out):
        return common.run([self.kz, "resume", str(out), "--json"], timeout=3 * SECONDS)

    def records(self, out):
        path = out / "journal.jsonl"
        return common.read_journal(path)[0] if path.exists() else []

    def check_journal(self, out):
        schema = jsonschema.Draft7Validator(json.loads((ROOT / "docs" / "journal-schema.json").read_text()))
        records = self.records(out)
        for r in records:
            errors = [e.message for e in schema.iter_errors(r)]
            assert not errors, f"{r.get('type')} record {r.get('seq')}: {errors[0][:300]}"
        assert [r["seq"] for r in records] == list(range(len(records))), "the sequence has gaps"
        return records

    def check_nothing_left(self, out):
        wait_for(lambda: not common.touching(out), f"end of {common.touching(out)}")
        assert not common.sockets_in(out), common.sockets_in(out)
        with open(out / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def softtpu(self, folder):
        """A software TPU that is not the runner's own: what a real device looks like to it."""
        folder.mkdir()
        child = subprocess.Popen([f"{self.bin}/softtpu", "--socket", f"{folder}/s", "--control", f"{folder}/c", "--hbm", "64M"],
                                 stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert child.stdout.readline().startswith(b"ready"), "softtpu did not start"
        return child, f"vfio-user:{folder}/s"


def verdicts(done):
    return {r["id"].removeprefix("selftest."): r["verdict"] for r in json.loads(done.stdout)["results"]}


def reasons(done):
    return {r["id"].removeprefix("selftest."): r["reason"] for r in json.loads(done.stdout)["results"]}


def hostile_tests_do_not_reach_the_runner(b):
    """Garbage on the socket, verdicts that are not a test's to give, deaths after a verdict."""
    want = {"sends_garbage": "pass", "claims_a_false_verdict": "crash", "crashes_after_its_verdict": "crash",
            "exits_badly_after_its_verdict": "crash", "hangs_after_its_verdict": "timeout", "leaves_a_tree": "warn",
            "fills_the_journal": "pass", "passes": "pass"}
    done, out = b.run(want)
    assert verdicts(done) == want, verdicts(done)
    assert done.returncode == 1, done.returncode
    why = reasons(done)
    assert "exit 23" in why["exits_badly_after_its_verdict"] and "saying pass" in why["exits_badly_after_its_verdict"], why
    assert "had said pass" in why["hangs_after_its_verdict"], why
    assert "processes behind" in why["leaves_a_tree"], why
    records = b.check_journal(out)
    notes = [r["text"] for r in records if r["type"] == "note"]
    assert any("sent something that is no record" in n for n in notes), notes[:3]
    assert any("claimed a verdict" in n for n in notes)
    assert (out / "journal.jsonl").stat().st_size < 24 << 20, "a test filled the disk"
    assert len(done.stdout) < 1 << 20, "a test filled the report"
    b.check_nothing_left(out)


def our_device_is_started_again(b):
    done, out = b.run(["kills_the_device", "uses_the_device"])
    assert verdicts(done) == {"kills_the_device": "fail", "uses_the_device": "pass"}, (verdicts(done), reasons(done))
    records = b.check_journal(out)
    assert any(r["type"] == "recovery" and r["ok"] and "started again" in r["text"] for r in records)
    assert any(r["type"] == "evidence" and r["kind"] == "device.lost" for r in records)
    b.check_nothing_left(out)


def a_lost_device_stops_the_run(b):
    """A device that is not ours dies under a test and stays away: exit 3, the rest is not run."""
    out = b.folder()
    device, uri = b.softtpu(b.tmp / f"device-{b.n}")
    try:
        child = b.start(out, ["loses_the_device", "uses_the_device"], "--destructive", "--retries", "0", device=uri)
        device.kill()
        device.wait()
        (out / "go").touch()
        assert child.wait(timeout=3 * SECONDS) == 3, child.returncode
    finally:
        device.kill()
        device.wait()
    got = common.verdicts(b.check_journal(out))
    assert got == {"selftest.loses_the_device": "device-lost", "selftest.uses_the_device": "not-run"}, got
    end = b.records(out)[-1]
    assert end["type"] == "run-end" and end["how"] == "device-lost" and end["exit"] == 3, end
    b.check_nothing_left(out)
    # Still away: resume says so and forgets nothing.
    again = b.resume(out)
    assert again.returncode in (3, 125), (again.returncode, again.stderr)
    assert verdicts(again)["loses_the_device"] == "device-lost", verdicts(again)


def a_hang_on_a_foreign_device_is_left_alone(b):
    """Without --destructive nobody sends SIGKILL to the holder of a real device; the run stops."""
    device, uri = b.softtpu(b.tmp / "foreign")
    left = {}
    try:
        done, out = b.run(["hangs_and_ignores_sigterm", "passes"], device=uri)
        assert done.returncode == 3, (done.returncode, done.stderr)
        assert verdicts(done) == {"hangs_and_ignores_sigterm": "timeout", "passes": "not-run"}, verdicts(done)
        assert "could not be ended" in reasons(done)["hangs_and_ignores_sigterm"], reasons(done)
        left = {pid: cmd for pid, (_, cmd) in common.processes().items() if "selftest.hangs_and_ignores_sigterm" in cmd}
        assert len(left) == 1, left
        b.check_journal(out)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        left = {}
        done, out = b.run(["hangs_and_ignores_sigterm", "passes"], "--destructive", device=uri)
        assert verdicts(done) == {"hangs_and_ignores_sigterm": "timeout", "passes": "pass"}, verdicts(done)
        b.check_nothing_left(out)
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        device.kill()
        device.wait()


def nothing_destructive_without_the_word(b):
    device, uri = b.softtpu(b.tmp / "kept")
    try:
        done, out = b.run(["kills_the_device"], device=uri)
        assert verdicts(done) == {"kills_the_device": "skip"}, verdicts(done)
        assert "--destructive was not given" in reasons(done)["kills_the_device"]
        assert done.returncode == 125, done.returncode
        assert device.poll() is None
    finally:
        device.kill()
        device.wait()


def no_reset_without_the_word(b):
    """A test that is not destructive fails and the device is gone: it is opened again, not reset."""
    out = b.folder()
    folder = b.tmp / "unreset"
    device, uri = b.softtpu(folder)
    try:
        child = b.start(out, ["fails_on_the_device", "passes"], "--retries", "0", device=uri)
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(f"{folder}/c")
            control.sendall(b'{"cmd":"set","gone":true}\n')
            assert b"ok" in control.recv(4096)
        (out / "go").touch()
        assert child.wait(timeout=3 * SECONDS) == 3, child.returncode
    finally:
        device.kill()
        device.wait()
    records = b.check_journal(out)
    assert common.verdicts(records) == {"selftest.fails_on_the_device": "device-lost", "selftest.passes": "not-run"}, records
    text = next(r["text"] for r in records if r["type"] == "recovery")
    assert "--destructive" in text and "firmware reset" not in text, text


def a_verdict_after_a_burst_counts(b):
    done, out = b.run(["speaks_last"], "--repeat", "5")
    assert verdicts(done) == {"speaks_last": "pass"}, reasons(done)
    assert sum(r["type"] == "metric" for r in b.check_journal(out)) == 5 * 250


def an_interrupted_test_runs_again(b):
    out = b.folder()
    child = b.start(out, ["waits_to_be_told", "passes"])
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=SECONDS) == 130, child.returncode
    b.check_nothing_left(out)
    assert b.records(out)[-1]["how"] == "interrupted"
    (out / "go").touch()
    again = b.resume(out)
    assert again.returncode == 0, (again.returncode, again.stdout, again.stderr)
    assert verdicts(again) == {"waits_to_be_told": "pass", "passes": "pass"}, verdicts(again)
    b.check_journal(out)


def a_killed_run_names_the_dangerous_step(b):
    """kill -9 of the runner leaves nothing; resume buries the test that died and runs the rest, again and again."""
    out = b.folder()
    child = b.start(out, ["waits_to_be_told", "fails", "passes"], "--seed", "77", "--retries", "0")
    child.kill()
    child.wait()
    wait_for(lambda: not common.touching(out), "end of everything the runner started")
    with open(out / "journal.jsonl", "ab") as journal:
        journal.write(b'{"type":"torn in the mid')
    again = b.resume(out)
    assert again.returncode == 1, (again.returncode, again.stderr)
    want = {"waits_to_be_told": "crash", "fails": "fail", "passes": "pass"}
    assert verdicts(again) == want, verdicts(again)
    assert "wait for somebody" in reasons(again)["waits_to_be_told"], reasons(again)
    dead = next(r for r in json.loads(again.stdout)["results"] if r["verdict"] == "crash")
    assert "--filter selftest.waits_to_be_told" in dead["rerun"] and "--seed 77" in dead["rerun"], dead
    records = b.check_journal(out)
    assert any(r["type"] == "note" and "torn" in r["text"] for r in records)
    assert all(r["seed"] == "77" for r in records if r["type"] == "test-start")
    b.check_nothing_left(out)
    once_more = b.resume(out)
    assert verdicts(once_more) == want and once_more.returncode == 1, once_more.stdout
    starts = [r["id"] for r in b.check_journal(out) if r["type"] == "test-start"]
    assert len(starts) == len(set(starts)), f"a finished test ran again: {starts}"


def a_killed_run_in_a_deep_folder_leaves_no_socket(b):
    """Paths of sockets are short; where the run's folder is too deep they lie elsewhere, and resume finds them."""
    out = b.tmp / ("d" * 60) / ("e" * 60) / "run"
    child = b.start(out, ["waits_to_be_told", "passes"])
    where = next(r["socket"] for r in b.records(out) if r["type"] == "device-process")
    child.kill()
    child.wait()
    wait_for(lambda: not common.touching(out), "end of everything the runner started")
    assert verdicts(b.resume(out)) == {"waits_to_be_told": "crash", "passes": "pass"}
    assert not pathlib.Path(where).exists(), where
    assert not pathlib.Path(where).parent.exists(), where


def a_killed_test_is_a_crash(b):
    out = b.folder()
    child = b.start(out, ["waits_to_be_told", "passes"])
    test = [pid for pid, (parent, cmd) in common.processes().items() if parent == child.pid and "waits_to_be_told" in cmd]
    assert len(test) == 1, test
    os.kill(test[0], signal.SIGKILL)
    assert child.wait(timeout=SECONDS) == 1, child.returncode
    assert common.verdicts(b.check_journal(out)) == {"selftest.waits_to_be_told": "crash", "selftest.passes": "pass"}
    b.check_nothing_left(out)


def a_second_runner_is_refused(b):
    out = b.folder()
    child = b.start(out, ["waits_to_be_told"])
    before = (out / "journal.jsonl").read_bytes()
    for command in ([b.kz, "resume", str(out)], b.command(out, ["passes"])):
        done = common.run(command, timeout=SECONDS)
        assert done.returncode == 4, (command, done.returncode, done.stderr)
        assert str(out) in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert (out / "journal.jsonl").read_bytes() == before
    (out / "go").touch()
    assert child.wait(timeout=SECONDS) == 0, child.returncode


def a_full_disk_harms_nothing(b):
    """A file limit on the runner, so that no privilege is needed; runner.py fills a tmpfs as well."""
    out = b.folder()
    tests = ["passes", "waits_to_be_told", "fills_the_journal", "uses_the_device"]
    child = b.start(out, tests, stderr=subprocess.PIPE)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    (out / "go").touch()
    message = child.stderr.read().decode()
    assert child.wait(timeout=SECONDS) == 4, (child.returncode, message)
    lines = message.strip().splitlines()
    assert len(lines) == 1 and "journal.jsonl" in lines[0] and "resume" in lines[0], lines
    records = b.check_journal(out)
    kept = {"selftest.passes": "pass", "selftest.waits_to_be_told": "pass"}
    assert common.verdicts(records) == kept, common.verdicts(records)
    b.check_nothing_left(out)
    again = b.resume(out)
    assert verdicts(again) == {"passes": "pass", "waits_to_be_told": "pass", "fills_the_journal": "pass", "uses_the_device": "pass"}, verdicts(again)
    b.check_journal(out)


def a_run_that_cannot_start_leaves_nothing(b):
    out = b.folder()
    for device in ("softtpu:hbm=lots", "softtpu:hbmm=64M"):
        done = common.run(b.command(out, ["passes"], device=device), timeout=SECONDS)
        assert done.returncode == 2, (done.returncode, done.stderr)
        assert not out.exists(), list(out.iterdir())


def reports_agree_and_never_overwrite(b):
    done, out = b.run(["passes", "skips", "warns"], "--retries", "0")
    report = common.run([b.kz, "report", str(out), "--json"])
    assert report.returncode == 0 and json.loads(report.stdout) == json.loads(done.stdout)
    jsonschema.Draft7Validator(json.loads((ROOT / "docs" / "report-schema.json").read_text())).validate(json.loads(done.stdout))
    target = b.tmp / "report.json"
    command = [b.kz, "report", str(out), "--json", "--output", str(target)]
    assert common.run(command).returncode == 0 and json.loads(target.read_text()) == json.loads(done.stdout)
    again = common.run(command)
    assert again.returncode == 4 and str(target) in again.stderr, (again.returncode, again.stderr)
    assert common.run([b.kz, "compare", str(out), str(out)]).returncode == 0
    other, elsewhere = b.run(["passes", "skips", "fails"], "--retries", "0")
    changed = common.run([b.kz, "compare", str(out), str(elsewhere), "--json"])
    assert changed.returncode == 1, changed.stderr
    what = {c["what"]: (c["before"], c["after"]) for c in json.loads(changed.stdout)["verdicts"]}
    assert what == {"selftest.fails": ("absent", "fail"), "selftest.warns": ("warn", "absent")}, what


def latest_points_to_the_last_run(b):
    command = [b.kz, "run", "--device", DEVICE, "--filter", "selftest.passes"]
    names = []
    for _ in range(2):
        done = common.run(command, cwd=b.tmp, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        names.append(os.readlink(b.tmp / "runs" / "latest"))
        assert (b.tmp / "runs" / "latest" / "junit.xml").exists()
    assert names[0] != names[1] and "/" not in names[1], names
    bad = common.run([*command[:3], "softtpu:hbm=lots"], cwd=b.tmp, timeout=SECONDS)
    assert bad.returncode == 2 and os.readlink(b.tmp / "runs" / "latest") == names[1]


CASES = {f.__name__: f for f in [
    hostile_tests_do_not_reach_the_runner, our_device_is_started_again, a_lost_device_stops_the_run,
    a_hang_on_a_foreign_device_is_left_alone, nothing_destructive_without_the_word,
    no_reset_without_the_word, a_verdict_after_a_burst_counts, an_interrupted_test_runs_again,
    a_killed_run_names_the_dangerous_step, a_killed_run_in_a_deep_folder_leaves_no_socket, a_killed_test_is_a_crash,
    a_second_runner_is_refused, a_full_disk_harms_nothing, a_run_that_cannot_start_leaves_nothing,
    reports_agree_and_never_overwrite, latest_points_to_the_last_run]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    args = parser.parse_args()
    failed = 0
    wanted = args.cases or list(CASES)
    for name in wanted:
        with tempfile.TemporaryDirectory(prefix="kz-selftest-") as tmp:
            try:
                CASES[name](Bench(os.path.abspath(args.bin), tmp))
            except Exception as e:  # noqa: BLE001 every case is reported
                failed += 1
                print(f"FAIL {name}: {type(e).__name__} {str(e)[:1500]}")
    print(f"{len(wanted) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
