#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""ls and level 1 on every PCI device that this machine has, and on the dumps of other machines' devices."""
import argparse
import json
import os
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
import common  # noqa: E402

DUMPS = pathlib.Path(__file__).resolve().parents[1] / "data" / "pci-dumps"
KNOWN = json.loads((DUMPS / "known.json").read_text())  # what is wrong with a recorded device, with our reading of it


def targets(binary):
    listed = common.run([f"{binary}/kangzao", "ls", "--all", "--json"])
    assert listed.returncode == 0, listed.stderr
    devices = json.loads(listed.stdout)["devices"]
    sysfs = set(os.listdir("/sys/bus/pci/devices")) if os.path.isdir("/sys/bus/pci/devices") else set()
    assert {d["bdf"] for d in devices} == sysfs, "ls --all and sysfs disagree"
    table = common.run([f"{binary}/kangzao", "ls", "--all"])
    assert table.returncode == 0 and all(d["bdf"] in table.stdout for d in devices)
    yield from (f"pci:{d['bdf']}" for d in devices)
    for dump in sorted(DUMPS.glob("*.txt")):
        for bdf in re.findall(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", dump.read_text(), re.M):
            yield f"dump:{dump},bdf={bdf}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="kz-real-") as tmp:
        for n, uri in enumerate(targets(binary)):
            done = common.run([f"{binary}/kangzao", "run", "--device", uri, "--level", "1", "--group", "pcie", "--output", f"{tmp}/{n}",
                               "--json", "--retries", "0"])
            try:
                results = json.loads(done.stdout)["results"]
            except ValueError:
                results = []
            # A dump may hold too few bytes, or be of a device that was lost: blocked is then the true answer.
            fair = ("pass", "skip", "warn", "blocked") if uri.startswith("dump:") else ("pass", "skip", "warn")
            known = {k["test"] for k in KNOWN if "test" in k and uri.startswith("dump:") and f"/{k['file']}," in uri}
            bad = [(r["id"], r["verdict"], r["reason"]) for r in results if r["verdict"] not in fair and r["id"] not in known]
            bad += [(k, "not found", "known.json lists it") for k in known if not any(r["id"] == k and r["verdict"] == "fail" for r in results)]
            ran = [r for r in results if r["verdict"] in ("pass", "warn")]
            lost = "-lost.txt" in uri and done.returncode == 125 and all("all ones" in r["reason"] for r in results if r["verdict"] == "blocked")
            if bad or (len(ran) < 4 and not lost):
                failed += 1
                print(f"FAIL {uri}: exit {done.returncode}, {len(ran)} ran, {bad} {done.stderr[-300:]}")
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or passed == 0 else 0)


if __name__ == "__main__":
    main()
