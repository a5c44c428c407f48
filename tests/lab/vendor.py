#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The worked example of docs/vendor-driver.md, as its user would run it: a driver for QEMU's edu device, which is not ours.

Sound, it is green; with each of three bugs, the test that the page names fails, with the evidence that the page shows.
"""
import argparse
import os
import pathlib
import re
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
import common  # noqa: E402
from guest import host_can  # noqa: E402

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "vendor-driver"
LOAD = "until [ -c /dev/edu256 ]; do sleep 0.1; done; exec dd if=/dev/edu256 of=/dev/null bs=4096"
# bug -> tests of which one at least fails, and a word of the evidence with it: (kind, text in its detail)
BUGS = {
    0: None,
    1: (r"kmod\.used\.unload_refused", "driver", "no_reference"),
    2: (r"kmod\.(bind|load)\.again_and_again", "driver", '"leak"'),
    3: (r"kmod\.(used|vanish)\.", "kernel.log", r"BUG: unable to handle page fault|Oops|general protection"),
}


def run_lab(kz, out, role, bug):
    command = [kz, "lab", "--kernels", role, "--driver", str(SOURCES), "--make", f"EDU_BUG={bug}", "--pci", "edu", "--device", "pci:0000:01:00.0",
               "--group", "kmod", "--load-command", LOAD, "--retries", "0", "--output", str(out)]
    done = common.run(command, timeout=1800)
    records, _ = common.read_journal(out / "journal.jsonl")
    assert records[-1]["type"] == "run-end", f"no end: {done.stderr[-800:]}"
    return done, records


def check(kz, out, role, bug):
    done, records = run_lab(kz, out, role, bug)
    verdicts = common.verdicts(records)
    bad = {i: v for i, v in verdicts.items() if v not in ("pass", "skip")}
    if BUGS[bug] is None:
        reasons = {r["id"]: r.get("reason") for r in records if r["type"] == "verdict" and r["id"] in bad}
        assert not bad, f"the sound driver: {reasons}"
        ran = sum(v == "pass" for i, v in verdicts.items() if ".kmod." in i)
        assert ran >= 15, f"only {ran} tests of group kmod passed: {verdicts}"
        return f"{ran} tests of group kmod passed, none failed"
    tests, kind, text = BUGS[bug]
    failed = [i for i, v in bad.items() if v != "not-run" and re.search(tests, i)]
    assert failed, f"none of {tests} failed: {bad}"
    seen = [r for r in records if r["type"] == "evidence" and r.get("kind") == kind and re.search(text, str(r.get("detail")).replace("'", '"'))]
    assert seen, f"no evidence {kind} with {text}"
    assert done.returncode == 1, f"exit {done.returncode}"
    return f"{', '.join(failed)}: {str(seen[0]['detail'])[:160]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--kernels", default="stable-1")
    parser.add_argument("--bugs", default="0,1,2,3")
    parser.add_argument("--keep", help="folder for the runs")
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    if why := host_can(binary):
        print(f"vendor: this host cannot: {why}")
        sys.exit(125)
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory(prefix="kz-vendor-") as tmp:
        for role in args.kernels.split(","):
            for bug in map(int, args.bugs.split(",")):
                begin = time.monotonic()
                try:
                    said = check(f"{binary}/kangzao", pathlib.Path(args.keep or tmp) / f"{role}-{bug}", role, bug)
                    passed += 1
                    print(f"  ok   {role} bug {bug} ({time.monotonic() - begin:.0f} s): {said}", flush=True)
                except Exception as e:  # noqa: BLE001 every check is reported
                    failed += 1
                    print(f"  FAIL {role} bug {bug}: {type(e).__name__} {str(e)[:2500]}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
