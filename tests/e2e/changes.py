#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""kangzao changes as a person uses it: files, standard input, exit codes, JSON, bad input."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

DATA = pathlib.Path(__file__).resolve().parents[1] / "data/changes"


class Changes(unittest.TestCase):
    def call(self, *arguments, stdin=b""):
        return subprocess.run([BIN / "kangzao", "changes", *map(str, arguments)], input=stdin, capture_output=True, timeout=120)

    def test_a_failed_build_names_change_and_cure(self):
        r = self.call(DATA / "source-class_create-7.3.log")
        self.assertEqual(r.returncode, 1, r.stderr)
        for text in (b"class_create (high)", b"changed in Linux 6.4", b"cure", b"error:"):
            self.assertIn(text, r.stdout)

    def test_standard_input_and_json(self):
        log = (DATA / "source-no_llseek-7.3.log").read_bytes()
        r = self.call("-", "--json", stdin=log)
        self.assertEqual(r.returncode, 1, r.stderr)
        finding = json.loads(r.stdout)["findings"][0]
        self.assertEqual((finding["name"], finding["confidence"], finding["log"]), ("no_llseek", "high", "-"))
        self.assertEqual(finding["change"]["since"], "6.12")
        self.assertIn(b"no_llseek", log.split(b"\n")[finding["evidence"]["line"] - 1])

    def test_a_refused_load(self):
        r = self.call(DATA / "load-6.1-on-newest.log", "--kernel", "7.3.4+deb13-amd64", "--vermagic", "6.1.0-50-amd64 SMP", "--json")
        names = [f["name"] for f in json.loads(r.stdout)["findings"]]
        self.assertEqual((r.returncode, names[:2]), (1, ["version_magic", "module_struct"]))

    def test_nothing_found_is_0_and_said(self):
        for log in ("build-good-6.1.log", "build-good-7.3.log"):
            self.assertEqual(self.call(DATA / log).returncode, 0, log)
        r = self.call("-", stdin=b"hello\n")
        self.assertEqual((r.returncode, r.stdout), (0, b"-: no line of a build or load that failed\n"))
        self.assertEqual(json.loads(self.call("-", "--json").stdout), {"schema": 1, "findings": []})

    def test_what_is_not_known_is_found(self):
        r = self.call("-", stdin=b"make[2]: *** [Makefile:9: all] Error 2\n")
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"not_known (low)", r.stdout)

    def test_several_logs(self):
        r = self.call(DATA / "source-no_llseek-7.3.log", DATA / "build-good-7.3.log")
        self.assertEqual(r.returncode, 1)
        self.assertEqual(r.stdout.count(b".log:\n"), 2)

    def test_the_table(self):
        rows = json.loads(self.call("--list", "--json").stdout)["changes"]
        self.assertGreater(len(rows), 140)
        text = self.call("--list").stdout.decode()
        for row in rows:
            self.assertIn(row["symbol"], text)

    def test_bad_input(self):
        with tempfile.TemporaryDirectory() as folder:
            for arguments, code, said in (((), 2, b"no log"), (("/nonexistent",), 4, b"No such file"), ((folder,), 4, b"directory"),
                                          ((DATA / "build-good-6.1.log", "--kernel", "newest"), 2, b"is no kernel release"),
                                          (("x", "--list"), 2, b""), (("--nonsense",), 2, b"")):
                r = self.call(*arguments)
                self.assertEqual(r.returncode, code, (arguments, r.stderr))
                self.assertIn(said, r.stderr)
                self.assertEqual(r.stdout, b"")
                self.assertEqual(r.stderr.count(b"\n"), 1, r.stderr)

    def test_bytes_of_any_kind(self):
        r = self.call("-", stdin=bytes(range(256)) * 4000 + b"\nd.c:1:1: error: '\x00\xff\x1b[31m' undeclared\n")
        self.assertEqual(r.returncode, 1)
        self.assertNotIn(b"\x1b", r.stdout)
        self.assertNotIn(b"\x00", r.stdout)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--bin", required=True, type=pathlib.Path)
    a, rest = p.parse_known_args()
    BIN = a.bin
    unittest.main(argv=[sys.argv[0]] + rest)
