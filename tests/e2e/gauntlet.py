#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The gauntlet catches rows of every group and names them rightly, stays silent on a sound device, and tells nobody what it planted."""
import argparse
import json
import pathlib
import sys
import tempfile
import os

sys.path.insert(0, os.path.dirname(__file__))
import common  # noqa: E402

# Hard rows of each group of the catalogue, with classes that the catalogue gives them.
ROWS = {"M10": "hbm_ecc", "M17": "hbm_ecc", "D07": "dma_corruption", "D08": "dma_corruption", "Q05": "queue_protocol",
        "Q12": "queue_protocol", "Q13": "security_isolation", "C11": "compute_sdc", "F04": None, "F10": "firmware_hang"}


def gauntlet(binary, *words, code):
    got = common.run([f"{binary}/kangzao", "gauntlet", *words], timeout=500)
    assert got.returncode == code, f"exit {got.returncode}, wanted {code}: {got.stderr[-2000:]}"
    return got


def rows_are_caught(binary, tmp):
    keep, out = tmp / "keep", tmp / "out.json"
    words = ["--rows", ",".join(ROWS), "--vary", "5", "--state", str(tmp / "state"), "--json"]
    gauntlet(binary, *words, "--clean", "0", "--keep", str(keep), "--output", str(out), code=0)
    document = json.loads(out.read_text())
    rows = {r["id"]: r for r in document["rows"]}
    assert rows.keys() == ROWS.keys(), sorted(rows)
    for name, cls in ROWS.items():
        assert rows[name]["caught"], name
        assert rows[name]["by"] and rows[name]["class"] in rows[name]["expected_class"].split("|"), rows[name]
        assert cls in (None, rows[name]["class"]), rows[name]
    assert document["caught"] == document["total"] == document["right_class"] == len(ROWS)
    nobody_was_told(keep)
    # Finished rows are taken over, and the same again gives the same.
    again = json.loads(gauntlet(binary, *words, "--clean", "0", "--resume", code=0).stdout)
    assert again["rows"] == document["rows"]
    gauntlet(binary, *words, "--output", str(out), code=4)


def nobody_was_told(keep):
    """No journal of a run names a row or a parameter, though the kept folders do in the end."""
    runs = [d for d in keep.iterdir() if d.is_dir()]
    assert {d.name.split("-")[1] for d in runs} >= ROWS.keys(), [d.name for d in runs]
    for run in runs:
        text = (run / "journal.jsonl").read_text()
        row = run.name.split("-")[1]
        assert f'"{row}"' not in text and f"-{row}" not in text and "addr_frac" not in text, run


def sound_device_is_silent(binary, tmp):
    got = json.loads(gauntlet(binary, "--rows", "M05", "--clean", "1", "--state", str(tmp / "s2"), "--json", code=0).stdout)
    assert got["clean_runs"] == 1 and got["false_alarms"] == 0, got["clean"]
    assert got["clean"][0]["passed"] > 80, got["clean"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kz-e2e-") as tmp:
        rows_are_caught(args.bin, pathlib.Path(tmp))
        sound_device_is_silent(args.bin, pathlib.Path(tmp))
    print(f"{len(ROWS)} rows and a clean run: 2 passed, 0 failed")


if __name__ == "__main__":
    main()
