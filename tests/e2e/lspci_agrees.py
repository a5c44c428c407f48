#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
# The same bytes decoded twice: by `kangzao pci show` and by lspci of pciutils, compared field by field over every dump of real
# devices. A flag of lspci's that has no field here fails too, so that nothing is left out unseen.
import argparse
import glob
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DUMPS = os.path.join(HERE, "..", "data", "pci-dumps")


class Group:
    """One named line of lspci's with its continuation lines."""

    def __init__(self, register, flags=None, texts=(), numbers=(), ignore=()):
        self.register = register  # register's name, or {field: register} through "register/field" in the tables
        self.flags = flags or {}  # lspci's token before + or - -> field
        self.texts = texts        # (regular expression, field, text made of the match)
        self.numbers = numbers    # (regular expression, field, base)
        self.ignore = set(ignore)


def same(m):
    return m.group(1)


def speed(m):
    return {"unknown": "none"}.get(m.group(1), m.group(1).replace("GT/s", " GT/s"))


def latency(m):
    return re.sub(r"([<>])(\d+)(ns|us)", r"\1 \2 \3", m.group(1))


def acceptable(m):
    return "no limit" if m.group(1) == "unlimited" else re.sub(r"<(\d+)(ns|us)", r"\1 \2", m.group(1))


def timeout_range(m):
    names = {"Not Supported": "none", "Range A": "A", "Range B": "B", "Range AB": "A and B", "Range BC": "B and C",
             "Range ABC": "A, B and C", "Range BCD": "B, C and D", "Range ABCD": "A, B, C and D"}
    return names.get(m.group(1), m.group(1))


def timeout_value(m):
    return re.sub(r"(\d)(us|ms|s)\b", r"\1 \2", m.group(1))


UNCORRECTABLE = {"DLP": "Data Link Protocol Error", "SDES": "Surprise Down Error", "TLP": "Poisoned TLP Received",
                 "FCP": "Flow Control Protocol Error", "CmpltTO": "Completion Timeout", "CmpltAbrt": "Completer Abort",
                 "UnxCmplt": "Unexpected Completion", "RxOF": "Receiver Overflow", "MalfTLP": "Malformed TLP",
                 "ECRC": "ECRC Error", "UnsupReq": "Unsupported Request Error", "ACSViol": "ACS Violation",
                 "UncorrIntErr": "Uncorrectable Internal Error", "BlockedTLP": "MC Blocked TLP",
                 "AtomicOpBlocked": "AtomicOp Egress Blocked", "TLPBlockedErr": "TLP Prefix Blocked Error",
                 "PoisonTLPBlocked": "Poisoned TLP Egress Blocked", "DMWrReqBlocked": "DMWr Request Egress Blocked",
                 "IDECheck": "IDE Check Failed", "MisIDETLP": "Misrouted IDE TLP", "PCRC_CHECK": "PCRC Check Failed",
                 "TLPXlatBlocked": "TLP Translation Egress Blocked"}
CORRECTABLE = {"RxErr": "Receiver Error", "BadTLP": "Bad TLP", "BadDLLP": "Bad DLLP", "Rollover": "REPLAY_NUM Rollover",
               "Timeout": "Replay Timer Timeout", "AdvNonFatalErr": "Advisory Non-Fatal Error",
               "CorrIntErr": "Corrected Internal Error", "HeaderOF": "Header Log Overflow"}
PORT_ACS = {"SrcValid": "Source Validation", "TransBlk": "Translation Blocking", "ReqRedir": "P2P Request Redirect",
            "CmpltRedir": "P2P Completion Redirect", "UpstreamFwd": "Upstream Forwarding", "EgressCtrl": "P2P Egress Control",
            "DirectTrans": "Direct Translated P2P"}
SUBSTATES = {"PCI-PM_L1.2": "PCI-PM L1.2", "PCI-PM_L1.1": "PCI-PM L1.1", "ASPM_L1.2": "ASPM L1.2", "ASPM_L1.1": "ASPM L1.1"}

