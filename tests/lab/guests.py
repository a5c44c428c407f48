#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a real kernel sees of the software TPU below a root port, and what it does when its link, power or device goes wrong.

Each check drives a running guest and judges by the guest's kernel log, sysfs and the driver's own tests.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
from guest import Guest, GuestError, TPU, host_can  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SYS = f"/sys/bus/pci/devices/{TPU}"
SMALL = "basic.copy"  # the driver's own test that stands for "it works": DMA both ways, with an interrupt


def tool(name):
    path = shutil.which(name) or f"/usr/bin/{name}"
    return ["--add", f"{path}:usr/bin/{name}"]


def reports_in(text):
    """What the kernel says of itself."""
    return re.findall(r"^.*(?:BUG[ :]|Oops|WARNING: |kernel BUG|refcount_t|Kernel panic|soft lockup|detected stalls|self-detected stall"
                      r"|: nobody cared| \[#\d).*$", text, re.M)


def last_look(g, checks):
    """After its checks: both logs, and a guest that still answers, where none of them ended it."""
    problems = reports_in(g.log()) + reports_in((g.boot / "serial.log").read_text(errors="replace"))
    if power_cut not in checks:
        try:
            g.sh("true", 30)
        except (GuestError, OSError) as e:
            problems.append(f"the guest is dead: {e}")
    return problems


def works(g):
    g.sh(f"kz-selftest {SMALL}", 60)


def is_live(g):
    g.wait("cat /sys/class/kz/kz0/state", "live")
    works(g)


def port(g):
    return g.sh(f"basename $(readlink -f {SYS}/..)")


def same(a, b, what):
    assert a == b, f"{what} is {a!r}, wanted {b!r}"


# ---- one guest, MSI-X

def driver_loads(g):
    mark = g.mark()
    g.sh("insmod /lab/kz_accel.ko")
    g.wait_log(mark, rf"kz_accel {TPU}: kz0: firmware .* MiB HBM")
    is_live(g)


def lspci_shows_the_device(g):
    text = g.sh(f"lspci -vvvnn -s {TPU}")
    for wanted in (r"\[1200\].*1234:4b5a|1234:4b5a", r"Power Management", r"MSI-X: Enable\+", r"Express .*Endpoint",
                   r"FLReset\+", r"LnkSta:.*Speed 32GT/s.*Width x16", r"Advanced Error Reporting", r"Device Serial Number",
                   r"Region 0: Memory", r"Region 2: Memory", r"Region 4: Memory .*64-bit, prefetchable.*size=1G"):
        assert re.search(wanted, text), f"lspci lacks {wanted!r}:\n{text}"


def interrupts_come_with_dma(g):
    def count():
        """Interrupts of all its vectors on both processors: "  24:    3    0   PCI-MSI 1048576-edge    kz0-0"."""
        rows = [line.split() for line in g.read("/proc/interrupts").splitlines() if re.search(r"kz", line)]
        return sum(int(r[1]) + int(r[2]) for r in rows), len(rows)
    before, vectors = count()
    g.sh("kz-selftest basic", 120)
    assert count()[0] > before and vectors >= 8, (before, count())


def correctable_error_is_counted(g):
    def counted():
        return int(re.search(r"TOTAL_ERR_COR (\d+)|RxErr (\d+)", g.read(f"{SYS}/../aer_dev_correctable")).group(2) or 0)
    before, mark = counted(), g.mark()
    g.device("error", "RCVR")
    g.wait_log(mark, r"pcieport .*AER:.*[Cc]orrect")
    g.wait(f"cat {SYS}/../aer_dev_correctable", rf"RxErr {before + 1}\b")
    works(g)


def nonfatal_error_costs_nothing(g):
    mark = g.mark()
    g.device("error", "COMP_TIME")
    g.wait_log(mark, r"AER:.*(Non-Fatal|non-fatal|Uncorrect)", r"non-fatal bus error", r"device recovery successful")
    is_live(g)


