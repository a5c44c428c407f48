// SPDX-License-Identifier: GPL-2.0-or-later
// Layouts of the extended capabilities, from 256 bytes on.
#include <linux/pci_regs.h>

#include "shim/pci/register_text.h"
#include "shim/pci/registers.h"

namespace kz {
namespace {

using std::string_view;

// Ids that the kernel's header of an older distribution does not have.
enum : uint16_t {
  ext_vf_rebar = 0x24,
  ext_pl_16gts = 0x26,
  ext_margining = 0x27,
  ext_npem = 0x29,
  ext_pl_32gts = 0x2a,
  ext_doe = 0x2e,
  ext_device3 = 0x2f,
  ext_ide = 0x30,
  ext_pl_64gts = 0x31,
};

bool root_or_collector(const StructureAt& p) {
  return p.express_type == PCI_EXP_TYPE_ROOT_PORT || p.express_type == PCI_EXP_TYPE_RC_EC;
}
unsigned lanes(const StructureAt& p) { return p.lanes; }

// Bits of the status, mask and severity registers alike, 7.8.4.2 to 7.8.4.4.
const std::vector<FieldLayout> kUncorrectable = {
    {"Data Link Protocol Error", 4, 4},
    {"Surprise Down Error", 5, 5},
    {"Poisoned TLP Received", 12, 12},
    {"Flow Control Protocol Error", 13, 13},
    {"Completion Timeout", 14, 14},
    {"Completer Abort", 15, 15},
    {"Unexpected Completion", 16, 16},
    {"Receiver Overflow", 17, 17},
    {"Malformed TLP", 18, 18},
    {"ECRC Error", 19, 19},
    {"Unsupported Request Error", 20, 20},
    {"ACS Violation", 21, 21},
    {"Uncorrectable Internal Error", 22, 22},
    {"MC Blocked TLP", 23, 23},
    {"AtomicOp Egress Blocked", 24, 24},
    {"TLP Prefix Blocked Error", 25, 25},
    {"Poisoned TLP Egress Blocked", 26, 26},
    {"DMWr Request Egress Blocked", 27, 27},
    {"IDE Check Failed", 28, 28},
    {"Misrouted IDE TLP", 29, 29},
    {"PCRC Check Failed", 30, 30},
    {"TLP Translation Egress Blocked", 31, 31},
};

const std::vector<FieldLayout> kCorrectable = {
    {"Receiver Error", 0, 0},
    {"Bad TLP", 6, 6},
    {"Bad DLLP", 7, 7},
    {"REPLAY_NUM Rollover", 8, 8},
    {"Replay Timer Timeout", 12, 12},
    {"Advisory Non-Fatal Error", 13, 13},
    {"Corrected Internal Error", 14, 14},
    {"Header Log Overflow", 15, 15},
};

StructureLayout advanced_error_reporting() {
  return {PCI_EXT_CAP_ID_ERR,
          true,
          "PCIe r6.0 7.8.4",
          {
              {PCI_ERR_UNCOR_STATUS, 4, "Uncorrectable Error Status", kUncorrectable},
              {PCI_ERR_UNCOR_MASK, 4, "Uncorrectable Error Mask", kUncorrectable},
              {PCI_ERR_UNCOR_SEVER, 4, "Uncorrectable Error Severity", kUncorrectable},
              {PCI_ERR_COR_STATUS, 4, "Correctable Error Status", kCorrectable},
              {PCI_ERR_COR_MASK, 4, "Correctable Error Mask", kCorrectable},
              {PCI_ERR_CAP,
               4,
               "Advanced Error Capabilities and Control",
               {{"First Error Pointer", 0, 4},
                {"ECRC Generation Capable", 5, 5},
                {"ECRC Generation Enable", 6, 6},
                {"ECRC Check Capable", 7, 7},
                {"ECRC Check Enable", 8, 8},
                {"Multiple Header Recording Capable", 9, 9},
                {"Multiple Header Recording Enable", 10, 10},
                {"TLP Prefix Log Present", 11, 11},
                {"Completion Timeout Prefix/Header Log Capable", 12, 12}}},
              {PCI_ERR_HEADER_LOG,
               4,
               "Header Log",
               {{"Word", 0, 31, {}, text_hex<8>}},
               nullptr,
               [](const StructureAt&) { return 4u; },
               4},
              {PCI_ERR_ROOT_COMMAND,
               4,
               "Root Error Command",
               {{"Correctable Error Reporting Enable", 0, 0},
                {"Non-Fatal Error Reporting Enable", 1, 1},
                {"Fatal Error Reporting Enable", 2, 2}},
               root_or_collector},
              {PCI_ERR_ROOT_STATUS,
               4,
               "Root Error Status",
               {{"ERR_COR Received", 0, 0},
                {"Multiple ERR_COR Received", 1, 1},
                {"ERR_FATAL/NONFATAL Received", 2, 2},
                {"Multiple ERR_FATAL/NONFATAL Received", 3, 3},
                {"First Uncorrectable Fatal", 4, 4},
                {"Non-Fatal Error Messages Received", 5, 5},
                {"Fatal Error Messages Received", 6, 6},
                {"Interrupt Message Number", 27, 31}},
               root_or_collector},
              {PCI_ERR_ROOT_ERR_SRC,
               4,
               "Error Source Identification",
               {{"ERR_COR Source", 0, 15, {}, text_hex<4>},
                {"ERR_FATAL/NONFATAL Source", 16, 31, {}, text_hex<4>}},
               root_or_collector},
          }};
}

// Extended VC Count more than the one that is always there.
unsigned virtual_channels(const StructureAt& p) { return (p.read(PCI_VC_PORT_CAP1) & 7) + 1; }

StructureLayout virtual_channel(uint16_t id, string_view section) {
  return {
      id,
      true,
      section,
      {
          {PCI_VC_PORT_CAP1,
           4,
           "Port VC Capability 1",
           {{"Extended VC Count", 0, 2},
            {"Low Priority Extended VC Count", 4, 6},
            {"Reference Clock", 8, 9, "100 ns"},
            {"Port Arbitration Table Entry Size", 10, 11, "1 bit|2 bits|4 bits|8 bits"}}},
          {PCI_VC_PORT_CAP2,
           4,
           "Port VC Capability 2",
           {{"VC Arbitration Capability", 0, 7, {}, text_hex<2>}, {"VC Arbitration Table Offset", 24, 31}}},
          {PCI_VC_PORT_CTRL,
           2,
           "Port VC Control",
           {{"Load VC Arbitration Table", 0, 0}, {"VC Arbitration Select", 1, 3}}},
          {PCI_VC_PORT_STATUS, 2, "Port VC Status", {{"VC Arbitration Table Status", 0, 0}}},
          {PCI_VC_RES_CAP,
           4,
           "VC Resource Capability",
           {{"Port Arbitration Capability", 0, 7, {}, text_hex<2>},
            {"Reject Snoop Transactions", 15, 15},
            {"Maximum Time Slots", 16, 22, {}, text_plus_one},
            {"Port Arbitration Table Offset", 24, 31}},
           nullptr,
           virtual_channels,
           PCI_CAP_VC_PER_VC_SIZEOF},
          {PCI_VC_RES_CTRL,
           4,
           "VC Resource Control",
           {{"TC/VC Map", 0, 7, {}, text_hex<2>},
            {"Load Port Arbitration Table", 16, 16},
            {"Port Arbitration Select", 17, 19},
            {"VC ID", 24, 26},
            {"VC Enable", 31, 31}},
           nullptr,
           virtual_channels,
           PCI_CAP_VC_PER_VC_SIZEOF},
          {PCI_VC_RES_STATUS + 2,
           2,
           "VC Resource Status",
           {{"Port Arbitration Table Status", 0, 0}, {"VC Negotiation Pending", 1, 1}},
           nullptr,
           virtual_channels,
           PCI_CAP_VC_PER_VC_SIZEOF},
      }};
}

StructureLayout serial_number() {
  return {PCI_EXT_CAP_ID_DSN,
          true,
          "PCIe r6.0 7.9.3",
          {{4, 8, "Serial Number", {{"EUI-64", 0, 63, {}, text_hex<16>}}}}};
}

StructureLayout power_budgeting() {
  return {
      PCI_EXT_CAP_ID_PWR,
      true,
      "PCIe r6.0 7.8.1",
      {
          {PCI_PWR_DSR, 1, "Data Select", {{"Index", 0, 7}}},
          {PCI_PWR_DATA,
           4,
           "Data",
           {{"Base Power", 0, 7},
            {"Data Scale", 8, 9, "1.0x|0.1x|0.01x|0.001x"},
            {"PM Sub State", 10, 12},
            {"PM State", 13, 14, "D0|D1|D2|D3"},
            {"Type", 15, 17,
             "PME Aux|Auxiliary|Idle|Sustained|Sustained, emergency|Maximum, emergency|reserved|Maximum"},
            {"Power Rail", 18, 20, "12 V|3.3 V|1.5 or 1.8 V|reserved|reserved|reserved|reserved|Thermal"}}},
          {PCI_PWR_CAP, 1, "Capability", {{"System Allocated", 0, 0}}},
      }};
}

StructureLayout link_declaration() {
  return {PCI_EXT_CAP_ID_RCLD,
          true,
          "PCIe r6.0 7.9.8",
          {{4,
            4,
            "Element Self Description",
            {{"Element Type", 0, 3, "configuration space|system egress port|internal link"},
             {"Number of Link Entries", 8, 15},
             {"Component ID", 16, 23},
             {"Port Number", 24, 31}}}}};
}

StructureLayout event_collector() {
  return {PCI_EXT_CAP_ID_RCEC,
          true,
          "PCIe r6.0 7.9.10",
          {{4, 4, "Association Bitmap", {{"Devices", 0, 31, {}, text_hex<8>}}},
           {8,
            4,
            "Associated Bus Numbers",
            {{"Next Bus", 8, 15, {}, text_hex<2>}, {"Last Bus", 16, 23, {}, text_hex<2>}},
            [](const StructureAt& p) { return p.version >= 2; }}}};
}

StructureLayout vendor_specific_extended() {
  return {PCI_EXT_CAP_ID_VNDR,
          true,
          "PCIe r6.0 7.9.5",
          {{4,
            4,
            "Vendor-Specific Header",
            {{"VSEC ID", 0, 15, {}, text_hex<4>}, {"VSEC Rev", 16, 19}, {"VSEC Length", 20, 31}}}}};
}

StructureLayout access_control() {
  return {PCI_EXT_CAP_ID_ACS,
          true,
          "PCIe r5.0 7.7.8",
          {
              {PCI_ACS_CAP,
               2,
               "ACS Capability",
               {{"Source Validation", 0, 0},
                {"Translation Blocking", 1, 1},
                {"P2P Request Redirect", 2, 2},
                {"P2P Completion Redirect", 3, 3},
                {"Upstream Forwarding", 4, 4},
                {"P2P Egress Control", 5, 5},
                {"Direct Translated P2P", 6, 6},
                {"Enhanced Capability", 7, 7},
                {"Egress Control Vector Size", 8, 15}}},
              {PCI_ACS_CTRL,
               2,
               "ACS Control",
               {{"Source Validation Enable", 0, 0},
                {"Translation Blocking Enable", 1, 1},
                {"P2P Request Redirect Enable", 2, 2},
                {"P2P Completion Redirect Enable", 3, 3},
                {"Upstream Forwarding Enable", 4, 4},
                {"P2P Egress Control Enable", 5, 5},
                {"Direct Translated P2P Enable", 6, 6},
                {"I/O Request Blocking Enable", 7, 7},
                {"DSP Memory Target Access Control", 8, 9},
                {"USP Memory Target Access Control", 10, 11},
                {"Unclaimed Request Redirect Control", 12, 12}}},
          }};
}

StructureLayout alternative_routing() {
  return {PCI_EXT_CAP_ID_ARI,
          true,
          "PCIe r6.0 7.8.8",
          {
              {PCI_ARI_CAP,
               2,
               "ARI Capability",
               {{"MFVC Function Groups Capability", 0, 0},
                {"ACS Function Groups Capability", 1, 1},
                {"Next Function Number", 8, 15}}},
              {PCI_ARI_CTRL,
               2,
               "ARI Control",
               {{"MFVC Function Groups Enable", 0, 0},
                {"ACS Function Groups Enable", 1, 1},
                {"Function Group", 4, 6}}},
          }};
}

std::string queue_depth(uint64_t value) { return fmt::format("{}", value == 0 ? 32 : value); }
// Smallest Translation Unit: 0 is 4096 bytes (10.5.1.3).
std::string translation_unit(uint64_t value) { return fmt::format("{:#x} bytes", uint64_t{4096} << value); }

StructureLayout address_translation() {
  return {PCI_EXT_CAP_ID_ATS,
          true,
          "PCIe r6.0 10.5.1",
          {
              {PCI_ATS_CAP,
               2,
               "ATS Capability",
               {{"Invalidate Queue Depth", 0, 4, {}, queue_depth},
                {"Page Aligned Request", 5, 5},
                {"Global Invalidate Supported", 6, 6},
                {"Relaxed Ordering Supported", 7, 7}}},
              {PCI_ATS_CTRL,
               2,
               "ATS Control",
               {{"Smallest Translation Unit", 0, 4, {}, translation_unit}, {"Enable", 15, 15}}},
          }};
}

StructureLayout single_root_iov() {
  return {PCI_EXT_CAP_ID_SRIOV,
          true,
          "PCIe r6.0 9.3.3",
          {
              {PCI_SRIOV_CAP,
               4,
               "SR-IOV Capabilities",
               {{"VF Migration Capable", 0, 0},
                {"ARI Capable Hierarchy Preserved", 1, 1},
                {"VF 10-Bit Tag Requester Supported", 2, 2},
                {"VF Migration Interrupt Message Number", 21, 31}}},
              {PCI_SRIOV_CTRL,
               2,
               "SR-IOV Control",
               {{"VF Enable", 0, 0},
                {"VF Migration Enable", 1, 1},
                {"VF Migration Interrupt Enable", 2, 2},
                {"VF Memory Space Enable", 3, 3},
                {"ARI Capable Hierarchy", 4, 4},
                {"VF 10-Bit Tag Requester Enable", 5, 5}}},
              {PCI_SRIOV_STATUS, 2, "SR-IOV Status", {{"VF Migration Status", 0, 0}}},
              {PCI_SRIOV_INITIAL_VF, 2, "InitialVFs", {{"Number", 0, 15}}},
              {PCI_SRIOV_TOTAL_VF, 2, "TotalVFs", {{"Number", 0, 15}}},
              {PCI_SRIOV_NUM_VF, 2, "NumVFs", {{"Number", 0, 15}}},
              {PCI_SRIOV_FUNC_LINK, 1, "Function Dependency Link", {{"Function", 0, 7, {}, text_hex<2>}}},
              {PCI_SRIOV_VF_OFFSET, 2, "First VF Offset", {{"Offset", 0, 15}}},
              {PCI_SRIOV_VF_STRIDE, 2, "VF Stride", {{"Stride", 0, 15}}},
              {PCI_SRIOV_VF_DID, 2, "VF Device ID", {{"Device ID", 0, 15, {}, text_hex<4>}}},
              {PCI_SRIOV_SUP_PGSIZE, 4, "Supported Page Sizes", {{"Sizes", 0, 31, {}, text_hex<8>}}},
              {PCI_SRIOV_SYS_PGSIZE, 4, "System Page Size", {{"Size", 0, 31, {}, text_hex<8>}}},
              {PCI_SRIOV_BAR,
               4,
               "VF BAR",
               {{"Space", 0, 0, "memory|I/O"},
                {"Type", 1, 2, "32-bit|below 1 MiB|64-bit|reserved"},
                {"Prefetchable", 3, 3},
                {"Address", 4, 31, {}, text_high_bits<4>}},
               nullptr,
               [](const StructureAt&) { return 6u; },
               4,
               true},
              {PCI_SRIOV_VFM,
               4,
               "VF Migration State Array Offset",
               {{"BIR", 0, 2}, {"Offset", 3, 31, {}, text_high_bits<3>}}},
          }};
}

StructureLayout multicast() {
  return {PCI_EXT_CAP_ID_MCAST,
          true,
          "PCIe r6.0 7.9.11",
          {
              {4,
               2,
               "Multicast Capability",
               {{"MC_Max_Group", 0, 5, {}, text_plus_one},
                {"MC_Window_Size_Requested", 8, 13},
                {"ECRC Regeneration Supported", 15, 15}}},
              {6, 2, "Multicast Control", {{"MC_Num_Group", 0, 5, {}, text_plus_one}, {"MC_Enable", 15, 15}}},
              {8,
               8,
               "MC_Base_Address",
               {{"MC_Index_Position", 0, 5}, {"MC_Base_Address", 12, 63, {}, text_high_bits<12>}}},
              {16, 8, "MC_Receive", {{"Groups", 0, 63, {}, text_hex<16>}}},
              {24, 8, "MC_Block_All", {{"Groups", 0, 63, {}, text_hex<16>}}},
              {32, 8, "MC_Block_Untranslated", {{"Groups", 0, 63, {}, text_hex<16>}}},
          }};
}

StructureLayout page_request() {
  return {PCI_EXT_CAP_ID_PRI,
          true,
          "PCIe r6.0 10.5.2",
          {
              {PCI_PRI_CTRL, 2, "Page Request Control", {{"Enable", 0, 0}, {"Reset", 1, 1}}},
              {PCI_PRI_STATUS,
               2,
               "Page Request Status",
               {{"Response Failure", 0, 0},
                {"Unexpected Page Request Group Index", 1, 1},
                {"Stopped", 8, 8},
                {"PRG Response PASID Required", 15, 15}}},
              {PCI_PRI_MAX_REQ, 4, "Outstanding Page Request Capacity", {{"Requests", 0, 31}}},
              {PCI_PRI_ALLOC_REQ, 4, "Outstanding Page Request Allocation", {{"Requests", 0, 31}}},
          }};
}

// Number of Resizable BARs, which the first control register tells.
unsigned resizable_bars(const StructureAt& p) {
  return p.read(PCI_REBAR_CTRL) >> PCI_REBAR_CTRL_NBAR_SHIFT & 7;
}

StructureLayout resizable_bar(uint16_t id, string_view section) {
  return {
      id,
      true,
      section,
      {
          {PCI_REBAR_CAP,
           4,
           "Resizable BAR Capability",
           {{"Sizes", 4, 31, {}, text_bar_sizes}},
           nullptr,
           resizable_bars,
           8},
          {PCI_REBAR_CTRL,
           4,
           "Resizable BAR Control",
           {{"BAR Index", 0, 2}, {"Number of Resizable BARs", 5, 7}, {"BAR Size", 8, 13, {}, text_bar_size}},
           nullptr,
           resizable_bars,
           8},
      }};
}

StructureLayout tlp_hints() {
  return {PCI_EXT_CAP_ID_TPH,
          true,
          "PCIe r6.0 7.9.13",
          {
              {4,
               4,
               "TPH Requester Capability",
               {{"No ST Mode Supported", 0, 0},
                {"Interrupt Vector Mode Supported", 1, 1},
                {"Device Specific Mode Supported", 2, 2},
                {"Extended TPH Requester Supported", 8, 8},
                {"ST Table Location", 9, 10, "none|in this structure|in the MSI-X table|reserved"},
                {"ST Table Size", 16, 26, {}, text_plus_one}}},
              {8,
               4,
               "TPH Requester Control",
               {{"ST Mode Select", 0, 2, "no ST|interrupt vector|device specific"},
                {"TPH Requester Enable", 8, 9, "off|TPH|reserved|TPH and Extended TPH"}}},
          }};
}

StructureLayout latency_tolerance() {
  return {PCI_EXT_CAP_ID_LTR,
          true,
          "PCIe r6.0 7.8.2",
          {{PCI_LTR_MAX_SNOOP_LAT, 2, "Max Snoop Latency", {{"Latency", 0, 12, {}, text_latency}}},
           {PCI_LTR_MAX_NOSNOOP_LAT, 2, "Max No-Snoop Latency", {{"Latency", 0, 12, {}, text_latency}}}}};
}

StructureLayout secondary_express() {
  return {PCI_EXT_CAP_ID_SECPCI,
          true,
          "PCIe r6.0 7.7.3",
          {
              {4,
               4,
               "Link Control 3",
               {{"Perform Equalization", 0, 0},
                {"Link Equalization Request Interrupt Enable", 1, 1},
                {"Enable Lower SKP OS Generation", 9, 15, {}, text_speeds}}},
              {8, 4, "Lane Error Status", {{"Lanes", 0, 31, {}, text_hex<8>}}},
              {12,
               2,
               "Lane Equalization Control",
               {{"Downstream Port Transmitter Preset", 0, 3},
                {"Downstream Port Receiver Preset Hint", 4, 6},
                {"Upstream Port Transmitter Preset", 8, 11},
                {"Upstream Port Receiver Preset Hint", 12, 14}},
               nullptr,
               lanes,
               2},
          }};
}

StructureLayout process_address_space() {
  return {
      PCI_EXT_CAP_ID_PASID,
      true,
      "PCIe r6.0 7.8.9",
      {
          {PCI_PASID_CAP,
           2,
           "PASID Capability",
           {{"Execute Permission Supported", 1, 1},
            {"Privileged Mode Supported", 2, 2},
            {"Max PASID Width", 8, 12}}},
          {PCI_PASID_CTRL,
           2,
           "PASID Control",
           {{"PASID Enable", 0, 0}, {"Execute Permission Enable", 1, 1}, {"Privileged Mode Enable", 2, 2}}},
      }};
}

bool root_port_extensions(const StructureAt& p) {
  return (p.read(PCI_EXP_DPC_CAP, 2) & PCI_EXP_DPC_CAP_RP_EXT) != 0;
}
const std::vector<FieldLayout> kPio = {
    {"Cfg UR", 0, 0},    {"Cfg CA", 1, 1},   {"Cfg CTO", 2, 2},  {"I/O UR", 8, 8},    {"I/O CA", 9, 9},
    {"I/O CTO", 10, 10}, {"Mem UR", 16, 16}, {"Mem CA", 17, 17}, {"Mem CTO", 18, 18},
};

StructureLayout downstream_containment() {
  return {
      PCI_EXT_CAP_ID_DPC,
      true,
      "PCIe r6.0 7.9.14",
      {
          {PCI_EXP_DPC_CAP,
           2,
           "DPC Capability",
           {{"DPC Interrupt Message Number", 0, 4},
            {"RP Extensions for DPC", 5, 5},
            {"Poisoned TLP Egress Blocking Supported", 6, 6},
            {"DPC Software Triggering Supported", 7, 7},
            {"RP PIO Log Size", 8, 11},
            {"DL_Active ERR_COR Signaling Supported", 12, 12}}},
          {PCI_EXP_DPC_CTL,
           2,
           "DPC Control",
           {{"DPC Trigger Enable", 0, 1, "off|ERR_FATAL|ERR_NONFATAL or ERR_FATAL|reserved"},
            {"DPC Completion Control", 2, 2, "CA|UR"},
            {"DPC Interrupt Enable", 3, 3},
            {"DPC ERR_COR Enable", 4, 4},
            {"Poisoned TLP Egress Blocking Enable", 5, 5},
            {"DPC Software Trigger", 6, 6},
            {"DL_Active ERR_COR Enable", 7, 7}}},
          {PCI_EXP_DPC_STATUS,
           2,
           "DPC Status",
           {{"DPC Trigger Status", 0, 0},
            {"DPC Trigger Reason", 1, 2, "unmasked uncorrectable error|ERR_NONFATAL|ERR_FATAL|see extension"},
            {"DPC Interrupt Status", 3, 3},
            {"DPC RP Busy", 4, 4},
            {"DPC Trigger Reason Extension", 5, 6, "RP PIO error|software trigger|reserved|reserved"},
            {"RP PIO First Error Pointer", 8, 12}}},
          {PCI_EXP_DPC_SOURCE_ID, 2, "DPC Error Source ID", {{"Requester ID", 0, 15, {}, text_hex<4>}}},
          {PCI_EXP_DPC_RP_PIO_STATUS, 4, "RP PIO Status", kPio, root_port_extensions},
          {PCI_EXP_DPC_RP_PIO_MASK, 4, "RP PIO Mask", kPio, root_port_extensions},
          {PCI_EXP_DPC_RP_PIO_SEVERITY, 4, "RP PIO Severity", kPio, root_port_extensions},
          {PCI_EXP_DPC_RP_PIO_SYSERROR, 4, "RP PIO SysError", kPio, root_port_extensions},
          {PCI_EXP_DPC_RP_PIO_EXCEPTION, 4, "RP PIO Exception", kPio, root_port_extensions},
      }};
}

constexpr string_view kPowerOnScale = "2 us|10 us|100 us|reserved";
// LTR_L1.2_THRESHOLD: value in bits 16..25, scale in 29..31, as one field so that it has a unit.
std::string threshold(uint64_t value) { return text_latency((value & 0x3ff) | (value >> 13 & 7) << 10); }

StructureLayout l1_substates() {
  return {PCI_EXT_CAP_ID_L1SS,
          true,
          "PCIe r6.0 7.8.3",
          {
              {PCI_L1SS_CAP,
               4,
               "L1 PM Substates Capabilities",
               {{"PCI-PM L1.2 Supported", 0, 0},
                {"PCI-PM L1.1 Supported", 1, 1},
                {"ASPM L1.2 Supported", 2, 2},
                {"ASPM L1.1 Supported", 3, 3},
                {"L1 PM Substates Supported", 4, 4},
                {"Link Activation Supported", 5, 5},
                {"Port Common_Mode_Restore_Time", 8, 15},
                {"Port T_POWER_ON Scale", 16, 17, kPowerOnScale},
                {"Port T_POWER_ON Value", 19, 23}}},
              {PCI_L1SS_CTL1,
               4,
               "L1 PM Substates Control 1",
               {{"PCI-PM L1.2 Enable", 0, 0},
                {"PCI-PM L1.1 Enable", 1, 1},
                {"ASPM L1.2 Enable", 2, 2},
                {"ASPM L1.1 Enable", 3, 3},
                {"Link Activation Interrupt Enable", 4, 4},
                {"Link Activation Control", 5, 5},
                {"Common_Mode_Restore_Time", 8, 15},
                {"LTR_L1.2_THRESHOLD", 16, 31, {}, threshold}}},
              {PCI_L1SS_CTL2,
               4,
               "L1 PM Substates Control 2",
               {{"T_POWER_ON Scale", 0, 1, kPowerOnScale}, {"T_POWER_ON Value", 3, 7}}},
          }};
}

StructureLayout precision_time() {
  return {PCI_EXT_CAP_ID_PTM,
          true,
          "PCIe r6.0 7.9.15",
          {
              {PCI_PTM_CAP,
               4,
               "PTM Capability",
               {{"PTM Requester Capable", 0, 0},
                {"PTM Responder Capable", 1, 1},
                {"PTM Root Capable", 2, 2},
                {"Local Clock Granularity", 8, 15}}},
              {PCI_PTM_CTRL,
               4,
               "PTM Control",
               {{"PTM Enable", 0, 0}, {"Root Select", 1, 1}, {"Effective Granularity", 8, 15}}},
          }};
}

constexpr uint16_t kCxlVendor = 0x1e98;
// Compute Express Link 2.0, 8.1.3: the DVSEC of a device.
bool cxl_device(const StructureAt& p) { return p.read(4, 2) == kCxlVendor && p.read(8, 2) == 0; }

StructureLayout designated_vendor_specific() {
  return {PCI_EXT_CAP_ID_DVSEC,
          true,
          "PCIe r6.0 7.9.6",
          {
              {4,
               4,
               "DVSEC Header 1",
               {{"DVSEC Vendor ID", 0, 15, {}, text_hex<4>},
                {"DVSEC Revision", 16, 19},
                {"DVSEC Length", 20, 31}}},
              {8, 2, "DVSEC Header 2", {{"DVSEC ID", 0, 15, {}, text_hex<4>}}},
              {10,
               2,
               "CXL Capability",
               {{"Cache Capable", 0, 0},
                {"IO Capable", 1, 1},
                {"Mem Capable", 2, 2},
                {"Mem HwInit Mode", 3, 3},
                {"HDM Count", 4, 5},
                {"Cache Writeback and Invalidate Capable", 6, 6},
                {"CXL Reset Capable", 7, 7},
                {"Viral Capable", 14, 14}},
               cxl_device},
              {12,
               2,
               "CXL Control",
               {{"Cache Enable", 0, 0},
                {"IO Enable", 1, 1},
                {"Mem Enable", 2, 2},
                {"Cache SF Coverage", 3, 7},
                {"Cache SF Granularity", 8, 10},
                {"Cache Clean Eviction", 11, 11},
                {"Viral Enable", 14, 14}},
               cxl_device},
              {14, 2, "CXL Status", {{"Viral Status", 14, 14}}, cxl_device},
          }};
}

StructureLayout data_link_feature() {
  return {PCI_EXT_CAP_ID_DLF,
          true,
          "PCIe r6.0 7.7.4",
          {
              {4,
               4,
               "Data Link Feature Capabilities",
               {{"Local Scaled Flow Control Supported", 0, 0},
                {"Local Immediate Readiness", 1, 1},
                {"Data Link Feature Exchange Enable", 31, 31}}},
              {8,
               4,
               "Data Link Feature Status",
               {{"Remote Scaled Flow Control Supported", 0, 0},
                {"Remote Immediate Readiness", 1, 1},
                {"Remote Data Link Feature Supported Valid", 31, 31}}},
          }};
}

const std::vector<FieldLayout> kLanePresets = {{"Downstream Port Transmitter Preset", 0, 3},
                                               {"Upstream Port Transmitter Preset", 4, 7}};

StructureLayout physical_layer_16() {
  return {ext_pl_16gts,
          true,
          "PCIe r6.0 7.7.5",
          {
              {0xc,
               4,
               "16.0 GT/s Status",
               {{"Equalization Complete", 0, 0},
                {"Equalization Phase 1 Successful", 1, 1},
                {"Equalization Phase 2 Successful", 2, 2},
                {"Equalization Phase 3 Successful", 3, 3},
                {"Link Equalization Request", 4, 4}}},
              {0x10, 4, "Local Data Parity Mismatch Status", {{"Lanes", 0, 31, {}, text_hex<8>}}},
              {0x14, 4, "First Retimer Data Parity Mismatch Status", {{"Lanes", 0, 31, {}, text_hex<8>}}},
              {0x18, 4, "Second Retimer Data Parity Mismatch Status", {{"Lanes", 0, 31, {}, text_hex<8>}}},
              {0x20, 1, "Lane Equalization Control", kLanePresets, nullptr, lanes, 1},
          }};
}

StructureLayout physical_layer_32() {
  return {ext_pl_32gts,
          true,
          "PCIe r6.0 7.7.6",
          {
              {0x4,
               4,
               "32.0 GT/s Capabilities",
               {{"Equalization Bypass to Highest Rate Supported", 0, 0},
                {"No Equalization Needed Supported", 1, 1},
                {"Modified TS Usage Mode 0 Supported", 8, 8},
                {"Modified TS Usage Mode 1 Supported", 9, 9},
                {"Modified TS Usage Mode 2 Supported", 10, 10}}},
              {0x8,
               4,
               "32.0 GT/s Control",
               {{"Equalization Bypass to Highest Rate Disable", 0, 0},
                {"No Equalization Needed Disable", 1, 1},
                {"Modified TS Usage Mode Selected", 8, 10}}},
              {0xc,
               4,
               "32.0 GT/s Status",
               {{"Equalization Complete", 0, 0},
                {"Equalization Phase 1 Successful", 1, 1},
                {"Equalization Phase 2 Successful", 2, 2},
                {"Equalization Phase 3 Successful", 3, 3},
                {"Link Equalization Request", 4, 4},
                {"Modified TS Received", 5, 5},
                {"Received Enhanced Link Behavior Control", 6, 7},
                {"Transmitter Precoding On", 8, 8},
                {"Transmitter Precode Request", 9, 9},
                {"No Equalization Needed Received", 10, 10}}},
              {0x20, 1, "Lane Equalization Control", kLanePresets, nullptr, lanes, 1},
          }};
}

StructureLayout physical_layer_64() {
  return {ext_pl_64gts,
          true,
          "PCIe r6.0 7.7.7",
          {
              {0xc,
               4,
               "64.0 GT/s Status",
               {{"Equalization Complete", 0, 0},
                {"Equalization Phase 1 Successful", 1, 1},
                {"Equalization Phase 2 Successful", 2, 2},
                {"Equalization Phase 3 Successful", 3, 3},
                {"Link Equalization Request", 4, 4},
                {"Transmitter Precoding On", 5, 5},
                {"Transmitter Precode Request", 6, 6},
                {"No Equalization Needed Received", 7, 7}}},
              {0x10, 1, "Lane Equalization Control", kLanePresets, nullptr, lanes, 1},
          }};
}

StructureLayout lane_margining() {
  return {
      ext_margining,
      true,
      "PCIe r5.0 7.7.7",
      {
          {4, 2, "Margining Port Capabilities", {{"Margining uses Driver Software", 0, 0}}},
          {6, 2, "Margining Port Status", {{"Margining Ready", 0, 0}, {"Margining Software Ready", 1, 1}}},
          {8,
           2,
           "Margining Lane Control",
           {{"Receiver Number", 0, 2},
            {"Margin Type", 3, 5},
            {"Usage Model", 6, 6},
            {"Margin Payload", 8, 15}},
           nullptr,
           lanes,
           4},
          {10,
           2,
           "Margining Lane Status",
           {{"Receiver Number", 0, 2},
            {"Margin Type", 3, 5},
            {"Usage Model", 6, 6},
            {"Margin Payload", 8, 15}},
           nullptr,
           lanes,
           4},
      }};
}

StructureLayout native_enclosure_management() {
  return {
      ext_npem,
      true,
      "PCIe r6.0 7.9.19",
      {
          {4,
           4,
           "NPEM Capability",
           {{"NPEM Capable", 0, 0}, {"NPEM Reset Capable", 1, 1}, {"Indications", 2, 11, {}, text_hex<3>}}},
          {8,
           4,
           "NPEM Control",
           {{"NPEM Enable", 0, 0}, {"NPEM Initiate Reset", 1, 1}, {"Indications", 2, 11, {}, text_hex<3>}}},
          {12, 4, "NPEM Status", {{"NPEM Command Completed", 0, 0}}},
      }};
}

StructureLayout data_object_exchange() {
  return {
      ext_doe,
      true,
      "PCIe r6.0 7.9.24",
      {
          {4,
           4,
           "DOE Capabilities",
           {{"DOE Interrupt Support", 0, 0}, {"DOE Interrupt Message Number", 1, 11}}},
          {8, 4, "DOE Control", {{"DOE Abort", 0, 0}, {"DOE Interrupt Enable", 1, 1}, {"DOE Go", 31, 31}}},
          {12,
           4,
           "DOE Status",
           {{"DOE Busy", 0, 0},
            {"DOE Interrupt Status", 1, 1},
            {"DOE Error", 2, 2},
            {"Data Object Ready", 31, 31}}},
      }};
}

StructureLayout device_3() {
  return {ext_device3,
          true,
          "PCIe r6.0 7.7.9",
          {
              {4,
               4,
               "Device Capabilities 3",
               {{"DMWr Request Routing Supported", 0, 0},
                {"14-Bit Tag Completer Supported", 1, 1},
                {"14-Bit Tag Requester Supported", 2, 2},
                {"Receiver L0p Supported", 3, 3},
                {"Port L0p Exit Latency", 4, 6},
                {"Retimer L0p Exit Latency", 7, 9}}},
              {8,
               4,
               "Device Control 3",
               {{"DMWr Requester Enable", 0, 0},
                {"DMWr Egress Blocking", 1, 1},
                {"14-Bit Tag Requester Enable", 2, 2},
                {"L0p Enable", 3, 3},
                {"Target Link Width", 4, 6}}},
              {12,
               4,
               "Device Status 3",
               {{"Initial Link Width", 0, 2}, {"Segment Captured", 3, 3}, {"Remote L0p Supported", 4, 4}}},
          }};
}

StructureLayout integrity_and_encryption() {
  return {ext_ide,
          true,
          "PCIe r6.0 7.9.26",
          {
              {4,
               4,
               "IDE Capability",
               {{"Link IDE Stream Supported", 0, 0},
                {"Selective IDE Streams Supported", 1, 1},
                {"Flow-Through IDE Stream Supported", 2, 2},
                {"Partial Header Encryption Supported", 3, 3},
                {"Aggregation Supported", 4, 4},
                {"PCRC Supported", 5, 5},
                {"IDE_KM Protocol Supported", 6, 6},
                {"Selective IDE for Configuration Requests Supported", 7, 7},
                {"Supported Algorithms", 8, 12},
                {"Number of TCs Supported for Link IDE", 13, 15, {}, text_plus_one},
                {"Number of Selective IDE Streams Supported", 16, 23, {}, text_plus_one},
                {"TEE-Limited Stream Supported", 24, 24}}},
              {8, 4, "IDE Control", {{"Flow-Through IDE Stream Enabled", 2, 2}}},
          }};
}

}  // namespace

std::span<const StructureLayout> extended_layouts() {
  static const std::vector<StructureLayout> all = {
      advanced_error_reporting(),
      virtual_channel(PCI_EXT_CAP_ID_VC, "PCIe r6.0 7.9.1"),
      virtual_channel(PCI_EXT_CAP_ID_VC9, "PCIe r6.0 7.9.1"),
      virtual_channel(PCI_EXT_CAP_ID_MFVC, "PCIe r6.0 7.9.2"),
      serial_number(),
      power_budgeting(),
      link_declaration(),
      event_collector(),
      vendor_specific_extended(),
      access_control(),
      alternative_routing(),
      address_translation(),
      single_root_iov(),
      multicast(),
      page_request(),
      resizable_bar(PCI_EXT_CAP_ID_REBAR, "PCIe r6.0 7.8.6"),
      resizable_bar(ext_vf_rebar, "PCIe r6.0 7.8.7"),
      tlp_hints(),
      latency_tolerance(),
      secondary_express(),
      process_address_space(),
      downstream_containment(),
      l1_substates(),
      precision_time(),
      designated_vendor_specific(),
      data_link_feature(),
      physical_layer_16(),
      physical_layer_32(),
      physical_layer_64(),
      lane_margining(),
      native_enclosure_management(),
      data_object_exchange(),
      device_3(),
      integrity_and_encryption(),
  };
  return all;
}

}  // namespace kz