HEADER = {
    "Control:": Group("Command", {
        "I/O": "I/O Space Enable", "Mem": "Memory Space Enable", "BusMaster": "Bus Master Enable",
        "SpecCycle": "Special Cycle Enable", "MemWINV": "Memory Write and Invalidate", "VGASnoop": "VGA Palette Snoop",
        "ParErr": "Parity Error Response", "Stepping": "IDSEL Stepping", "SERR": "SERR# Enable",
        "FastB2B": "Fast Back-to-Back Enable", "DisINTx": "Interrupt Disable"}),
    "Status:": Group("Status", {
        "Cap": "Capabilities List", "66MHz": "66 MHz Capable", "UDF": "User Definable Features",
        "FastB2B": "Fast Back-to-Back Capable", "ParErr": "Master Data Parity Error", ">TAbort": "Signaled Target Abort",
        "<TAbort": "Received Target Abort", "<MAbort": "Received Master Abort", ">SERR": "Signaled System Error",
        "<PERR": "Detected Parity Error", "INTx": "Interrupt Status"},
        [(r"DEVSEL=(\w+)", "DEVSEL Timing", same)]),
    "Latency:": Group("Cache Line Size", {}, [(r"Cache Line Size: (\d+ bytes)", "Cache Line Size", same)]),
    "Interrupt:": Group("Interrupt Pin", {}, [(r"pin ([A-D])", "Pin", lambda m: "INT" + m.group(1))]),
    "Bus:": Group("Secondary Bus Number", {}, [], [(r"secondary=([0-9a-f]+)", "Bus", 16)]),
    "Secondary status:": Group("Secondary Status", {
        "66MHz": "66 MHz Capable", "FastB2B": "Fast Back-to-Back Capable", "ParErr": "Master Data Parity Error",
        ">TAbort": "Signaled Target Abort", "<TAbort": "Received Target Abort", "<MAbort": "Received Master Abort",
        "<SERR": "Received System Error", "<PERR": "Detected Parity Error"},
        [(r"DEVSEL=(\w+)", "DEVSEL Timing", same)]),
    "BridgeCtl:": Group("Bridge Control", {
        "Parity": "Parity Error Response Enable", "SERR": "SERR# Enable", "NoISA": "ISA Enable", "VGA": "VGA Enable",
        "VGA16": "VGA 16-bit Decode", "MAbort": "Master Abort Mode", ">Reset": "Secondary Bus Reset",
        "FastB2B": "Fast Back-to-Back Enable", "PriDiscTmr": "Primary Discard Timer", "SecDiscTmr": "Secondary Discard Timer",
        "DiscTmrStat": "Discard Timer Status", "DiscTmrSERREn": "Discard Timer SERR# Enable"}),
}

