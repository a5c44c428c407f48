# SPDX-License-Identifier: GPL-2.0-or-later
"""Compiles the rows of tools/changes/table in the lab's roots: both forms of each row, on each kernel."""
import os
import pathlib
import re
import shutil
import subprocess

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ROOTS = SOURCE / "tools/lab/roots.sh"
ROLES = ("stable-1", "stable", "sid", "backports")


def read_rows():
    """The table by our own few lines, independent of the program's reader."""
    rows = []
    for path in sorted((SOURCE / "tools/changes/table").glob("*.txt")):
        row, key = None, None
        for line in path.read_text().split("\n"):
            if line.startswith("#") and not line.startswith("#include"):
                continue
            if not line.strip():
                row = None
                continue
            if row is None:
                row = {}
                rows.append(row)
            if line[0].isspace():
                row[key] += "\n" + line.strip()
                continue
            key, value = line.split(":", 1)
            assert key not in row, f"{path}: {row.get('symbol')}: {key} twice"
            row[key] = value.strip()
    return rows


def release(role):
    r = subprocess.run([ROOTS, "version", role], capture_output=True, text=True)
    return r.stdout.strip() if r.returncode == 0 else None


def file_name(side, row):
    return side + "_" + re.sub(r"[^A-Za-z0-9]+", "_", row["symbol"])


def include(header):
    """A header of a row; with a question mark before it: where the kernel has it."""
    if not header.startswith("?"):
        return f"#include <{header}>\n"
    return f"#if __has_include(<{header[1:]}>)\n#include <{header[1:]}>\n#endif\n"


def write_sources(folder, rows):
    """One file a row and side; returns {object name: (row, side)}."""
    folder.mkdir(parents=True)
    made = {}
    for row in rows:
        for side in ("old", "new"):
            if side not in row:
                continue
            name = file_name(side, row)
            assert name not in made, f"two rows for {row['symbol']}"
            made[name] = (row, side)
            includes = "".join(include(h) for h in ["linux/module.h"] + row.get("include", "").split())
            (folder / f"{name}.c").write_text(f'{includes}{row[side]}\nMODULE_LICENSE("GPL");\n')
    objects = " ".join(f"{n}.o" for n in made)
    (folder / "Kbuild").write_text(f"obj-m := {objects}\nccflags-y := -Wno-missing-prototypes -Wno-missing-declarations\n")
    return made


def split_log(text, names):
    """The lines of each source, by the names in them. What the assembler says stands before the name."""
    logs = {n: "" for n in names}
    current, pending = None, ""
    for line in text.split("\n"):
        if line.startswith("/tmp/cc"):
            pending += line + "\n"
            continue
        named = [n for n in re.findall(r"\b((?:old|new)_\w+)\.[co]\b", line) if n in logs]
        current = named[0] if named else current
        if current:
            logs[current] += pending + line + "\n"
            pending = ""
    return logs


def compile_rows(role, rows, work):
    """{name: (compiled, log)} on the kernel of a role."""
    work = pathlib.Path(work) / role
    shutil.rmtree(work, ignore_errors=True)
    made = write_sources(work / "src", rows)
    objects = [f"{n}.o" for n in made]
    r = subprocess.run([ROOTS, "build", role, work / "src", work / "out", "-k", "-j2", "-Otarget"] + objects,
                       capture_output=True, text=True, errors="replace", timeout=1800)
    text = r.stdout + r.stderr
    logs = split_log(text, made)
    (work / "log").write_text(text)
    return {n: ((work / "out/src" / f"{n}.o").exists(), logs[n]) for n in made}


def series(text):
    m = re.match(r"(\d+)\.(\d+)", text)
    return (int(m[1]), int(m[2])) if m else (0, 0)
