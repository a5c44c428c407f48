#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""kangzao changes against real kernels: the table is compiled, and what fails must be explained.

usage: changes.py --bin DIR [--part rows|sources|load]... [--work DIR] [--save FOLDER]
Parts: rows     both forms of every row on every kernel of the lab: they compile where the row says, and where one does not,
                its log leads to the row
       sources  six modules that newer kernels refuse, and their cured twins, which every kernel builds
       load     kz_accel.ko of the oldest kernel offered to the newest one
--save keeps the logs as fixtures of the unit tests (tests/data/changes).
Exit: 0 all as expected, 1 not, 125 the roots are not there and cannot be had here.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import change_rows as rows_of

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE / "changes"
# Module, row of the table: the first kernel of the matrix that refuses it follows from the row.
SIX = ["class_create", "eventfd_signal", "no_llseek", "del_timer_sync", "MODULE_IMPORT_NS", "io_uring_cmd_done"]


class Check:
    def __init__(self):
        self.failed, self.passed = [], 0

    def that(self, condition, text):
        if condition:
            self.passed += 1
        else:
            self.failed.append(text)
            print(f"FAILED {text}", flush=True)


def run(command, **kwargs):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, timeout=kwargs.pop("timeout", 900), **kwargs)


def explain(kangzao, logs, release, *more):
    """{stem of the log: findings}; harmless remarks are left out."""
    r = run([kangzao, "changes", "--json", "--kernel", release, *more] + list(logs))
    if r.returncode not in (0, 1):
        raise AssertionError(f"kangzao changes ended with {r.returncode}: {r.stderr}")
    found = {pathlib.Path(log).stem: [] for log in logs}
    for f in json.loads(r.stdout)["findings"]:
        if not f["harmless"]:
            found[pathlib.Path(f["log"]).stem].append(f)
    return found


def expected(row, side, kernel):
    """True, False, or None where a distribution may have done the one or the other."""
    since = rows_of.series(row["since"])
    new_since = rows_of.series(row.get("new-since", row["since"]))
    backported = "backport" in row and rows_of.series(row["backport"]) <= kernel < max(since, new_since)
    uncertain = "not-before" in row and rows_of.series(row["not-before"]) <= kernel < since
    if side == "new":
        return True if backported else None if uncertain and "new-since" not in row else kernel >= new_since
    if backported or uncertain:
        return None
    return kernel >= rows_of.series(row.get("old-since", "0.0")) and (kernel < since or row.get("modpost") == "yes")


def explains(findings, row):
    """The first finding is this row, or one whose new form is the same."""
    if not findings:
        return False
    first = findings[0]
    return first["name"] == row["symbol"] or bool(first["change"]) and first["change"]["new"] == row.get("new", "-")


def check_rows(check, kangzao, work, roles, save):
    table = rows_of.read_rows()
    listed = json.loads(run([kangzao, "changes", "--list", "--json"]).stdout)["changes"]
    check.that([r["symbol"] for r in table] == [r["symbol"] for r in listed], "the program lists the rows of the files")
    seen = {}  # (symbol, side) -> kernels that take it
    for role, release in roles.items():
        kernel = rows_of.series(release)
        results = rows_of.compile_rows(role, table, work / "rows")
        logs = {}
        for row in table:
            for side in ("old", "new"):
                if side not in row:
                    continue
                name = rows_of.file_name(side, row)
                compiled, log = results[name]
                want = expected(row, side, kernel)
                check.that(want is None or compiled == want,
                           f"{row['symbol']}: the {side} form {'compiles' if compiled else 'does not compile'} on {release}")
                if compiled:
                    seen.setdefault((row["symbol"], side), []).append(role)
                else:
                    path = work / "rows" / role / f"{name}.log"
                    path.write_text(log)
                    logs[name] = (path, row)
        found = explain(kangzao, [p for p, _ in logs.values()], release)
        for name, (_, row) in logs.items():
            check.that(explains(found[name], row),
                       f"{release}: {name} is explained by {row['symbol']}, not {[f['name'] for f in found[name]]}")
        print(f"rows: {release}: {len(results)} sources, {len(logs)} refused and explained", flush=True)
        if save:
            save_rows(save / f"rows-{kernel[0]}.{kernel[1]}.log", logs, found)
    if len(roles) == len(rows_of.ROLES):
        check_marks(check, table, seen)


def check_marks(check, table, seen):
    """The mark `verified` says what was seen here: no more, no less."""
    for row in table:
        old, new = seen.get((row["symbol"], "old"), []), seen.get((row["symbol"], "new"), [])
        mark = "both" if old and new and row.get("modpost") != "yes" else "after" if new else ""
        check.that(row.get("verified", "") == mark, f"{row['symbol']}: verified is '{row.get('verified', '')}', seen was '{mark}'")


def save_rows(path, logs, found):
    with open(path, "w") as out:
        for name, (log, _) in logs.items():
            lines = [l for l in log.read_text().split("\n") if l.strip() and not l.startswith(("  CC", "  LD", "make", "In file", "      "))]
            lines = lines[:32]  # a unit test needs the first message with its code
            out.write(f"### {name} {found[name][0]['name'] if found[name] else '-'}\n" + "\n".join(lines) + "\n")


