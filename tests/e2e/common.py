# SPDX-License-Identifier: GPL-2.0-or-later
"""What the end-to-end checks share: finding programs, reading journals, and looking for what a run left behind."""
import json
import os
import pathlib
import subprocess


def read_journal(path):
    """Records of a journal by our own few lines, independent of the project's reader. A torn last line is allowed."""
    records, torn = [], False
    data = pathlib.Path(path).read_bytes()
    lines = data.split(b"\n")
    for n, line in enumerate(lines):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except ValueError:
            if n != len(lines) - 1:
                raise AssertionError(f"{path}:{n + 1}: unreadable line in the middle of the journal: {line[:120]!r}")
            torn = True
    return records, torn


def verdicts(records):
    return {r["id"]: r["verdict"] for r in records if r.get("type") == "verdict"}


def processes():
    """pid -> (ppid, command line) of everything that runs."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            cmd = pathlib.Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            stat = pathlib.Path("/proc", entry, "stat").read_text()
            fields = stat[stat.rindex(")") + 2:].split()
            if fields[0] != "Z" and cmd:
                found[int(entry)] = (int(fields[1]), cmd)
        except (OSError, ValueError):
            continue
    return found


def touching(directory):
    """pids whose command line, environment or open files name the run's directory: what a run must not leave behind."""
    directory = str(directory)
    found = {}
    for pid, (_, cmd) in processes().items():
        if pid == os.getpid():
            continue
        if directory in cmd:
            found[pid] = cmd
            continue
        try:
            if any(directory in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")):
                found[pid] = cmd
        except OSError:
            continue
    return found


def sockets_in(directory):
    return [str(p) for p in pathlib.Path(directory).rglob("*") if p.is_socket()]


def run(command, timeout=120, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, **kwargs)
