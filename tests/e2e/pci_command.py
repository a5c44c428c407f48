#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
# kangzao pci from outside: what it prints, how it ends, and what it says to input that is wrong.
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

DUMPS = pathlib.Path(__file__).resolve().parent.parent / "data" / "pci-dumps"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    kangzao = os.path.join(parser.parse_args().bin, "kangzao")
    failed = []

    def pci(*words):
        return subprocess.run([kangzao, "pci", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)

    def expect(what, ok, detail=""):
        print("ok  " if ok else "FAIL", what, detail if not ok else "")
        if not ok:
            failed.append(what)

    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        for dump in sorted(DUMPS.glob("*.txt")):
            first = pci("dump", dump)
            copy = tmp / dump.name
            copy.write_text(first.stdout)
            again = pci("diff", dump, copy)
            expect(f"dump of {dump.name} reads back the same", first.returncode == 0 and again.returncode == 0
                   and again.stdout == "0 differences\n", again.stdout + again.stderr)

        gpu = DUMPS / "amd-fiji-gpu.txt"
        text = gpu.read_text()
        # PCI Express at 58: Device Control (60) has its payload in bits 5 to 7; Device Status (62) is the device's own.
        row = next(line for line in text.splitlines() if line.startswith("60: "))
        cells = row.split()
        changed = cells.copy()
        changed[1] = f"{int(cells[1], 16) ^ 0x20:02x}"
        (tmp / "payload.txt").write_text(text.replace(row, " ".join(changed)))
        r = pci("diff", gpu, tmp / "payload.txt")
        expect("a changed payload is named", r.returncode == 1 and "Device Control: Max Payload Size: 256 bytes -> 128 bytes" in r.stdout, r.stdout)
        changed = cells.copy()
        changed[3] = f"{int(cells[3], 16) ^ 0x01:02x}"
        (tmp / "status.txt").write_text(text.replace(row, " ".join(changed)))
        r = pci("diff", gpu, tmp / "status.txt")
        expect("a status bit is no difference", r.returncode == 0 and "changes by itself" in r.stdout, r.stdout)
        r = pci("diff", "--json", gpu, tmp / "payload.txt")
        changes = json.loads(r.stdout)["changes"]
        expect("the same as JSON", [c["field"] for c in changes] == ["Max Payload Size"] and changes[0]["offset"] == 0x60, r.stdout)

        r = pci("check", DUMPS / "nvidia-ga102-gpu-lost.txt")
        expect("a lost function fails the check", r.returncode == 1 and "all ones" in r.stdout, r.stdout)
        r = pci("check", "--json", gpu)
        expect("a sound one passes", r.returncode == 0 and json.loads(r.stdout)["broken"] == 0, r.stdout)
        r = pci("show", f"dump:{DUMPS / 'virtio-guests.txt'}")
        expect("every function of a dump is shown", r.returncode == 0 and r.stdout.count("Header, type 0") == 2, r.stdout)
        bdf = json.loads(pci("show", "--json", DUMPS / "virtio-guests.txt").stdout)["functions"][1]["bdf"]
        one = json.loads(pci("show", "--json", f"dump:{DUMPS / 'virtio-guests.txt'},bdf={bdf}").stdout)["functions"]
        expect("one function can be named", [f["bdf"] for f in one] == [bdf])
        paths = json.loads(pci("show", "--json", DUMPS / "intel-haswell-root-port-connectx3.txt").stdout)["functions"]
        expect("a function has the port above it", any(f["above"] for f in paths), str([f["above"] for f in paths]))

        (tmp / "empty.txt").write_text("")
        (tmp / "binary.txt").write_bytes(bytes(range(256)) * 20)
        for words, code, says in [
                ((), 2, "subcommand"), (("show", "/nowhere/x.txt"), 125, "nowhere"), (("show", tmp), 4, ""), (("show", tmp / "empty.txt"), 4, "empty.txt"),
                (("show", tmp / "binary.txt"), 4, "binary.txt"), (("show", "zz:00.0"), 2, "zz"), (("show", "ff:1f.7"), 2, "no such"),
                (("show", f"dump:{gpu},bdf=44:00.0"), 2, "no such"), (("diff", gpu), 2, ""), (("diff", gpu, gpu, gpu), 2, ""),
                (("check", "--no-such"), 2, "no-such")]:
            r = pci(*words)
            said = r.stdout + r.stderr
            expect(f"pci {' '.join(map(str, words))}: exit {code}", r.returncode == code and says in said and len(said) < 4000,
                   f"exit {r.returncode}: {said}")
        full = subprocess.run(f"{kangzao} pci show {gpu} > /dev/full", shell=True, stderr=subprocess.PIPE, text=True, timeout=60)
        expect("a full disk is said", full.returncode == 4 and "rite" in full.stderr, full.stderr)
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
