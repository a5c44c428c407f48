# SPDX-License-Identifier: GPL-2.0-or-later
"""A lab guest for checks: commands over its second serial line, its kernel log, what the host does to its device."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time

TPU = "0000:01:00.0"


class GuestError(AssertionError):
    """The guest did not do what was asked."""


class Guest:
    def __init__(self, binary, role, directory, *options, boot_limit=150):
        self.kz, self.directory = f"{binary}/kangzao", pathlib.Path(directory)
        self.boot = self.directory / "boot-1"
        self.directory.mkdir(parents=True)
        self.words = 0
        with open(self.directory / "console.txt", "wb") as console:
            self.process = subprocess.Popen([self.kz, "lab", "shell", role, "--output", str(directory), *options],
                                            stdin=subprocess.PIPE, stdout=console, stderr=subprocess.STDOUT)
        self.agent = None
        try:
            self._reach(time.monotonic() + boot_limit)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        if self.agent:
            self.agent.close()
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _reach(self, end):
        """Until a shell answers on the second serial line."""
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise GuestError(f"the guest ended: {(self.directory / 'console.txt').read_text(errors='replace')[-600:]}")
            if (self.boot / "alive").exists():
                self.info = json.loads((self.boot / "guest.json").read_text())
                self.agent = socket.socket(socket.AF_UNIX)
                self.agent.connect(self.info["agent"])
                try:
                    self.sh("true", limit=20)
                    return
                except GuestError:
                    self.agent.close()  # the shell there was not ready yet
                    self.agent = None
            time.sleep(0.1)
        raise GuestError("the guest did not reach user space in time")

    def sh(self, command, limit=60, check=True):
        """Output of a command in the guest; GuestError for another exit status than 0, or no end in time."""
        self.words += 1
        mark = f"kz-mark-{self.words}"
        self.agent.sendall(f"( {command}\n) 2>&1; echo {mark[:7]}''{mark[7:]} $?\n".encode())
        got, end = b"", time.monotonic() + limit
        while True:
            found = re.search(rb"%s (\d+)\r?\n" % mark.encode(), got)
            if found:
                break
            self.agent.settimeout(max(0.01, end - time.monotonic()))
            try:
                piece = self.agent.recv(65536)
            except TimeoutError:
                raise GuestError(f"no end within {limit} s: {command!r}: {got[-300:]!r}") from None
            if not piece:
                raise GuestError(f"the guest went away during {command!r}")
            got += piece
        text = got[:found.start()].decode(errors="replace").replace("\r\n", "\n").strip()
        if check and found[1] != b"0":
            raise GuestError(f"exit {found[1].decode()}: {command!r}: {text[-600:]}")
        return text

    def status(self, command, limit=60):
        return int(self.sh(f"{command}; echo; echo status $?", limit, check=False).rsplit(" ", 1)[1])

    def read(self, path):
        return self.sh(f"cat {path}")

    def device(self, *words):
        done = subprocess.run([self.kz, "lab", "device", str(self.boot), *words], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise GuestError(f"lab device {words}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    def softtpu(self, request):
        return json.loads(self.device("control", json.dumps(request)))

    def mark(self):
        """A place in the kernel log; give it to log() or wait_log()."""
        return (self.boot / "kernel.log").stat().st_size

    def log(self, mark=0):
        with open(self.boot / "kernel.log", "rb") as f:
            f.seek(mark)
            lines = f.read().decode(errors="replace").splitlines()
        return "\n".join(line.split(";", 1)[1] for line in lines if ";" in line and line[0] != " ")

    def wait_log(self, mark, *patterns, limit=30):
        """Each pattern, in this order; returns the text since `mark`."""
        end = time.monotonic() + limit
        while True:
            text, at = self.log(mark), 0
            for p in patterns:
                found = re.compile(p).search(text, at)
                if not found:
                    break
                at = found.end()
            else:
                return text
            if time.monotonic() > end:
                raise GuestError(f"the kernel log lacks {p!r} within {limit} s: ...{text[-1500:]}")
            time.sleep(0.1)

    def wait(self, command, wanted, limit=30):
        """Until the command's output matches."""
        end = time.monotonic() + limit
        while True:
            text = self.sh(command, check=False)
            if re.search(wanted, text):
                return text
            if time.monotonic() > end:
                raise GuestError(f"{command!r} gave {text!r}, wanted {wanted!r} within {limit} s")
            time.sleep(0.2)

    def keep(self, place):
        """Copies what may explain a failure."""
        shutil.copytree(self.boot, place, ignore=lambda d, names: [n for n in names if (pathlib.Path(d) / n).is_socket()],
                        dirs_exist_ok=True)


def host_can(binary):
    """Empty, or why this host can have no guests."""
    if os.geteuid() != 0:
        return "no root"
    listed = subprocess.run([f"{binary}/kangzao", "lab", "list"], capture_output=True, text=True, timeout=60)
    return "" if listed.returncode == 0 else listed.stderr.strip()