EXPRESS = {
    "DevCap:": Group("Device Capabilities", {
        "ExtTag": "Extended Tag Field Supported", "AttnBtn": "Attention Button Present",
        "AttnInd": "Attention Indicator Present", "PwrInd": "Power Indicator Present", "RBE": "Role-Based Error Reporting",
        "FLReset": "Function Level Reset Capability"},
        [(r"MaxPayload (\d+ bytes)", "Max Payload Size Supported", same),
         (r"Latency L0s (unlimited|<\w+)", "L0s Acceptable Latency", acceptable),
         (r"Latency L0s \S+, L1 (unlimited|<\w+)", "L1 Acceptable Latency", acceptable)],
        [(r"PhantFunc (\d+)", "Phantom Functions Supported", 10)], {"TEE-IO"}),
    "DevCtl:": Group("Device Control", {
        "CorrErr": "Correctable Error Reporting Enable", "NonFatalErr": "Non-Fatal Error Reporting Enable",
        "FatalErr": "Fatal Error Reporting Enable", "UnsupReq": "Unsupported Request Reporting Enable",
        "RlxdOrd": "Relaxed Ordering Enable", "ExtTag": "Extended Tag Field Enable", "PhantFunc": "Phantom Functions Enable",
        "AuxPwr": "Aux Power PM Enable", "NoSnoop": "No Snoop Enable", "FLReset": "Bridge Retry or Function Level Reset",
        "BrConfRtry": "Bridge Retry or Function Level Reset"},
        [(r"MaxPayload (\d+ bytes)", "Max Payload Size", same), (r"MaxReadReq (\d+ bytes)", "Max Read Request Size", same)]),
    "DevSta:": Group("Device Status", {
        "CorrErr": "Correctable Error Detected", "NonFatalErr": "Non-Fatal Error Detected", "FatalErr": "Fatal Error Detected",
        "UnsupReq": "Unsupported Request Detected", "AuxPwr": "Aux Power Detected", "TransPend": "Transactions Pending"}),
    "LnkCap:": Group("Link Capabilities", {
        "ClockPM": "Clock Power Management", "Surprise": "Surprise Down Error Reporting Capable",
        "LLActRep": "Data Link Layer Link Active Reporting Capable", "BwNot": "Link Bandwidth Notification Capability",
        "ASPMOptComp": "ASPM Optionality Compliance"},
        [(r"Speed (unknown|[\d.]+GT/s)", "Max Link Speed", speed), (r"Width (x\d+)", "Maximum Link Width", same),
         (r"ASPM (not supported|L0s L1|L0s|L1)", "ASPM Support",
          lambda m: {"not supported": "none", "L0s L1": "L0s and L1"}.get(m.group(1), m.group(1))),
         (r"Exit Latency L0s ([<>]\w+)", "L0s Exit Latency", latency),
         (r"Exit Latency (?:L0s \S+, )?L1 ([<>]\w+)", "L1 Exit Latency", latency)],
        [(r"Port #(\d+)", "Port Number", 10)]),
    "LnkCtl:": Group("Link Control", {
        "Disabled": "Link Disable", "CommClk": "Common Clock Configuration", "ExtSynch": "Extended Synch",
        "ClockPM": "Enable Clock Power Management", "AutWidDis": "Hardware Autonomous Width Disable",
        "BWInt": "Link Bandwidth Management Interrupt Enable", "AutBWInt": "Link Autonomous Bandwidth Interrupt Enable"},
        [(r"ASPM (Disabled|[^;]+ Enabled)", "ASPM Control",
          lambda m: {"Disabled": "none", "L0s Enabled": "L0s", "L1 Enabled": "L1", "L0s L1 Enabled": "L0s and L1"}[m.group(1)]),
         (r"RCB (\d+ bytes)", "Read Completion Boundary", same)], (), {"FltModeDis"}),
    "LnkSta:": Group("Link Status", {
        "Train": "Link Training", "SlotClk": "Slot Clock Configuration", "DLActive": "Data Link Layer Link Active",
        "BWMgmt": "Link Bandwidth Management Status", "ABWMgmt": "Link Autonomous Bandwidth Status"},
        [(r"Speed (unknown|[\d.]+GT/s)", "Current Link Speed", speed), (r"Width (x\d+)", "Negotiated Link Width", same)], (),
        {"TrErr"}),  # bit 10, undefined since PCIe 1.1
    "SltCap:": Group("Slot Capabilities", {
        "AttnBtn": "Attention Button Present", "PwrCtrl": "Power Controller Present", "MRL": "MRL Sensor Present",
        "AttnInd": "Attention Indicator Present", "PwrInd": "Power Indicator Present", "HotPlug": "Hot-Plug Capable",
        "Surprise": "Hot-Plug Surprise", "Interlock": "Electromechanical Interlock Present",
        "NoCompl": "No Command Completed Support"}, (), [(r"Slot #(\d+)", "Physical Slot Number", 10)]),
    "SltCtl:": Group("Slot Control", {
        "AttnBtn": "Attention Button Pressed Enable", "PwrFlt": "Power Fault Detected Enable",
        "MRL": "MRL Sensor Changed Enable", "PresDet": "Presence Detect Changed Enable",
        "CmdCplt": "Command Completed Interrupt Enable", "HPIrq": "Hot-Plug Interrupt Enable",
        "LinkChg": "Data Link Layer State Changed Enable", "Power": "Power Controller Control",
        "Interlock": "Electromechanical Interlock Control"},
        [(r"AttnInd (\w+)", "Attention Indicator Control", lambda m: {"Unknown": "reserved"}.get(m.group(1), m.group(1).lower())),
         (r"PwrInd (\w+)", "Power Indicator Control", lambda m: {"Unknown": "reserved"}.get(m.group(1), m.group(1).lower()))]),
    "SltSta:": Group("Slot Status", {
        "AttnBtn": "Attention Button Pressed", "PowerFlt": "Power Fault Detected", "MRL": "MRL Sensor State",
        "CmdCplt": "Command Completed", "PresDet": "Presence Detect State", "Interlock": "Electromechanical Interlock Status"}),
    "Changed:": Group("Slot Status", {
        "MRL": "MRL Sensor Changed", "PresDet": "Presence Detect Changed", "LinkState": "Data Link Layer State Changed"}),
    "RootCtl:": Group("Root Control", {
        "ErrCorrectable": "System Error on Correctable Error Enable", "ErrNon-Fatal": "System Error on Non-Fatal Error Enable",
        "ErrFatal": "System Error on Fatal Error Enable", "PMEIntEna": "PME Interrupt Enable",
        "CRSVisible": "CRS Software Visibility Enable"}),
    "RootCap:": Group("Root Capabilities", {"CRSVisible": "CRS Software Visibility"}),
    "RootSta:": Group("Root Status", {"PMEStatus": "PME Status", "PMEPending": "PME Pending"}, (),
                      [(r"ReqID ([0-9a-f]+)", "PME Requester ID", 16)]),
    "DevCap2:": Group("Device Capabilities 2", {
        "TimeoutDis": "Completion Timeout Disable Supported", "NROPrPrP": "No RO-enabled PR-PR Passing",
        "LTR": "LTR Mechanism Supported", "10BitTagComp": "10-Bit Tag Completer Supported",
        "10BitTagReq": "10-Bit Tag Requester Supported", "ExtFmt": "Extended Fmt Field Supported",
        "EETLPPrefix": "End-End TLP Prefix Supported",
        "EmergencyPowerReductionInit": "Emergency Power Reduction Initialization Required", "FRS": "FRS Supported",
        "ARIFwd": "ARI Forwarding Supported"},
        [(r"Completion Timeout: (Not Supported|Range [A-D]+)", "Completion Timeout Ranges", timeout_range),
         (r"OBFF (Not Supported|Via message/WAKE#|Via message|Via WAKE#)", "OBFF Supported",
          lambda m: {"Not Supported": "none", "Via message": "message", "Via WAKE#": "WAKE#",
                     "Via message/WAKE#": "WAKE# and message"}[m.group(1)]),
         (r"MaxEETLPPrefixes (\d)", "Max End-End TLP Prefixes", same)],
        (),
        # two bits of one field, compared as the field
        {"TPHComp", "ExtTPHComp"}),
    "AtomicOpsCap:": Group("Device Capabilities 2", {
        "Routing": "AtomicOp Routing Supported", "32bit": "32-bit AtomicOp Completer Supported",
        "64bit": "64-bit AtomicOp Completer Supported", "128bitCAS": "128-bit CAS Completer Supported"}),
    "DevCtl2:": Group("Device Control 2", {
        "TimeoutDis": "Completion Timeout Disable", "LTR": "LTR Mechanism Enable", "10BitTagReq": "10-Bit Tag Requester Enable",
        "ARIFwd": "ARI Forwarding Enable", "IDOReq": "IDO Request Enable", "IDOCompl": "IDO Completion Enable",
        "EmergencyPowerReductionReq": "Emergency Power Reduction Request"},
        [(r"Completion Timeout: ([^,]+),", "Completion Timeout Value", timeout_value),
         (r"OBFF (Disabled|Via message A|Via message B|Via WAKE#)", "OBFF Enable",
          lambda m: {"Disabled": "off", "Via message A": "message A", "Via message B": "message B", "Via WAKE#": "WAKE#"}[m.group(1)])]),
    "AtomicOpsCtl:": Group("Device Control 2", {"ReqEn": "AtomicOp Requester Enable", "EgressBlck": "AtomicOp Egress Blocking"}),
    "LnkCap2:": Group("Link Capabilities 2", {
        "Crosslink": "Crosslink Supported", "Retimer": "Retimer Presence Detect Supported",
        "2Retimers": "Two Retimers Presence Detect Supported", "DRS": "DRS Supported"},
        [(r"Supported Link Speeds: ([\d.]+)(?:-([\d.]+))?GT/s", "Supported Link Speeds",
          lambda m: ", ".join([s for s in ("2.5", "5", "8", "16", "32", "64")
                               if float(m.group(1)) <= float(s) <= float(m.group(2) or m.group(1))]) + " GT/s")]),
    "LnkCtl2:": Group("Link Control 2", {
        "EnterCompliance": "Enter Compliance", "SpeedDis": "Hardware Autonomous Speed Disable",
        "EnterModifiedCompliance": "Enter Modified Compliance", "ComplianceSOS": "Compliance SOS"},
        # lspci shows the reserved value 0 as the lowest speed
        [(r"Target Link Speed: (Unknown|unknown|[\d.]+GT/s)", "Target Link Speed",
          lambda m: {"2.5GT/s": ("2.5 GT/s", "none")}.get(m.group(1), speed(m) if "GT" in m.group(1) else None)),
         (r"Selectable De-emphasis: (\S+)dB", "Selectable De-emphasis", lambda m: m.group(1) + " dB")]),
    "LnkSta2:": Group("Link Status 2", {
        "EqualizationComplete": "Equalization 8 GT/s Complete", "EqualizationPhase1": "Equalization 8 GT/s Phase 1 Successful",
        "EqualizationPhase2": "Equalization 8 GT/s Phase 2 Successful",
        "EqualizationPhase3": "Equalization 8 GT/s Phase 3 Successful",
        "LinkEqualizationRequest": "Link Equalization Request 8 GT/s", "Retimer": "Retimer Presence Detected",
        "2Retimers": "Two Retimers Presence Detected", "DRS": "DRS Message Received"},
        [(r"Current De-emphasis Level: (\S+)dB", "Current De-emphasis Level", lambda m: m.group(1) + " dB"),
         (r"CrosslinkRes: (unsupported|Upstream Port|Downstream Port)", "Crosslink Resolution",
          lambda m: {"unsupported": "none"}.get(m.group(1), m.group(1).lower()))], (), {"FltMode"}),
}

