#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The quick profile on a software TPU is green, says what it proved, and every report format is valid."""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import jsonschema

sys.path.insert(0, os.path.dirname(__file__))
import common  # noqa: E402

# A software TPU is reached over a socket: the kernel has neither a node nor sysfs files of it to compare with.
SKIPPED = {"pcie.access.node_permissions", "pcie.config.bars_match_sysfs", "pcie.config.enables_match_sysfs",
           "pcie.config.ids_match_sysfs"}
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def parse_ktap(text):
    """A small reader of the KTAP format as the kernel's documentation describes it: version, plan, one line a test."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines[0] == "KTAP version 1", lines[0]
    plan = re.fullmatch(r"1\.\.(\d+)", lines[1])
    assert plan, lines[1]
    results = {}
    for n, line in enumerate(lines[2:], 1):
        m = re.fullmatch(r"(ok|not ok) (\d+) (\S+)(?: # (SKIP|TIMEOUT|XFAIL|ERROR)(.*))?", line)
        assert m and int(m[2]) == n, line
        results[m[3]] = (m[1], m[4])
    assert len(results) == int(plan[1])
    return results


def check_formats(binary, run, document):
    jsonschema.validate(document, json.loads((DOCS / "report-schema.json").read_text()))
    record = json.loads((DOCS / "journal-schema.json").read_text())
    records, torn = common.read_journal(pathlib.Path(run, "journal.jsonl"))
    assert not torn
    validator = jsonschema.Draft7Validator(record)
    for r in records:
        errors = list(validator.iter_errors(r))
        assert not errors, f"journal record {r.get('seq')}: {errors[0].message}"
    assert [r["seq"] for r in records] == list(range(len(records)))
    unlabelled = [r["text"] for r in records if r["type"] == "note" and "is not labelled destructive" in r["text"]]
    assert not unlabelled, unlabelled
    xsd = pathlib.Path(__file__).with_name("junit.xsd")
    for xml in (pathlib.Path(run, "junit.xml").read_bytes(), common.run([f"{binary}/kangzao", "report", run, "--junit"]).stdout.encode()):
        done = subprocess.run(["xmllint", "--noout", "--schema", str(xsd), "-"], input=xml, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()[-500:]
    ktap = parse_ktap(common.run([f"{binary}/kangzao", "report", run, "--ktap"]).stdout)
    for r in document["results"]:
        ok, directive = ktap[r["id"]]
        assert (ok == "ok") == (r["verdict"] in ("pass", "skip", "blocked", "not-run")), (r, ok)
        assert (directive == "SKIP") == (r["verdict"] in ("skip", "blocked", "not-run")), (r, directive)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    with tempfile.TemporaryDirectory(prefix="kz-quick-") as tmp:
        run = f"{tmp}/run"
        done = common.run([f"{binary}/kangzao", "run", "--device", "softtpu:", "--output", run, "--json"], timeout=280)
        document = json.loads(done.stdout)
        bad = [(r["id"], r["verdict"], r["reason"]) for r in document["results"] if r["verdict"] not in ("pass", "skip")]
        for b in bad:
            print("not clean:", *b)
        check_formats(binary, run, document)
        assert done.returncode == (0 if not bad else 1), done.returncode
        assert {r["level"] for r in document["results"]} == {1, 2, 3, 4}
        # Times are not judged while other work fights over the processors; that is said, here too.
        busy = {r["id"]: r["reason"] for r in document["results"]
                if r["id"] in ("dma.bandwidth", "soak.latency") and r["reason"].startswith("the host was too busy")}
        for name, reason in busy.items():
            print(f"not judged: {name}: {reason}")
        skipped = {r["id"] for r in document["results"] if r["verdict"] == "skip"} - set(busy)
        assert skipped == SKIPPED, sorted(skipped ^ SKIPPED)
        assert len(document["proved"]) >= 4 and document["counts"]["pass"] > 60
        same = common.run([f"{binary}/kangzao", "compare", run, run])
        assert same.returncode == 0, same.stdout
        assert not common.touching(run) and not common.sockets_in(run)
    print(f"{document['counts']['pass']} passed, {len(bad)} failed, {document['counts']['skip']} skipped")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
