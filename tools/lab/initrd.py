#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes an initramfs (cpio "newc", not compressed) from files named on the command line.

usage: initrd.py OUT SRC:DEST[:MODE] ...     a missing SRC is an error; DEST ending in "/" keeps the name of SRC;
                                             an empty SRC makes a folder; SRC "->TARGET" makes a symbolic link
"""
import os
import stat
import sys


class Cpio:
    def __init__(self, out):
        self.out = out
        self.inode = 0
        self.dirs = set()

    def entry(self, name, mode, data=b"", device=(0, 0)):
        self.inode += 1
        name_bytes = name.encode() + b"\0"
        fields = [self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, device[0], device[1], len(name_bytes), 0]
        header = b"070701" + b"".join(b"%08x" % f for f in fields)
        self.out.write(header + name_bytes)
        self.out.write(b"\0" * (-(len(header) + len(name_bytes)) % 4))
        self.out.write(data + b"\0" * (-len(data) % 4))

    def folder(self, name):
        name = name.strip("/")
        if not name or name in self.dirs:
            return
        self.folder(os.path.dirname(name))
        self.dirs.add(name)
        self.entry(name, stat.S_IFDIR | 0o755)

    def add(self, spec):
        source, dest, mode = (spec.split(":") + ["", ""])[:3]
        if not source:
            self.folder(dest)
            return
        if dest.endswith("/"):
            dest += os.path.basename(source)
        dest = dest.strip("/")
        self.folder(os.path.dirname(dest))
        if source.startswith("->"):
            self.entry(dest, stat.S_IFLNK | 0o777, source[2:].encode())
            return
        with open(source, "rb") as f:
            data = f.read()
        permissions = int(mode, 8) if mode else os.stat(source).st_mode & 0o777
        self.entry(dest, stat.S_IFREG | permissions, data)


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], "wb") as out:
            cpio = Cpio(out)
            for folder in ("dev", "proc", "sys", "tmp", "bin"):
                cpio.folder(folder)
            cpio.entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
            for spec in sys.argv[2:]:
                cpio.add(spec)
            cpio.entry("TRAILER!!!", 0)
    except OSError as e:
        print(f"initrd: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