STRUCTURES = {
    "PCI Power Management": {
        "": Group("Power Management Capabilities", {}, (), [(r"version (\d)", "Version", 10)]),
        "Flags:": Group("Power Management Capabilities", {
            "PMEClk": "PME Clock", "DSI": "Device Specific Initialization", "D1": "D1 Support", "D2": "D2 Support"},
            [(r"AuxCurrent=(\d+)mA", "Aux Current", lambda m: m.group(1) + " mA")]),
        "PME(": Group("Power Management Capabilities", {
            "D0": "PME from D0", "D1": "PME from D1", "D2": "PME from D2", "D3hot": "PME from D3hot", "D3cold": "PME from D3cold"}),
        "Status:": Group("Power Management Control/Status", {
            "NoSoftRst": "No Soft Reset", "PME-Enable": "PME Enable", "PME": "PME Status"},
            [(r"^\s*(D[0-3])", "Power State", lambda m: {"D3": "D3hot"}.get(m.group(1), m.group(1)))],
            [(r"DSel=(\d+)", "Data Select", 10), (r"DScale=(\d+)", "Data Scale", 10)]),
        "Bridge:": Group("Bridge Extensions", {"PM": "Bus Power/Clock Control Enable", "B3": "!B2/B3 Support"}),
    },
    "MSI": {
        "": Group("Message Control", {"Enable": "MSI Enable", "Maskable": "Per-Vector Masking Capable", "64bit": "64-bit Address Capable"},
                  [(r"Count=(\d+)/", "Multiple Message Enable", same), (r"Count=\d+/(\d+)", "Multiple Message Capable", same)]),
        "Address:": Group("Message Address", {}, (), [(r"^\s*([0-9a-f]+)", "Address", 16)]),
        "Masking:": Group("Mask Bits", {}, (), [(r"^\s*([0-9a-f]+)", "Mask", 16)]),
    },
    "MSI-X": {
        "": Group("Message Control", {"Enable": "MSI-X Enable", "Masked": "Function Mask"}, [(r"Count=(\d+)", "Table Size", same)]),
        "Vector table:": Group("Table", {}, (), [(r"BAR=(\d)", "BIR", 10)]),
        "PBA:": Group("Pending Bit Array", {}, (), [(r"BAR=(\d)", "BIR", 10)]),
    },
    "PCI Express": dict(EXPRESS, **{"": Group("PCI Express Capabilities", {"Slot": "Slot Implemented"}, (),
                                              [(r"\(v(\d)\)", "Capability Version", 10), (r"MSI ([0-9a-f]+)", "Interrupt Message Number", 16)])}),
    "Advanced Error Reporting": {
        "UESta:": Group("Uncorrectable Error Status", UNCORRECTABLE), "UEMsk:": Group("Uncorrectable Error Mask", UNCORRECTABLE),
        "UESvrt:": Group("Uncorrectable Error Severity", UNCORRECTABLE), "CESta:": Group("Correctable Error Status", CORRECTABLE),
        "CEMsk:": Group("Correctable Error Mask", CORRECTABLE),
        "AERCap:": Group("Advanced Error Capabilities and Control", {
            "ECRCGenCap": "ECRC Generation Capable", "ECRCGenEn": "ECRC Generation Enable", "ECRCChkCap": "ECRC Check Capable",
            "ECRCChkEn": "ECRC Check Enable", "MultHdrRecCap": "Multiple Header Recording Capable",
            "MultHdrRecEn": "Multiple Header Recording Enable", "TLPPfxPres": "TLP Prefix Log Present",
            "HdrLogCap": "Completion Timeout Prefix/Header Log Capable"}, (), [(r"First Error Pointer: ([0-9a-f]+)", "First Error Pointer", 16)]),
        "RootCmd:": Group("Root Error Command", {
            "CERptEn": "Correctable Error Reporting Enable", "NFERptEn": "Non-Fatal Error Reporting Enable",
            "FERptEn": "Fatal Error Reporting Enable"}),
        "RootSta:": Group("Root Error Status", {
            "CERcvd": "ERR_COR Received", "MultCERcvd": "Multiple ERR_COR Received", "UERcvd": "ERR_FATAL/NONFATAL Received",
            "MultUERcvd": "Multiple ERR_FATAL/NONFATAL Received", "FirstFatal": "First Uncorrectable Fatal",
            "NonFatalMsg": "Non-Fatal Error Messages Received", "FatalMsg": "Fatal Error Messages Received"}, (),
            [(r"IntMsg (\d+)", "Interrupt Message Number", 10)]),
        "ErrorSrc:": Group("Error Source Identification", {}, (), [(r"ERR_COR: ([0-9a-f]+)", "ERR_COR Source", 16),
                                                                  (r"ERR_FATAL/NONFATAL: ([0-9a-f]+)", "ERR_FATAL/NONFATAL Source", 16)]),
        "HeaderLog:": Group("Header Log 0", {}, (), [(r"^\s*([0-9a-f]+)", "Word", 16)]),
    },
    "Access Control Services": {
        "ACSCap:": Group("ACS Capability", PORT_ACS),
        "ACSCtl:": Group("ACS Control", {k: v + " Enable" for k, v in PORT_ACS.items()}),
    },
    "Alternative Routing-ID Interpretation": {
        "ARICap:": Group("ARI Capability", {"MFVC": "MFVC Function Groups Capability", "ACS": "ACS Function Groups Capability"}, (),
                         [(r"Next Function: (\d+)", "Next Function Number", 10)]),
        "ARICtl:": Group("ARI Control", {"MFVC": "MFVC Function Groups Enable", "ACS": "ACS Function Groups Enable"}, (),
                         [(r"Function Group: (\d+)", "Function Group", 10)]),
    },
    "Address Translation Services": {
        "ATSCap:": Group("ATS Capability", {}, (), [(r"Invalidate Queue Depth: ([0-9a-f]+)", "Invalidate Queue Depth", 16)]),
        "ATSCtl:": Group("ATS Control", {"Enable": "Enable"}, (), [(r"Smallest Translation Unit: ([0-9a-f]+)", "Smallest Translation Unit", 16)]),
    },
    "Process Address Space ID": {
        "PASIDCap:": Group("PASID Capability", {"Exec": "Execute Permission Supported", "Priv": "Privileged Mode Supported"}, (),
                           [(r"Max PASID Width: ([0-9a-f]+)", "Max PASID Width", 16)]),
        "PASIDCtl:": Group("PASID Control", {"Enable": "PASID Enable", "Exec": "Execute Permission Enable", "Priv": "Privileged Mode Enable"}),
    },
    "Page Request Interface": {
        "PRICtl:": Group("Page Request Control", {"Enable": "Enable", "Reset": "Reset"}),
        "PRISta:": Group("Page Request Status", {
            "RF": "Response Failure", "UPRGI": "Unexpected Page Request Group Index", "Stopped": "Stopped",
            "PASID": "PRG Response PASID Required"}),
        "Page Request Capacity:": Group("Outstanding Page Request Capacity", {}, (), [(r"^\s*([0-9a-f]+)", "Requests", 16)]),
    },
    "Single Root I/O Virtualization": {
        "IOVCap:": Group("SR-IOV Capabilities", {"Migration": "VF Migration Capable", "10BitTagReq": "VF 10-Bit Tag Requester Supported"}, (),
                         [(r"Interrupt Message Number: ([0-9a-f]+)", "VF Migration Interrupt Message Number", 16)], {"IntMsgNum"}),
        "IOVCtl:": Group("SR-IOV Control", {
            "Enable": "VF Enable", "Migration": "VF Migration Enable", "Interrupt": "VF Migration Interrupt Enable",
            "MSE": "VF Memory Space Enable", "ARIHierarchy": "ARI Capable Hierarchy", "10BitTagReq": "VF 10-Bit Tag Requester Enable"}),
        "IOVSta:": Group("SR-IOV Status", {"Migration": "VF Migration Status"}),
        "Initial VFs:": Group("InitialVFs", {}, (), [(r"^\s*(\d+)", "Number", 10)]),
        "Total VFs:": Group("TotalVFs", {}, (), [(r"^\s*(\d+)", "Number", 10)]),
        "Number of VFs:": Group("NumVFs", {}, (), [(r"^\s*(\d+)", "Number", 10)]),
        "VF offset:": Group("First VF Offset", {}, (), [(r"^\s*(\d+)", "Offset", 10)]),
        "stride:": Group("VF Stride", {}, (), [(r"^\s*(\d+)", "Stride", 10)]),
        "Device ID:": Group("VF Device ID", {}, (), [(r"^\s*([0-9a-f]+)", "Device ID", 16)]),
        "Supported Page Size:": Group("Supported Page Sizes", {}, (), [(r"^\s*([0-9a-f]+)", "Sizes", 16)]),
        "System Page Size:": Group("System Page Size", {}, (), [(r"^\s*([0-9a-f]+)", "Size", 16)]),
    },
    "Downstream Port Containment": {
        "DpcCap:": Group("DPC Capability", {
            "RPExt": "RP Extensions for DPC", "PoisonedTLP": "Poisoned TLP Egress Blocking Supported",
            "SwTrigger": "DPC Software Triggering Supported", "DL_ActiveErr": "DL_Active ERR_COR Signaling Supported"}, (),
            [(r"IntMsgNum (\d+)|INT Msg #(\d+)", "DPC Interrupt Message Number", 10), (r"RP PIO Log (\d+)", "RP PIO Log Size", 10)]),
        "DpcCtl:": Group("DPC Control", {
            "Cmpl": "DPC Completion Control", "INT": "DPC Interrupt Enable", "ErrCor": "DPC ERR_COR Enable",
            "PoisonedTLP": "Poisoned TLP Egress Blocking Enable", "SwTrigger": "DPC Software Trigger", "DL_ActiveErr": "DL_Active ERR_COR Enable"},
            (), [(r"Trigger:(\d)", "DPC Trigger Enable", 10)]),
        "DpcSta:": Group("DPC Status", {"Trigger": "DPC Trigger Status", "INT": "DPC Interrupt Status", "RPBusy": "DPC RP Busy"}, (),
                         [(r"Reason:(\d+)", "DPC Trigger Reason", 10), (r"TriggerExt:(\d+)", "DPC Trigger Reason Extension", 10),
                          (r"RP PIO ErrPtr:([0-9a-f]+)", "RP PIO First Error Pointer", 16)]),
        "Source:": Group("DPC Error Source ID", {}, (), [(r"^\s*([0-9a-f]+)", "Requester ID", 16)]),
    },
    "Latency Tolerance Reporting": {
        "Max snoop latency:": Group("Max Snoop Latency", {}, [(r"(\d+)ns", "Latency", lambda m: m.group(1) + " ns")]),
        "Max no snoop latency:": Group("Max No-Snoop Latency", {}, [(r"(\d+)ns", "Latency", lambda m: m.group(1) + " ns")]),
    },
    "L1 PM Substates": {
        "L1SubCap:": Group("L1 PM Substates Capabilities", dict({k: v + " Supported" for k, v in SUBSTATES.items()},
                                                               **{"L1_PM_Substates": "L1 PM Substates Supported"}), (),
                           [(r"PortCommonModeRestoreTime=(\d+)us", "Port Common_Mode_Restore_Time", 10)]),
        "L1SubCtl1:": Group("L1 PM Substates Control 1", {k: v + " Enable" for k, v in SUBSTATES.items()},
                            [(r"LTR1.2_Threshold=(\d+)ns", "LTR_L1.2_THRESHOLD", lambda m: m.group(1) + " ns")],
                            [(r"T_CommonMode=(\d+)us", "Common_Mode_Restore_Time", 10)]),
    },
    "Secondary PCI Express": {
        "LnkCtl3:": Group("Link Control 3", {"LnkEquIntrruptEn": "Link Equalization Request Interrupt Enable", "PerformEqu": "Perform Equalization"}),
    },
    "Multicast": {
        "McastCap:": Group("Multicast Capability", {"ECRCRegen": "ECRC Regeneration Supported"}, [(r"MaxGroups (\d+)", "MC_Max_Group", same)]),
        "McastCtl:": Group("Multicast Control", {"Enable": "MC_Enable"}, [(r"NumGroups (\d+)", "MC_Num_Group", same)]),
        "McastReceiveVec:": Group("MC_Receive", {}, (), [(r"([0-9a-f]+)", "Groups", 16)]),
        "McastBlockAllVec:": Group("MC_Block_All", {}, (), [(r"([0-9a-f]+)", "Groups", 16)]),
        "McastBlockUntransVec:": Group("MC_Block_Untranslated", {}, (), [(r"([0-9a-f]+)", "Groups", 16)]),
    },
    "Precision Time Measurement": {
        "PTMCap:": Group("PTM Capability", {"Requester": "PTM Requester Capable", "Responder": "PTM Responder Capable", "Root": "PTM Root Capable"}),
        "PTMControl:": Group("PTM Control", {"Enabled": "PTM Enable", "RootSelected": "Root Select"}),
    },
    "Data Object Exchange": {
        "DOECap:": Group("DOE Capabilities", {"IntSup": "DOE Interrupt Support"}),
        "DOECtl:": Group("DOE Control", {"IntEn": "DOE Interrupt Enable"}),
        "DOESta:": Group("DOE Status", {"Busy": "DOE Busy", "IntSta": "DOE Interrupt Status", "Error": "DOE Error", "ObjectReady": "Data Object Ready"}),
    },
    "Vendor-Specific Extended": {
        "": Group("Vendor-Specific Header", {}, (), [(r"ID=([0-9a-f]+)", "VSEC ID", 16), (r"Rev=(\d+)", "VSEC Rev", 10), (r"Len=([0-9a-f]+)", "VSEC Length", 16)]),
    },
    "Designated Vendor-Specific": {
        "": Group("DVSEC Header 1", {}, (), [(r"Vendor=([0-9a-f]+)", "DVSEC Vendor ID", 16), (r"Rev=(\d+)", "DVSEC Revision", 10), (r"Len=(\d+)", "DVSEC Length", 10)]),
        "CXLCap:": Group("CXL Capability", {"Cache": "Cache Capable", "IO": "IO Capable", "Mem": "Mem Capable", "MemHWInit": "Mem HwInit Mode", "Viral": "Viral Capable"},
                         (), [(r"HDMCount (\d)", "HDM Count", 10)]),
        "CXLCtl:": Group("CXL Control", {"Cache": "Cache Enable", "IO": "IO Enable", "Mem": "Mem Enable", "Viral": "Viral Enable"}, (),
                         [(r"CacheSFCov (\d+)", "Cache SF Coverage", 10), (r"CacheSFGran (\d+)", "Cache SF Granularity", 10), (r"CacheClean(\d)", "Cache Clean Eviction", 10)],
                         {"CacheClean"}),
        "CXLSta:": Group("CXL Status", {"Viral": "Viral Status"}),
    },
    "Root Complex Event Collector Endpoint Association": {
        "RCiEPBitmap:": Group("Association Bitmap", {}, (), [(r"([0-9a-f]{8})", "Devices", 16)]),
    },
}