def build(role, name, work, table, cured):
    """Builds one of the six; its log."""
    folder = work / "sources" / role / (name + ("_cured" if cured else ""))
    shutil.rmtree(folder, ignore_errors=True)
    src = folder / name
    src.mkdir(parents=True)
    module = f"kz_{name.lower()}"
    if cured:
        row = next(r for r in table if r["symbol"] == name)
        shutil.copy(SOURCES / f"{name}_cured.c", src / f"{module}.c")
        for side in ("old", "new"):
            heads = "".join(rows_of.include(h) for h in ["linux/module.h"] + row.get("include", "").split())
            (src / f"has_{side}.c").write_text(f'{heads}{row[side]}\nMODULE_LICENSE("GPL");\n')
        (src / "Kbuild").write_text((SOURCES / "Kbuild.cured").read_text() + f"obj-m := {module}.o\n")
    else:
        shutil.copy(SOURCES / f"{name}.c", src / f"{module}.c")
        (src / "Kbuild").write_text(f"obj-m := {module}.o\n")
    r = run([rows_of.ROOTS, "build", role, src, folder / "out"])
    log = folder.parent / f"{folder.name}.log"
    log.write_text(r.stdout + r.stderr)
    return r.returncode == 0 and (folder / "out" / name / f"{module}.ko").exists(), log


def check_sources(check, kangzao, work, roles, save):
    table = rows_of.read_rows()
    for role, release in roles.items():
        refused = {}
        for name in SIX:
            row = next(r for r in table if r["symbol"] == name)
            built, log = build(role, name, work, table, cured=False)
            must_fail = rows_of.series(release) >= rows_of.series(row["since"])
            check.that(built != must_fail, f"{name} on {release}: built is {built}")
            if not built:
                refused[log] = name
            built, cured_log = build(role, name, work, table, cured=True)
            check.that(built, f"{name}, cured, builds on {release}: {cured_log}")
        found = explain(kangzao, refused, release) if refused else {}
        for log, name in refused.items():
            findings = found[log.stem]
            names = [f["name"] for f in findings]
            check.that(names[:1] == [name] and findings[0]["confidence"] == "high" and findings[0]["cure"] and
                       findings[0]["change"]["before"] and findings[0]["change"]["after"],
                       f"{name} on {release} is explained with its cure: {names}")
            if save:
                shutil.copy(log, save / f"source-{name}-{'.'.join(map(str, rows_of.series(release)))}.log")
        print(f"sources: {release}: {len(refused)} of {len(SIX)} refused and explained, {len(SIX)} cured ones built", flush=True)


def check_load(check, kangzao, work, roles, save):
    roles = sorted(roles, key=lambda r: rows_of.series(roles[r]))
    oldest, newest = roles[0], roles[-1]
    out, guest = work / "load", work / "load/guest"
    shutil.rmtree(out, ignore_errors=True)
    r = run([rows_of.ROOTS, "build", oldest, rows_of.SOURCE / "shim/kmod", out])
    module = out / "kmod/kz_accel.ko"
    check.that(module.exists(), f"kz_accel.ko builds on {oldest}: {(r.stdout + r.stderr)[-400:]}")
    if not module.exists():
        return
    r = run([kangzao, "lab", "shell", newest, "--no-tpu", "--no-driver", "--output", guest, "--append", "loglevel=1",
             "--add", f"{module}:lab/kz_accel.ko", "--run", "insmod /lab/kz_accel.ko; s=$?; dmesg | tail -n 40; exit $s"], timeout=300)
    if r.returncode == 125:
        print(f"load: blocked: {r.stderr.strip().splitlines()[-1]}")
        check.that(False, "the guest could be started")
        return
    check.that(r.returncode != 0, f"insmod is refused, ended {r.returncode}: {r.stdout[-600:]} {r.stderr[-300:]}")
    log = guest / "boot-1/serial.log"
    magic = re.search(rb"vermagic=([^\0]*)", module.read_bytes())[1].decode()
    newest_release = rows_of.release(newest)
    found = explain(kangzao, [log], newest_release, "--vermagic", magic)["serial"]
    names = [f["name"] for f in found]
    check.that(any(n in ("version_magic", "module_struct", "symbol_version") for n in names) and "not_known" not in names,
               f"the refused load is explained: {names}")
    told = " ".join(f["what"] + f["cause"] for f in found)
    check.that(magic.split()[0] in told and newest_release in told and all(f["cure"] for f in found),
               f"both releases and a cure are named: {told}")
    print(f"load: {magic.split()[0]} on {newest_release}: {', '.join(names)}", flush=True)
    if save:
        kept = [l for l in log.read_text(errors="replace").split("\n") if re.match(r"\[|insmod|lab:", l)]
        (save / "load-6.1-on-newest.log").write_text("\n".join(kept) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--bin", required=True, type=pathlib.Path)
    p.add_argument("--part", action="append", choices=["rows", "sources", "load"])
    p.add_argument("--work", type=pathlib.Path)
    p.add_argument("--save", type=pathlib.Path)
    a = p.parse_args()
    got = run([rows_of.ROOTS, "get", *rows_of.ROLES, "qemu"], timeout=1800)
    if got.returncode:
        print(f"changes: {got.stderr.strip()}")
        return 125 if got.returncode == 125 else 1
    roles = {role: rows_of.release(role) for role in rows_of.ROLES}
    own = None if a.work else tempfile.TemporaryDirectory(prefix="kz-changes-")
    work = a.work or pathlib.Path(own.name)
    if a.save:
        a.save.mkdir(parents=True, exist_ok=True)
    check = Check()
    parts = {"rows": check_rows, "sources": check_sources, "load": check_load}
    for name in a.part or parts:
        parts[name](check, a.bin / "kangzao", work, roles, a.save)
    print(f"changes: {check.passed} checks passed, {len(check.failed)} failed")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
