#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector is tested: the runner's verdicts on tests that fail, hang, crash and flood on purpose."""
import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
import common  # noqa: E402

EXPECTED = {
    "selftest.passes": "pass", "selftest.fails": "fail", "selftest.throws": "fail", "selftest.warns": "warn",
    "selftest.skips": "skip", "selftest.is_blocked": "blocked", "selftest.segfaults": "crash", "selftest.aborts": "crash",
    "selftest.leaves_without_verdict": "crash", "selftest.hangs": "timeout", "selftest.hangs_and_ignores_sigterm": "timeout",
    "selftest.floods": "pass", "selftest.leaves_a_process": "warn", "selftest.closes_the_socket": "crash",
    "selftest.fails_sometimes": "fail",
}


class Skipped(Exception):
    """This machine cannot do the check."""


class Checks:
    def __init__(self, binary, tmp):
        self.kz, self.tmp, self.n = f"{binary}/kangzao", pathlib.Path(tmp), 0

    def run(self, *args, **kwargs):
        self.n += 1
        out = self.tmp / f"run-{self.n}"
        done = common.run([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--json", *args], **kwargs)
        return done, out

    def _wait_for_record(self, out, **wanted):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if (out / "journal.jsonl").exists():
                for r in common.read_journal(out / "journal.jsonl")[0]:
                    if wanted.items() <= r.items():
                        return
            time.sleep(0.01)
        raise AssertionError(f"no record with {wanted} within 30 s")

    def verdicts_of_misbehaving_tests(self):
        done, out = self.run(*sum((["--filter", t] for t in EXPECTED), []), "--retries", "2")
        got = {r["id"]: r for r in json.loads(done.stdout)["results"]}
        wrong = {t: (got[t]["verdict"], v, got[t]["reason"]) for t, v in EXPECTED.items() if got[t]["verdict"] != v}
        assert not wrong, wrong
        assert set(got) == set(EXPECTED), set(got) ^ set(EXPECTED)
        assert done.returncode == 1, done.returncode
        assert "after the step: write through a null pointer" in got["selftest.segfaults"]["reason"], got["selftest.segfaults"]
        notes = [r["text"] for r in common.read_journal(out / "journal.jsonl")[0] if r["type"] == "note"]
        assert any("selftest.segfaults is not labelled destructive" in n for n in notes), notes
        assert "intermittent" in got["selftest.fails_sometimes"]["retries"], got["selftest.fails_sometimes"]
        assert "hard" in got["selftest.fails"]["retries"]
        assert "--filter selftest.fails " in got["selftest.fails"]["rerun"]
        records, _ = common.read_journal(out / "journal.jsonl")
        assert any(r["type"] == "evidence" and r["kind"] == "slow" for r in records)
        hang = next(r for r in records if r["type"] == "verdict" and r["id"] == "selftest.hangs")
        assert "thread" in hang["hang"], hang
        assert sum(r["type"] == "metric" for r in records) <= 20000
        assert not common.touching(out)

    def exit_codes(self):
        for args, want in [(["--filter", "selftest.passes"], 0), (["--filter", "selftest.warns"], 1),
                           (["--filter", "selftest.is_blocked"], 125), (["--filter", "selftest.skips"], 125),
                           (["--filter", "selftest.fails", "--retries", "0"], 1), (["--filter", "selftest.aborts"], 1)]:
            done, _ = self.run(*args)
            assert done.returncode == want, (args, done.returncode, want)

    def repeat_states_its_bound(self):
        done, _ = self.run("--filter", "selftest.passes", "--repeat", "59")
        document = json.loads(done.stdout)
        # 1 - 0.05^(1/59) = 0.0495
        assert any("0 of 59 failed, failure rate < 5%" in p for p in document["proved"]), document["proved"]
        assert document["results"][0]["runs"] == 59

    def stops_at_the_first_failure(self):
        done, _ = self.run("--filter", "selftest.passes", "--filter", "selftest.fails", "--stop-on-fail", "--retries", "0")
        got = {r["id"]: r["verdict"] for r in json.loads(done.stdout)["results"]}
        assert got == {"selftest.fails": "fail", "selftest.passes": "not-run"}, got
        done, _ = self.run("--filter", "selftest.fails_sometimes", "--until-fail", "--retries", "0", timeout=60)
        assert done.returncode == 1

    def interrupted_run_closes_its_journal(self):
        for sig in (signal.SIGINT, signal.SIGTERM):
            self.n += 1
            out = self.tmp / f"run-{self.n}"
            child = subprocess.Popen([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--filter", "soak.*"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            journal = out / "journal.jsonl"
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not (journal.exists() and b"test-start" in journal.read_bytes()):
                time.sleep(0.02)
            child.send_signal(sig)
            assert child.wait(timeout=30) == 130, child.returncode
            records, torn = common.read_journal(journal)
            assert not torn and records[-1]["type"] == "run-end" and records[-1]["how"] == "interrupted"
            assert not common.touching(out)

    def two_runners_do_not_share_a_run(self):
        self.n += 1
        out = self.tmp / f"run-{self.n}"
        first = subprocess.Popen([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--filter", "selftest.hangs",
                                  "--repeat", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (out / "journal.jsonl").exists():
            time.sleep(0.02)
        time.sleep(0.3)
        for lock in (out / "lock", None):
            second = common.run([self.kz, "resume", str(out)])
            assert second.returncode == 4 and "another runner" in second.stderr, (second.returncode, second.stderr)
            if lock:
                lock.unlink()
        first.send_signal(signal.SIGINT)
        first.wait(timeout=30)

    def full_disk_ends_the_run_and_harms_nothing(self):
        if os.geteuid() != 0:
            raise Skipped("mounting a small tmpfs needs root")
        self.n += 1
        disk = self.tmp / f"disk-{self.n}"
        disk.mkdir()
        mounted = common.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)])
        if mounted.returncode != 0:
            raise Skipped(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
        try:
            self._full_disk_on(disk)
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    def _full_disk_on(self, disk):
        out = disk / "run"
        done = common.run([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--json", "--filter", "selftest.floods"])
        assert done.returncode == 4, (done.returncode, done.stderr[-300:])
        assert len(done.stderr.strip().splitlines()) <= 2, done.stderr
        records, _ = common.read_journal(out / "journal.jsonl")
        assert records and records[0]["type"] == "run-start"
        assert not common.touching(out)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        again = common.run([self.kz, "resume", str(out), "--json"])
        assert again.returncode in (0, 1), (again.returncode, again.stderr)
        # The host failed and not the test, which therefore ran again.
        assert json.loads(again.stdout)["results"][0]["verdict"] == "pass", again.stdout
        records, _ = common.read_journal(out / "journal.jsonl")
        assert [r["id"] for r in records if r["type"] == "interrupted"] == ["selftest.floods"]

    def nothing_to_repeat_is_no_endless_run(self):
        self.n += 1
        done = common.run([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(self.tmp / f"run-{self.n}"), "--until-fail",
                           "--filter", "selftest.skips", "--json"], timeout=60)
        assert done.returncode == 125, (done.returncode, done.stderr)

    def what_was_blocked_runs_once_it_can(self):
        self.n += 1
        out, sock = self.tmp / f"run-{self.n}", self.tmp / f"late-{self.n}.sock"
        run = [self.kz, "run", "--device", f"vfio-user:{sock}", "--output", str(out), "--json", "--filter", "selftest.uses_the_device"]
        first = common.run(run)
        assert first.returncode == 125, (first.returncode, first.stderr)
        assert json.loads(first.stdout)["results"][0]["verdict"] == "blocked"
        device = subprocess.Popen([str(pathlib.Path(self.kz).parent / "softtpu"), "--hbm", "64M", "--socket", str(sock)],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            device.stdout.readline()
            again = common.run([self.kz, "resume", str(out), "--json"])
        finally:
            device.terminate()
            device.wait()
        result = json.loads(again.stdout)["results"][0]
        assert (result["verdict"], again.returncode) == ("pass", 0), (result, again.returncode, again.stderr)
        records, _ = common.read_journal(out / "journal.jsonl")
        assert [r["device"]["vendor"] for r in records if r["type"] == "environment"] == ["1234"], "the environment misses the device"

    def a_killed_helper_is_the_hosts_trouble(self):
        """The probe of a device that does not answer is killed, as a host without memory would."""
        self.n += 1
        out, sock = self.tmp / f"run-{self.n}", self.tmp / f"silent-{self.n}.sock"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(sock))
            server.listen()
            child = subprocess.Popen([self.kz, "run", "--device", f"vfio-user:{sock}", "--output", str(out), "--filter", "selftest.passes"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            server.settimeout(30)
            connection, _ = server.accept()
            with connection:
                helper = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                os.kill(helper, signal.SIGKILL)
                message = child.communicate(timeout=60)[1]
        assert child.returncode == 4 and "limits" in message, (child.returncode, message)

    def _dump(self):
        """A device that nobody may kill a test for, and that every machine has."""
        self.n += 1
        file = self.tmp / f"dump-{self.n}.txt"
        rows = [bytes([0x5a, 0x4b, 0x01, 0x00, 0, 0, 0x10, 0, 0, 0, 0, 0x12, 0, 0, 0, 0])] + [bytes(16)] * 15
        file.write_text("0000:01:00.0 Processing accelerators: test\n" +
                        "".join(f"{16 * n:02x}: {' '.join(f'{b:02x}' for b in row)}\n" for n, row in enumerate(rows)))
        return file

    def resume_waits_for_what_could_not_be_ended(self):
        """A test that ignores SIGTERM and may not be killed: the run stops, and goes on only when it is gone."""
        for how in ("left alone after its limit", "left by a killed runner"):
            self.n += 1
            out = self.tmp / f"run-{self.n}"
            words = [self.kz, "run", "--device", f"dump:{self._dump()}", "--output", str(out), "--filter",
                     "selftest.hangs_and_ignores_sigterm", "--filter", "selftest.passes", "--order", "selftest.hangs*"]
            if how.startswith("left alone"):
                assert common.run(words).returncode == 3
            else:
                child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self._wait_for_record(out, type="test-process")
                time.sleep(0.5)  # it has to come as far as ignoring the signal
                child.kill()
                child.wait()
            records, _ = common.read_journal(out / "journal.jsonl")
            test = next(r["pid"] for r in records if r["type"] == "test-process" and "hangs" in r["id"])
            try:
                held = common.run([self.kz, "resume", str(out)])
                assert held.returncode == 4 and str(test) in held.stderr, (how, held.returncode, held.stderr)
            finally:
                os.kill(test, signal.SIGKILL)
            done = common.run([self.kz, "resume", str(out), "--json"])
            got = {r["id"]: r["verdict"] for r in json.loads(done.stdout)["results"]}
            assert got["selftest.passes"] == "pass", (how, got)

    def device_that_goes_between_two_tests_is_lost(self):
        self.n += 1
        out, sock = self.tmp / f"run-{self.n}", self.tmp / f"gone-{self.n}.sock"
        device = subprocess.Popen([str(pathlib.Path(self.kz).parent / "softtpu"), "--hbm", "64M", "--socket", str(sock)],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        device.stdout.readline()
        child = subprocess.Popen([self.kz, "run", "--device", f"vfio-user:{sock}", "--output", str(out), "--filter",
                                  "identify.registers", "--repeat", "500"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait_for_record(out, type="verdict")
        device.kill()
        device.wait()
        assert child.wait(timeout=60) == 3, child.returncode
        verdicts = [r["verdict"] for r in common.read_journal(out / "journal.jsonl")[0] if r["type"] == "verdict"]
        assert verdicts.count("device-lost") == 1 and "blocked" not in verdicts and len(verdicts) < 500, verdicts[-5:]

    def report_of_a_cut_run_says_so(self):
        whole, _ = self.run("--filter", "selftest.passes", "--repeat", "3")
        out = self.tmp / f"run-{self.n}"
        cut = self.tmp / f"cut-{self.n}"
        cut.mkdir()
        lines = (out / "journal.jsonl").read_bytes().splitlines(keepends=True)
        second = [n for n, line in enumerate(lines) if b'"type":"verdict"' in line][1]
        (cut / "journal.jsonl").write_bytes(b"".join(lines[:second + 1]))
        report = common.run([self.kz, "report", str(cut)]).stdout
        assert "the journal has no end" in report and "selftest.passes: 2 of 3 runs done" in report, report
        changed = common.run([self.kz, "compare", str(out), str(cut)])
        assert changed.returncode == 1 and "not to its end" in changed.stdout, changed.stdout

    def caller_that_ignores_its_children(self):
        """Ends of children are seen, and children can be asked to end, whatever the caller did with signals."""
        self.n += 1
        done = common.run(["sh", "-c", "trap '' CHLD; exec \"$@\"", "sh", self.kz, "run", "--device", "softtpu:hbm=64M", "--output",
                           str(self.tmp / f"run-{self.n}"), "--filter", "selftest.passes"])
        assert done.returncode == 0, (done.returncode, done.stderr)

        self.n += 1  # a test that may not be killed ends by SIGTERM, which its grandparent has blocked
        hung = common.run([self.kz, "run", "--device", f"dump:{self._dump()}", "--output", str(self.tmp / f"run-{self.n}"), "--filter",
                           "selftest.hangs", "--retries", "0"],
                          preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))
        assert hung.returncode == 1, (hung.returncode, hung.stdout[-300:])

    def needs_no_more_memory_than_a_runner(self):
        """No numeric library with threads and buffers of its own is in the program that must survive everything."""
        linked = common.run(["ldd", self.kz]).stdout
        assert "libc.so" in linked and "blas" not in linked, linked

    def what_is_no_run_is_left_as_it_is(self):
        self.n += 1
        folder = self.tmp / f"run-{self.n}"
        folder.mkdir()
        for text in (b"x" * 100, b'{"v":1}\n' * 50 + b"a long tail without an end"):
            (folder / "journal.jsonl").write_bytes(text)
            assert common.run([self.kz, "resume", str(folder)]).returncode == 4
            assert (folder / "journal.jsonl").read_bytes() == text
            assert os.listdir(folder) == ["journal.jsonl"], os.listdir(folder)

    def device_path_holds_from_any_folder(self):
        dump = self._dump()
        self.n += 1
        out = self.tmp / f"run-{self.n}"
        common.run([self.kz, "run", "--device", f"dump:{dump.name},bdf=0000:01:00.0", "--output", str(out), "--filter", "selftest.passes"],
                   cwd=dump.parent)
        start = common.read_journal(out / "journal.jsonl")[0][0]
        assert start["device"] == f"dump:{dump},bdf=0000:01:00.0", start["device"]
        (self.tmp / "no-faults.jsonl").write_text("")
        self.n += 1
        out = self.tmp / f"run-{self.n}"
        common.run([self.kz, "run", "--device", "softtpu:hbm=64M,script=no-faults.jsonl", "--output", str(out), "--filter", "selftest.passes"],
                   cwd=self.tmp)
        start = common.read_journal(out / "journal.jsonl")[0][0]
        assert start["device"] == f"softtpu:hbm=64M,script={self.tmp}/no-faults.jsonl", start["device"]

    def report_that_does_not_fit_leaves_no_half(self):
        if os.geteuid() != 0:
            raise Skipped("mounting a small tmpfs needs root")
        _, out = self.run("--filter", "selftest.floods")
        disk = self.tmp / f"small-{self.n}"
        disk.mkdir()
        mounted = common.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(disk)])
        if mounted.returncode != 0:
            raise Skipped(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
        try:
            done = common.run([self.kz, "report", str(out), "--json", "--output", str(disk / "r.json")])
            assert done.returncode == 4 and "No space left" in done.stderr, (done.returncode, done.stderr)
            assert not (disk / "r.json").exists()
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    def killed_runner_leaves_no_folder(self):
        """A run whose folder is too deep for a socket keeps its device's sockets in a folder of their own."""
        self.n += 1
        tmp, deep = self.tmp / f"tmp-{self.n}", self.tmp / "/".join(["deep"] * 20)
        tmp.mkdir()
        deep.mkdir(parents=True)
        seen = False
        for n, wait in enumerate((0.1, 0.3, 0.6, 1.0)):
            child = subprocess.Popen([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(deep / str(n)), "--filter",
                                      "selftest.hangs"], env={**os.environ, "TMPDIR": str(tmp)}, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            time.sleep(wait)
            seen |= any(tmp.iterdir())
            child.kill()
            child.wait()
        assert seen, "no run got as far as its device"
        deadline = time.monotonic() + 10
        while any(tmp.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(tmp.iterdir()), list(tmp.rglob("*"))

    def model_that_dies_before_the_first_test_is_started_again(self):
        early = 0
        for _ in range(12):
            self.n += 1
            out = self.tmp / f"run-{self.n}"
            child = subprocess.Popen([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--filter", "selftest.passes"],
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            while child.poll() is None and not (out / "softtpu.sock").exists():
                pass
            for pid, (parent, cmd) in common.processes().items():
                if parent == child.pid and cmd.split(" ")[0].endswith("softtpu"):
                    os.kill(pid, signal.SIGKILL)
            said, _ = child.communicate(timeout=60)
            records, _ = common.read_journal(out / "journal.jsonl")
            if any("before the first test" in r.get("text", "") for r in records if r["type"] == "note"):
                early += 1
                assert common.verdicts(records) == {"selftest.passes": "pass"} and child.returncode == 0, said
            else:  # it died in the test
                assert common.verdicts(records)["selftest.passes"] in ("pass", "fail"), said
        assert early, "no kill came before the first test"

    def told_to_stop_while_the_device_starts(self):
        """Until the device is there no test has begun: the run ends as interrupted, at once, and leaves nothing behind."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            for wait in (0.0, 0.02, 0.05, 0.1):
                self.n += 1
                out = self.tmp / f"run-{self.n}"
                child = subprocess.Popen([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--filter", "selftest.hangs"],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                time.sleep(wait)
                child.send_signal(signum)
                try:
                    _, said = child.communicate(timeout=20)
                finally:
                    child.kill()
                # Before the program has taken the signal over, the kernel ends it.
                assert child.returncode in (130, -signum), (child.returncode, wait, said)
                assert not common.touching(out), common.touching(out)
                assert not common.sockets_in(out), common.sockets_in(out)

    def deleted_run_folder_ends_the_run(self):
        self.n += 1
        out = self.tmp / f"run-{self.n}"
        child = subprocess.Popen([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--filter", "selftest.passes",
                                  "--repeat", "100000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._wait_for_record(out, type="verdict", id="selftest.passes")
        shutil.rmtree(out, ignore_errors=True)
        try:
            _, said = child.communicate(timeout=30)
        finally:
            child.kill()
        assert child.returncode == 4 and "deleted" in said, (child.returncode, said)

    def killed_run_resumes(self):
        self.n += 1
        out = self.tmp / f"run-{self.n}"
        child = subprocess.Popen([self.kz, "run", "--device", "softtpu:hbm=64M", "--output", str(out), "--filter", "selftest.passes",
                                  "--filter", "selftest.hangs", "--filter", "selftest.skips"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait_for_record(out, type="test-start", id="selftest.hangs")
        child.kill()
        child.wait()
        done = common.run([self.kz, "resume", str(out), "--json"])
        got = {r["id"]: r["verdict"] for r in json.loads(done.stdout)["results"]}
        assert got == {"selftest.hangs": "crash", "selftest.passes": "pass", "selftest.skips": "skip"}, got
        assert done.returncode == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    failed = passed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="kz-runner-") as tmp:
        checks = Checks(os.path.abspath(args.bin), tmp)
        for name in [n for n in vars(Checks) if not n.startswith("_") and n != "run"]:
            try:
                getattr(checks, name)()
                passed += 1
            except Skipped as e:
                skipped += 1
                print(f"SKIP {name}: {e}")
            except Exception as e:  # noqa: BLE001 every check is reported
                failed += 1
                print(f"FAIL {name}: {type(e).__name__} {str(e)[:1500]}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