FLAG = re.compile(r"(?<![\w/>.<-])([<>]?[\w/.]+(?:-[A-Z][\w.]+)*)([+-])(?![\w])")


def express_groups(lines, table):
    """Text of each group: from its name to the next name, over line ends."""
    text = " ".join(line.strip() for line in lines)
    names = sorted((n for n in table if n), key=len, reverse=True)
    found = re.compile("(?:^|(?<=[\\s,(]))(" + "|".join(re.escape(n) for n in names) + ")") if names else None
    if not found:
        return {"": text}
    parts, where, last = {}, 0, ""
    for m in found.finditer(text):
        parts.setdefault(last, text[where:m.start()])
        last, where = m.group(1), m.end()
    parts.setdefault(last, text[where:])
    return parts


class Comparison:
    def __init__(self):
        self.compared = 0
        self.wrong = []
        self.structures = {}

    def field(self, where, structure, register, field, want, how):
        reg = next((r for r in structure["registers"] if r["name"] == register), None)
        got = reg and reg["fields"].get(field)
        if got is None:
            self.wrong.append(f"{where}: lspci shows {register}: {field} = {want}, kangzao does not")
            return
        self.compared += 1
        self.structures[structure["name"]] = self.structures.get(structure["name"], 0) + 1
        have = got["value"] if how == "value" else got["text"]
        if have not in (want if isinstance(want, tuple) else (want,)):
            self.wrong.append(f"{where}: {register}: {field}: lspci {want}, kangzao {have}")

    def groups(self, where, structure, lines, table):
        for name, text in express_groups(lines, table).items():
            group = table.get(name)
            if not group:
                continue
            for token, sign in FLAG.findall(text):
                if token in group.ignore:
                    continue
                if token not in group.flags:
                    self.wrong.append(f"{where}: {name} {token}{sign}: lspci has a flag that is not compared")
                    continue
                field = group.flags[token]  # "!": the token says the opposite of the bit
                self.field(where, structure, group.register, field.lstrip("!"), int((sign == "+") != field.startswith("!")), "value")
            for pattern, field, make in group.texts:
                if (m := re.search(pattern, text)) and (want := make(m)) is not None:
                    self.field(where, structure, group.register, field, want, "text")
            for pattern, field, base in group.numbers:
                if m := re.search(pattern, text):
                    self.field(where, structure, group.register, field, int(next(g for g in m.groups() if g), base), "value")


