#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""However a load ends, every operation is accounted for, one line says why, and nothing is left behind."""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import jsonschema

sys.path.insert(0, os.path.dirname(__file__))
import common  # noqa: E402

SCHEMA = json.loads((pathlib.Path(__file__).resolve().parents[2] / "docs/journal-schema.json").read_text())
SLOW = "[a]\nmix=nop\nloop=closed\ndepth=8\ntime=60s\ndevice=softtpu:service-time=50ms\n"
BUSY = "[a]\nmix=copy-in:2,copy-out:2,copy-hbm,nop\nsize=64-16K\nrate=1000\ntime={time}\n"


def wait_for(what, condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = condition()
        if got:
            return got
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {seconds} s")


class Load:
    def __init__(self, binary, tmp, name, text, *options):
        self.tmp = tmp / name
        self.tmp.mkdir()
        self.file, self.run, self.out = self.tmp / "x.load", self.tmp / "run", self.tmp / "result.json"
        self.file.write_text(text)
        self.child = subprocess.Popen([f"{binary}/kangzao", "load", str(self.file), "--output", str(self.out), "--run-dir", str(self.run),
                                       *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def journal(self):
        try:
            return common.read_journal(self.run / "journal.jsonl")[0]
        except FileNotFoundError:
            return []

    def under_way(self):
        wait_for("sample", lambda: any(r["type"] == "load-sample" and r["completed"] > 5 for r in self.journal()))

    def descendants(self, text):
        everything, found, wanted = common.processes(), {self.child.pid}, []
        for _ in range(4):
            found |= {pid for pid, (parent, _) in everything.items() if parent in found}
        for pid in found - {self.child.pid}:
            if pid in everything and text in everything[pid][1]:
                wanted.append(pid)
        return wanted

    def end(self, code, message=None, seconds=60):
        out, err = self.child.communicate(timeout=seconds)
        assert self.child.returncode == code, f"exit {self.child.returncode}, want {code}: {err} {out}"
        lines = [line for line in err.splitlines() if line.startswith("kangzao:")]
        assert len(lines) == (0 if code == 0 else 1), err
        if message:
            assert re.search(message, lines[0]), lines
        document = json.loads(self.out.read_text())
        assert document["exit"] == code
        self.balanced(document)
        validator = jsonschema.Draft7Validator(SCHEMA)
        for r in self.journal():
            errors = list(validator.iter_errors(r))
            assert not errors, f"journal record {r['type']}: {errors[0].message}"
        return document

    @staticmethod
    def balanced(document):
        assert document["balanced"], document
        accounts = [document["total"]] + document["jobs"] + [a for j in document["jobs"] for a in j["ops"].values()]
        for a in accounts:
            assert a["sent"] == a["completed"] + a["failed"] + a["cancelled"] + a["lost"], a
            assert a["lost"] == 0, a
        assert sum(document["total"]["cancelled_by"].values()) == document["total"]["cancelled"]
        assert document["io_wq_workers"] == 0, document["io_wq_workers"]


def case_clean(binary, tmp):
    load = Load(binary, tmp, "clean", BUSY.format(time="2s"))
    d = load.end(0)
    assert d["total"]["completed"] == d["total"]["sent"] > 1000, d["total"]
    assert d["total"]["verified"] > 300 and d["total"]["wrong"] == 0
    report = common.run([f"{binary}/kangzao", "report", str(load.run)])
    assert report.returncode == 0 and "copy-hbm" in report.stdout, report


def case_two_devices(binary, tmp):
    d = Load(binary, tmp, "devices", BUSY.format(time="2s") + "device=softtpu:serial=1\ndevice=softtpu:serial=2\n").end(0)
    sides = d["jobs"][0]["devices"]
    assert len(sides) == 2 and all(s["completed"] > 1000 for s in sides), sides


def case_two_processes(binary, tmp):
    load = Load(binary, tmp, "processes", BUSY.format(time="3s") + "processes=2\nthreads=2\nqueues=2\n")
    load.under_way()
    assert len(load.descendants("internal-load")) == 2 and len(load.descendants("/softtpu ")) == 2
    d = load.end(0)
    assert d["processes"] == 2 and d["total"]["threads"] == 4
    due = d["total"]["sent"] - d["jobs"][0]["ops"]["check"]["sent"] + d["total"]["back_pressure"]["not_started"]
    assert due == 3000, f"{due} operations due, the rate is the job's"


def case_interrupted(binary, tmp):
    load = Load(binary, tmp, "interrupted", BUSY.format(time="60s"))
    load.under_way()
    load.child.send_signal(signal.SIGINT)
    d = load.end(130, "interrupted")
    assert d["total"]["completed"] == d["total"]["sent"], "what was outstanding is waited for"


def case_interrupted_twice(binary, tmp):
    load = Load(binary, tmp, "twice", SLOW.replace("depth=8", "depth=32").replace("50ms", "900ms"))
    wait_for("samples", lambda: any(r["type"] == "load-sample" and r["completed"] > 0 for r in load.journal()))
    load.child.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert load.child.poll() is None, "the first signal waits for what is outstanding"
    load.child.send_signal(signal.SIGTERM)
    d = load.end(130, seconds=15)
    assert d["total"]["cancelled_by"].get("stopped", 0) > 10, d["total"]


def case_process_killed(binary, tmp):
    load = Load(binary, tmp, "killed", SLOW)
    load.under_way()
    [child] = load.descendants("internal-load")
    os.kill(child, signal.SIGKILL)
    d = load.end(1, r"process 0 .*signal 9")
    assert 0 < d["total"]["cancelled_by"].get("process-died", 0) <= 8, d["total"]


def case_child_told_to_stop(binary, tmp):
    """By somebody else than us: the load was shorter than it should be, and that is not a success."""
    load = Load(binary, tmp, "told", SLOW)
    load.under_way()
    [child] = load.descendants("internal-load")
    os.kill(child, signal.SIGTERM)
    d = load.end(1, "told to stop")
    assert not d["interrupted"] and d["total"]["completed"] == d["total"]["sent"], d["total"]


def case_one_of_two_killed(binary, tmp):
    load = Load(binary, tmp, "one-killed", SLOW + "processes=2\n")
    load.under_way()
    os.kill(load.descendants("internal-load")[0], signal.SIGKILL)
    d = load.end(1, r"signal 9")
    assert 0 < d["total"]["cancelled_by"].get("process-died", 0) <= 8 and d["total"]["completed"] > 0, d["total"]


def case_device_killed(binary, tmp):
    load = Load(binary, tmp, "device", SLOW)
    load.under_way()
    [tpu] = load.descendants("/softtpu ")
    os.kill(tpu, signal.SIGKILL)
    d = load.end(3, "queue|closed|gone")
    assert 0 < d["total"]["cancelled_by"].get("device-gone", 0) <= 9, d["total"]


def case_parent_killed(binary, tmp):
    load = Load(binary, tmp, "parent", BUSY.format(time="60s"))
    load.under_way()
    mine = load.descendants("internal-load") + load.descendants("/softtpu ")
    assert len(mine) == 2
    load.child.kill()
    load.child.communicate()
    wait_for("end of children", lambda: not set(mine) & set(common.processes()))
    report = common.run([f"{binary}/kangzao", "report", str(load.run)])
    assert report.returncode == 0 and "no result" in report.stdout, report


def case_fault(binary, tmp):
    sock, ctl = tmp / "f.sock", tmp / "f.ctl"
    tpu = subprocess.Popen([f"{binary}/softtpu", "--socket", str(sock), "--control", str(ctl), "--fault",
                            '{"row":"Q07","trigger":{"kind":"after","n":400}}'], stdout=subprocess.PIPE, text=True)
    try:
        assert tpu.stdout.readline().startswith("ready")
        load = Load(binary, tmp, "fault", BUSY.format(time="20s") + "timeout=1s\n", "--device", f"vfio-user:{sock}")
        out, err = load.child.communicate(timeout=60)
        d = json.loads(load.out.read_text())
        assert load.child.returncode == 1 and d["total"]["lost"] > 0, (load.child.returncode, err, d["total"])
        assert d["balanced"] and "no answer" in err, err
    finally:
        tpu.kill()
        tpu.wait()


def case_device_lost_without_a_word(binary, tmp):
    """The supply breaks down under load: no connection closes, nothing answers, registers read all ones."""
    sock, ctl = tmp / "l.sock", tmp / "l.ctl"
    tpu = subprocess.Popen([f"{binary}/softtpu", "--socket", str(sock), "--control", str(ctl), "--fault",
                            '{"row":"F20","params":{"load_ms":200,"down_ms":2000}}'], stdout=subprocess.PIPE, text=True)
    try:
        assert tpu.stdout.readline().startswith("ready")
        text = "[a]\nmix=copy-in,copy-out,matmul:4\ndim=256\nloop=closed\ndepth=16\ntime=30s\n"
        d = Load(binary, tmp, "lost", text, "--device", f"vfio-user:{sock}").end(3, "all ones")
        assert d["total"]["cancelled_by"].get("device-gone", 0) > 0, d["total"]
    finally:
        tpu.kill()
        tpu.wait()


def case_bad_input(binary, tmp):
    def wrong(text, code, message, *options):
        (tmp / "bad.load").write_text(text)
        done = common.run([f"{binary}/kangzao", "load", str(tmp / "bad.load"), "--run-dir", str(tmp / f"bad{len(list(tmp.iterdir()))}"), *options])
        assert done.returncode == code, f"{text!r}: exit {done.returncode}, want {code}: {done.stderr}"
        assert re.search(message, done.stderr), f"{text!r}: {done.stderr}"
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1 and "terminate" not in done.stderr, done.stderr

    good = "[a]\nmix=nop\ntime=200ms\n"
    wrong(good + "ratee=5\n", 2, r"bad\.load:4.*did you mean rate\?")
    wrong(good + "size=lots\n", 2, r"bad\.load:4.*lots")
    wrong("[a]\nmix=copy-inn\n", 2, r"bad\.load:2.*did you mean copy-in\?")
    wrong("[a]\ntime=1s\n", 2, r"bad\.load:1.*no mix")
    wrong("", 2, r"no \[job\]")
    wrong(good + "device=sofftpu:\n", 2, r"bad\.load:4.*softtpu:")
    wrong(good + "device=softtpu:hbmm=64M\n", 2, "hbmm")
    wrong(good + "device=vfio-user:/nonexistent/x.sock\n", 125, "/nonexistent/x.sock")
    wrong(good + "device=pci:ffff:1f:1f.7\n", 125, "ffff:1f:1f.7")
    wrong("[a]\ntarget=file:/nonexistent/data\n", 125, "/nonexistent/data")
    wrong("[a]\nmix=copy-in\nsize=8G\n", 2, "8G")
    wrong("[a]\nmix=copy-in\nsize=2G\n", 2, "beyond the device")
    wrong("[a]\nmix=copy-in\nsize=4M\nentries=1024\ndevice=softtpu:hbm=64M\n", 125, "HBM")
    wrong(good, 2, "soon", "--time", "soon")
    wrong(good, 4, "there already", "--output", str(tmp / "bad.load"))
    done = common.run([f"{binary}/kangzao", "load", "/nonexistent.load"])
    assert done.returncode == 2 and "/nonexistent.load" in done.stderr, done
    done = common.run([f"{binary}/kangzao", "load", str(tmp)])
    assert done.returncode == 2 and str(tmp) in done.stderr, done


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    cases = [f for name, f in globals().items() if name.startswith("case_") and args.only in name]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="kz-load-") as tmp:
        for case in cases:
            folder = pathlib.Path(tmp, case.__name__)
            folder.mkdir()
            try:
                case(binary, folder)
                left = wait_left(folder)
                assert not left, f"left behind: {left}"
                print(f"ok   {case.__name__}", flush=True)
            except (AssertionError, subprocess.TimeoutExpired):
                failed += 1
                print(f"FAIL {case.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def wait_left(folder):
    """What still touches the folder after a moment."""
    for _ in range(100):
        left = common.touching(folder)
        if not left:
            return {}
        time.sleep(0.1)
    return left


if __name__ == "__main__":
    main()