def fatal_error_resets_the_link(g):
    for kind in ("DLP", "SDN"):
        mark = g.mark()
        g.device("error", kind)
        text = g.wait_log(mark, r"AER:.*[Ff]atal", r"fatal bus error, waiting", r"recovered from a bus error", r"device recovery successful")
        if kind == "SDN":
            assert "SDES" in text, text
        is_live(g)


def storm_of_correctable_errors_is_survived(g):
    def counted():
        return int(re.search(r"RxErr (\d+)", g.read(f"{SYS}/../aer_dev_correctable")).group(1))
    before = counted()
    storm(g.info["control"], 1000)
    # Errors that arrive before the first was served coalesce in the port's status.
    g.wait("sleep 1; echo", "")
    after = counted()
    assert before + 100 <= after <= before + 1000, (before, after)
    works(g)


def storm(monitor, n):
    """n correctable errors at the root port, as fast as QEMU's monitor takes them."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30)
        s.connect(monitor)
        lines = s.makefile("rw")
        lines.readline()
        line = {"execute": "human-monitor-command", "arguments": {"command-line": "pcie_aer_inject_error rp0 RCVR"}}
        for request in [{"execute": "qmp_capabilities"}] + [line] * n:
            lines.write(json.dumps(request) + "\n")
            lines.flush()
            while '"event"' in lines.readline():
                pass


def injected_by_the_guest(g):
    g.sh("modprobe aer_inject")
    # struct aer_error_inj: bus, devfn, pad..., then uncorrectable and correctable status, four header words, domain.
    def inject(cor, uncor):
        words = [uncor, cor, 0, 1, 2, 3, 0]
        data = bytes([1, 0, 0, 0]) + b"".join(w.to_bytes(4, "little") for w in words)
        text = "".join(f"\\{b:03o}" for b in data)
        g.sh(f"printf '{text}' >/tmp/err && dd if=/tmp/err of=/dev/aer_inject bs=32 count=1 2>/dev/null")
    before = int(re.search(r"TOTAL_ERR_COR (\d+)", g.read(f"{SYS}/aer_dev_correctable")).group(1))
    mark = g.mark()
    inject(0x40, 0)  # bad TLP
    g.wait_log(mark, rf"{TPU}.*BadTLP|BadTLP")
    g.wait(f"cat {SYS}/aer_dev_correctable", rf"TOTAL_ERR_COR {before + 1}\b")
    mark = g.mark()
    inject(0, 0x4000)  # completion timeout: non-fatal
    g.wait_log(mark, r"non-fatal bus error", r"device recovery successful")
    mark = g.mark()
    inject(0, 0x40000)  # malformed TLP: fatal
    g.wait_log(mark, r"fatal bus error, waiting", r"recovered from a bus error", r"device recovery successful", limit=60)
    is_live(g)


def function_reset(g):
    same("flr" in g.read(f"{SYS}/reset_method"), True, "flr among the reset methods")
    resets, mark = int(g.read("/sys/class/kz/kz0/reset_count")), g.mark()
    g.sh(f"echo flr >{SYS}/reset_method && echo 1 >{SYS}/reset")
    g.wait_log(mark, r"function reset, ready again")
    assert int(g.read("/sys/class/kz/kz0/reset_count")) > resets
    is_live(g)


def bus_reset(g):
    mark = g.mark()
    g.sh(f"echo bus >{SYS}/reset_method && echo 1 >{SYS}/reset")
    g.wait_log(mark, r"function reset, ready again")
    g.sh(f"echo default >{SYS}/reset_method", check=False)
    is_live(g)


def raw_secondary_bus_reset(g):
    p = port(g)
    g.sh(f"rmmod kz_accel; setpci -s {p} BRIDGE_CONTROL=40:40; sleep 0.1; setpci -s {p} BRIDGE_CONTROL=0:40; sleep 1")
    same(g.sh(f"setpci -s {TPU} COMMAND").strip("0 \n"), "", "Command after a raw bus reset")
    same(g.sh(f"setpci -s {TPU} BASE_ADDRESS_0").rstrip("\n")[:5], "00000", "BAR0 after a raw bus reset")
    g.sh(f"echo 1 >{SYS}/remove; echo 1 >/sys/bus/pci/rescan; sleep 1; insmod /lab/kz_accel.ko")
    is_live(g)


def d3hot_and_back(g):
    g.sh(f"echo 100 >{SYS}/power/autosuspend_delay_ms; echo auto >{SYS}/power/control")
    g.wait(f"cat {SYS}/power/runtime_status", "suspended")
    state = g.sh(f"cat {SYS}/power_state")
    assert state in ("D3hot", "D3cold"), state
    works(g)  # opening it wakes it
    g.sh(f"echo on >{SYS}/power/control")
    same(g.read(f"{SYS}/power_state"), "D0", "power state")
    is_live(g)


def degraded_link_is_seen(g):
    def link():
        return g.read(f"{SYS}/current_link_width"), g.read(f"{SYS}/current_link_speed").split(" ")[0]
    try:
        g.device("link", "4", "1")
        same(link(), ("4", "2.5"), "degraded link")
    finally:
        g.device("link", "16", "5")
    same(link(), ("16", "32.0"), "link")


def device_loss_and_return(g):
    g.device("gone")
    try:
        same(g.sh(f"setpci -s {TPU} VENDOR_ID"), "ffff", "vendor of a lost device")
        assert g.status(f"kz-selftest {SMALL}", 120) != 0, "the driver's test passed without a device"
    finally:
        g.device("back")
    same(g.sh(f"setpci -s {TPU} VENDOR_ID"), "1234", "vendor of the device that is back")
    g.sh(f"echo 1 >{SYS}/remove; echo 1 >/sys/bus/pci/rescan; sleep 1", 120)
    is_live(g)


def growth(before, middle, after):
    """Caches that grew by nearly one object a round in both halves."""
    return {k: (before[k], middle[k], after[k]) for k in before
            if middle.get(k, 0) - before[k] >= 90 and after.get(k, 0) - middle.get(k, 0) >= 90}


def load_and_unload_leaks_nothing(g):
    def slabs():
        g.sh("echo 3 >/proc/sys/vm/drop_caches")
        rows = [line.split() for line in g.read("/proc/slabinfo").splitlines()[2:]]
        return {r[0]: int(r[1]) for r in rows}

    def fds():
        return len(os.listdir(f"/proc/{g.info['softtpu']['pid']}/fd")), len(os.listdir(f"/proc/{g.info['pid']}/fd"))

    def rounds(n):
        g.sh(f"for i in $(seq {n}); do rmmod kz_accel && insmod /lab/kz_accel.ko || exit 1; done", 600)
    rounds(20)
    samples, descriptors = [slabs()], fds()
    for _ in range(2):
        rounds(140)
        samples.append(slabs())
    grown = growth(*samples)
    assert not grown, f"slab caches grow with each load: {grown}"
    left = fds()
    for after, before in zip(left, descriptors):  # a connection of ours may come or go
        assert after <= before + 3, f"descriptors of softtpu and QEMU: {left}, before {descriptors}"
    is_live(g)


def driver_sleeps_and_wakes(g):
    # Of the run nothing may lie on 9p, which does not come back from a sleep. The suite's programs are in the guest's memory.
    g.sh("kangzao run --device dev:/dev/kz0 --filter kmod.power.system_sleep --destructive --retries 0 "
         "--module /lab/kz_accel.ko --output /tmp/sleep --json >/tmp/sleep.json 2>/tmp/sleep.err", 180, check=False)
    said = json.loads(g.sh("cat /tmp/sleep.json"))
    same([(r["id"], r["verdict"]) for r in said["results"]], [("kmod.power.system_sleep", "pass")], said["results"])
    is_live(g)


def suspend_to_ram(g):
    g.sh("(sleep 1; echo mem >/sys/power/state) >/dev/null 2>&1 &")
    end = time.monotonic() + 60
    while "suspended" not in g.device("monitor", "info status"):
        if time.monotonic() > end:
            raise GuestError("the guest did not suspend")
        time.sleep(0.3)
    g.device("monitor", "system_wakeup")
    # virtio-9p does not come back after a sleep: from here on nothing of /host, and the log over the serial line.
    g.wait("dmesg | tail -n 60", r"PM: suspend exit", 60)
    is_live(g)
    same(reports_in(g.sh("dmesg")), [], "the kernel's reports after a sleep")


MAIN = [driver_loads, lspci_shows_the_device, interrupts_come_with_dma, correctable_error_is_counted, nonfatal_error_costs_nothing,
        fatal_error_resets_the_link, storm_of_correctable_errors_is_survived, injected_by_the_guest, function_reset, bus_reset,
        raw_secondary_bus_reset, d3hot_and_back, degraded_link_is_seen, device_loss_and_return, load_and_unload_leaks_nothing,
        suspend_to_ram]


# ---- one guest, MSI, which QEMU can take out and put in

def unplug_and_plug_in(g):
    g.sh("insmod /lab/kz_accel.ko")
    for _ in range(3):
        is_live(g)
        g.device("unplug")
        g.wait(f"ls {SYS} >/dev/null 2>&1 && echo there || echo gone", "gone", 40)
        assert g.status("test -e /dev/kz0") != 0, "/dev/kz0 is there without its device"
        g.device("plug-in")
        g.wait(f"ls {SYS} >/dev/null 2>&1 && echo there || echo gone", "there", 40)
        g.wait("test -e /dev/kz0 && echo node", "node")
    is_live(g)


def surprise_removal(g):
    mark = g.mark()
    g.sh("sleep 1000 0<>/dev/kz0 >/dev/null 2>&1 &")  # somebody has it open
    g.device("pull-out")
    g.wait_log(mark, r"pciehp: Slot\([^)]*\): (Card not present|Link Down)", limit=60)
    g.wait(f"ls {SYS} >/dev/null 2>&1 && echo there || echo gone", "gone", 40)
    assert not re.search(r"BUG:|Oops|WARNING: ", g.log(mark)), g.log(mark)
    g.device("plug-in")
    g.wait(f"ls {SYS} >/dev/null 2>&1 && echo there || echo gone", "there", 60)
    g.sh("killall sleep", check=False)
    node = g.wait("ls /dev/kz* 2>/dev/null", "kz")
    g.sh(f"KZ_NODE={node.split()[-1]} kz-selftest {SMALL}")


# A guest sleeps once: what waits for 9p afterwards cannot be frozen.
MSI = [unplug_and_plug_in, surprise_removal, driver_sleeps_and_wakes]


# ---- one guest with a virtual IOMMU

def driver_works_behind_an_iommu(g):
    assert g.sh(f"ls {SYS}/iommu_group/devices"), "the device is in no IOMMU group"
    mark = g.mark()
    g.sh("insmod /lab/kz_accel.ko && kz-selftest basic", 240)
    assert "DMAR: [DMA" not in g.log(mark), g.log(mark)
    assert int(g.softtpu({"cmd": "status"})["dma_windows"]) > 1


def dma_to_no_mapping_is_refused(g):
    got = g.softtpu({"cmd": "inject", "fault": {"row": "D04", "params": {"pages": 4}}})
    try:
        code = g.status(f"kz-selftest {SMALL}", 120)
        assert code != 0, "data went four pages off and the test passed"
    finally:
        g.softtpu({"cmd": "clear", "id": got["id"]})
    is_live(g)


def vfio_in_the_guest(g):
    g.sh("rmmod kz_accel; modprobe vfio-pci; modprobe vfio_iommu_type1")
    g.sh(f"echo vfio-pci >{SYS}/driver_override; echo {TPU} >/sys/bus/pci/drivers_probe")
    group = g.sh(f"basename $(readlink {SYS}/iommu_group)")
    g.wait(f"ls /dev/vfio/{group}", group)
    before = int(g.softtpu({"cmd": "status"})["dma_windows"])
    text = g.sh(f"vfio-probe {group} {TPU} {16 << 20}", 180)
    assert re.search(r"magic 0x[0-9a-f]+ ok", text) and "reset ok" in text, text
    windows = int(re.search(r"mapped (\d+)", text).group(1))
    same(windows, 16 << 20, "bytes mapped")
    end = time.monotonic() + 30
    while (now := int(g.softtpu({"cmd": "status"})["dma_windows"])) > before and time.monotonic() < end:
        time.sleep(0.5)
    assert now <= before, f"{now} DMA windows after everything was unmapped, {before} before"


IOMMU = [driver_works_behind_an_iommu, dma_to_no_mapping_is_refused, vfio_in_the_guest]


# ---- one guest whose memory the device cannot map: every transfer is a message

def dma_by_messages(g):
    g.sh("insmod /lab/kz_accel.ko && kz-selftest basic", 240)
    is_live(g)


def power_cut(g):
    g.sh("sync")
    g.device("cut-power")
    g.process.wait(30)
    assert "power" not in (g.boot / "qemu.log").read_text().lower()


PRIVATE = [dma_by_messages, power_cut]


# ---- and with a virtual IOMMU in front of it: what it must not touch is refused there, and said

def stray_dma_is_logged(g):
    g.sh("insmod /lab/kz_accel.ko && kz-selftest basic", 240)
    is_live(g)
    g.sh(f"rmmod kz_accel; setpci -s {TPU} COMMAND=6:6")
    mark = g.mark()
    text = g.sh(f"stray-dma {TPU} 0x12340000")
    assert re.search(r"STATE 0x\w*2\b", text), f"the queue went on: {text}"
    g.wait_log(mark, rf"DMAR: \[DMA Read.*\[{TPU[5:]}\].*fault addr 0x123[4-6]0000")
    g.sh("insmod /lab/kz_accel.ko")
    is_live(g)


STRICT = [stray_dma_is_logged]


def build(tmp, name):
    program = pathlib.Path(tmp) / name
    source = HERE / (name.replace("-", "_") + ".c")
    subprocess.run([os.environ.get("CC", "gcc"), "-O1", "-Wall", "-Werror", "-static", "-o", str(program), str(source)], check=True)
    return ["--add", f"{program}:bin/{name}"]


def guests(tmp):
    pci = [*tool("setpci"), *tool("lspci")]
    yield "msix", ["--with", "aer_inject", *pci], MAIN
    yield "msi", ["--tpu", "irq=msi", *pci], MSI
    yield "iommu", ["--iommu", "--with", "vfio-pci", "--with", "vfio_iommu_type1", *build(tmp, "vfio-probe"), *pci], IOMMU
    yield "messages", ["--private-memory", *pci], PRIVATE
    yield "iommu-messages", ["--private-memory", "--iommu", "--tpu", "unmapped=ask", *build(tmp, "stray-dma"), *pci], STRICT


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--kernel", default="stable-1", help="role of the kernel")
    parser.add_argument("--only", help="regular expression: checks to run (the driver is loaded all the same)")
    parser.add_argument("--keep", help="folder for what failed guests left")
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    why = host_can(binary)
    if why:
        print(f"guests: this host cannot: {why}")
        sys.exit(125)
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory(prefix="kz-guests-") as tmp:
        for kind, options, checks in guests(tmp):
            wanted = [c for c in checks if not args.only or re.search(args.only, c.__name__)]
            if not wanted:
                continue
            if checks is MAIN and driver_loads not in wanted:
                wanted.insert(0, driver_loads)
            began = time.monotonic()
            with Guest(binary, args.kernel, f"{tmp}/{kind}", *options) as g:
                print(f"{kind}: {args.kernel} {g.info['release']}, up after {time.monotonic() - began:.1f} s", flush=True)
                for check in wanted:
                    begin = time.monotonic()
                    try:
                        check(g)
                        passed += 1
                        print(f"  ok   {check.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
                    except Exception as e:  # noqa: BLE001 every check is reported
                        failed += 1
                        print(f"  FAIL {check.__name__}: {type(e).__name__} {str(e)[:2500]}", flush=True)
                        if args.keep:
                            g.keep(pathlib.Path(args.keep, kind))
                        if g.process.poll() is not None:
                            print(f"  the guest is gone; {kind}: the rest is not run")
                            break
                if problems := last_look(g, wanted):
                    failed += 1
                    print(f"  FAIL at the end of {kind}: {problems[:5]}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