def lspci(path):
    """[(bdf, header lines, {offset: (title, lines)})]"""
    text = subprocess.run(["lspci", "-D", "-F", path, "-vvv"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    out = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        header, caps, at = [], {}, None
        for line in lines[1:]:
            m = re.match(r"\tCapabilities: \[([0-9a-f]+)(?: v\d+)?\] (.*)", line)
            if m:
                at = int(m.group(1), 16)
                caps[at] = (m.group(2), [])
            elif at is not None and line.startswith("\t\t"):
                caps[at][1].append(line)
            else:
                at = None
                header.append(line)
        out.append((lines[0].split()[0], header, caps))
    return out


def compare(bin_dir, path, comparison):
    shown = json.loads(subprocess.run([os.path.join(bin_dir, "kangzao"), "pci", "show", "--json", path], stdout=subprocess.PIPE, check=True).stdout)
    ours = {f["bdf"]: f for f in shown["functions"]}
    functions = 0
    for bdf, header, caps in lspci(path):
        where = f"{os.path.basename(path)} {bdf}"
        if bdf not in ours:
            comparison.wrong.append(f"{where}: kangzao has no such function")
            continue
        functions += 1
        structures = {s["offset"]: s for s in ours[bdf]["structures"]}
        if any("Unknown header type" in line for line in header):
            continue
        comparison.groups(where, structures[0], header, HEADER)
        for at, (title, lines) in caps.items():
            if title.startswith("<") or "<chain" in title:
                continue
            if at not in structures:
                comparison.wrong.append(f"{where}: lspci has a capability at {at:#x} ({title}), kangzao has none")
                continue
            table = STRUCTURES.get(structures[at]["name"])
            if not table or not structures[at]["registers"]:
                continue
            comparison.groups(f"{where} [{at:x}]", structures[at], [title] + lines, table)
        extra = [s for s in structures if s and s not in caps]
        if extra and not any("<chain" in c[0] or "<access denied>" in c[0] for c in caps.values()) and header:
            for s in extra:
                comparison.wrong.append(f"{where}: kangzao has {structures[s]['name']} at {s:#x}, lspci has none")
    return functions


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    comparison, functions = Comparison(), 0
    dumps = sorted(glob.glob(os.path.join(DUMPS, "*.txt")))
    for path in dumps:
        functions += compare(args.bin, path, comparison)
    for line in comparison.wrong:
        print("FAIL:", line)
    for name, count in sorted(comparison.structures.items()):
        print(f"{count:6} {name}")
    print(f"{len(dumps)} dumps, {functions} functions, {comparison.compared} fields compared with lspci, {len(comparison.wrong)} differ")
    if len(dumps) < 25 or comparison.compared < 3000:
        print("FAIL: too little was compared")
        return 1
    return 1 if comparison.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
