// SPDX-License-Identifier: GPL-2.0-or-later
// Layouts of the header and of the capabilities below 256 bytes.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "shim/pci/register_text.h"
#include "shim/pci/registers.h"

namespace kz {
namespace {

using std::string_view;

// ---- the header, 7.5.1 ----

const std::vector<FieldLayout> kCommand = {
    {"I/O Space Enable", 0, 0},
    {"Memory Space Enable", 1, 1},
    {"Bus Master Enable", 2, 2},
    {"Special Cycle Enable", 3, 3},
    {"Memory Write and Invalidate", 4, 4},
    {"VGA Palette Snoop", 5, 5},
    {"Parity Error Response", 6, 6},
    {"IDSEL Stepping", 7, 7},
    {"SERR# Enable", 8, 8},
    {"Fast Back-to-Back Enable", 9, 9},
    {"Interrupt Disable", 10, 10},
};

const std::vector<FieldLayout> kStatus = {
    {"Immediate Readiness", 0, 0},      {"Interrupt Status", 3, 3},
    {"Capabilities List", 4, 4},        {"66 MHz Capable", 5, 5},
    {"User Definable Features", 6, 6},  {"Fast Back-to-Back Capable", 7, 7},
    {"Master Data Parity Error", 8, 8}, {"DEVSEL Timing", 9, 10, "fast|medium|slow|reserved"},
    {"Signaled Target Abort", 11, 11},  {"Received Target Abort", 12, 12},
    {"Received Master Abort", 13, 13},  {"Signaled System Error", 14, 14},
    {"Detected Parity Error", 15, 15},
};

std::vector<FieldLayout> bar_fields() {
  return {{"Space", 0, 0, "memory|I/O"},
          {"Type", 1, 2, "32-bit|below 1 MiB|64-bit|reserved"},
          {"Prefetchable", 3, 3},
          {"Address", 4, 31, {}, text_high_bits<4>}};
}

std::vector<RegisterLayout> common_header() {
  return {
      {PCI_VENDOR_ID, 2, "Vendor ID", {{"Vendor ID", 0, 15, {}, text_hex<4>}}},
      {PCI_DEVICE_ID, 2, "Device ID", {{"Device ID", 0, 15, {}, text_hex<4>}}},
      {PCI_COMMAND, 2, "Command", kCommand},
      {PCI_STATUS, 2, "Status", kStatus},
      {PCI_REVISION_ID, 1, "Revision ID", {{"Revision ID", 0, 7, {}, text_hex<2>}}},
      {PCI_CLASS_PROG, 3, "Class Code", {{"Class Code", 0, 23, {}, text_hex<6>}}},
      {PCI_CACHE_LINE_SIZE, 1, "Cache Line Size", {{"Cache Line Size", 0, 7, {}, text_dwords}}},
      {PCI_LATENCY_TIMER, 1, "Latency Timer", {{"Latency Timer", 0, 7}}},
      {PCI_HEADER_TYPE, 1, "Header Type", {{"Layout", 0, 6}, {"Multi-Function", 7, 7}}},
      {PCI_BIST, 1, "BIST", {{"Completion Code", 0, 3}, {"Start", 6, 6}, {"Capable", 7, 7}}},
      {PCI_CAPABILITY_LIST, 1, "Capabilities Pointer", {{"Offset", 0, 7, {}, text_hex<2>}}},
      {PCI_INTERRUPT_LINE, 1, "Interrupt Line", {{"Line", 0, 7}}},
      {PCI_INTERRUPT_PIN, 1, "Interrupt Pin", {{"Pin", 0, 7, "none|INTA|INTB|INTC|INTD"}}},
  };
}

StructureLayout make_endpoint_header() {
  StructureLayout out{0, false, "PCIe r6.0 7.5.1.2", common_header()};
  auto add = [&](RegisterLayout r) { out.registers.push_back(std::move(r)); };
  add({PCI_BASE_ADDRESS_0, 4, "BAR", bar_fields(), nullptr, [](const StructureAt&) { return 6u; }, 4, true});
  add({PCI_CARDBUS_CIS, 4, "CardBus CIS Pointer", {{"Pointer", 0, 31, {}, text_hex<8>}}});
  add({PCI_SUBSYSTEM_VENDOR_ID, 2, "Subsystem Vendor ID", {{"Subsystem Vendor ID", 0, 15, {}, text_hex<4>}}});
  add({PCI_SUBSYSTEM_ID, 2, "Subsystem ID", {{"Subsystem ID", 0, 15, {}, text_hex<4>}}});
  add({PCI_ROM_ADDRESS,
       4,
       "Expansion ROM Base Address",
       {{"Enable", 0, 0}, {"Address", 11, 31, {}, text_high_bits<11>}}});
  add({PCI_MIN_GNT, 1, "Min_Gnt", {{"Min_Gnt", 0, 7}}});
  add({PCI_MAX_LAT, 1, "Max_Lat", {{"Max_Lat", 0, 7}}});
  return out;
}

StructureLayout make_bridge_header() {
  StructureLayout out{1, false, "PCIe r6.0 7.5.1.3", common_header()};
  auto add = [&](RegisterLayout r) { out.registers.push_back(std::move(r)); };
  add({PCI_BASE_ADDRESS_0, 4, "BAR", bar_fields(), nullptr, [](const StructureAt&) { return 2u; }, 4, true});
  add({PCI_PRIMARY_BUS, 1, "Primary Bus Number", {{"Bus", 0, 7, {}, text_hex<2>}}});
  add({PCI_SECONDARY_BUS, 1, "Secondary Bus Number", {{"Bus", 0, 7, {}, text_hex<2>}}});
  add({PCI_SUBORDINATE_BUS, 1, "Subordinate Bus Number", {{"Bus", 0, 7, {}, text_hex<2>}}});
  add({PCI_SEC_LATENCY_TIMER, 1, "Secondary Latency Timer", {{"Timer", 0, 7}}});
  add({PCI_IO_BASE,
       1,
       "I/O Base",
       {{"Width", 0, 3, "16-bit|32-bit"}, {"Address", 4, 7, {}, text_high_bits<12>}}});
  add({PCI_IO_LIMIT,
       1,
       "I/O Limit",
       {{"Width", 0, 3, "16-bit|32-bit"}, {"Address", 4, 7, {}, text_high_bits<12>}}});
  add({PCI_SEC_STATUS,
       2,
       "Secondary Status",
       {{"66 MHz Capable", 5, 5},
        {"Fast Back-to-Back Capable", 7, 7},
        {"Master Data Parity Error", 8, 8},
        {"DEVSEL Timing", 9, 10, "fast|medium|slow|reserved"},
        {"Signaled Target Abort", 11, 11},
        {"Received Target Abort", 12, 12},
        {"Received Master Abort", 13, 13},
        {"Received System Error", 14, 14},
        {"Detected Parity Error", 15, 15}}});
  add({PCI_MEMORY_BASE, 2, "Memory Base", {{"Address", 4, 15, {}, text_high_bits<20>}}});
  add({PCI_MEMORY_LIMIT, 2, "Memory Limit", {{"Address", 4, 15, {}, text_high_bits<20>}}});
  add({PCI_PREF_MEMORY_BASE,
       2,
       "Prefetchable Memory Base",
       {{"Width", 0, 3, "32-bit|64-bit"}, {"Address", 4, 15, {}, text_high_bits<20>}}});
  add({PCI_PREF_MEMORY_LIMIT,
       2,
       "Prefetchable Memory Limit",
       {{"Width", 0, 3, "32-bit|64-bit"}, {"Address", 4, 15, {}, text_high_bits<20>}}});
  add({PCI_PREF_BASE_UPPER32, 4, "Prefetchable Base Upper 32 Bits", {{"Address", 0, 31, {}, text_hex<8>}}});
  add({PCI_PREF_LIMIT_UPPER32, 4, "Prefetchable Limit Upper 32 Bits", {{"Address", 0, 31, {}, text_hex<8>}}});
  add({PCI_IO_BASE_UPPER16, 2, "I/O Base Upper 16 Bits", {{"Address", 0, 15, {}, text_hex<4>}}});
  add({PCI_IO_LIMIT_UPPER16, 2, "I/O Limit Upper 16 Bits", {{"Address", 0, 15, {}, text_hex<4>}}});
  add({PCI_ROM_ADDRESS1,
       4,
       "Expansion ROM Base Address",
       {{"Enable", 0, 0}, {"Address", 11, 31, {}, text_high_bits<11>}}});
  add({PCI_BRIDGE_CONTROL,
       2,
       "Bridge Control",
       {{"Parity Error Response Enable", 0, 0},
        {"SERR# Enable", 1, 1},
        {"ISA Enable", 2, 2},
        {"VGA Enable", 3, 3},
        {"VGA 16-bit Decode", 4, 4},
        {"Master Abort Mode", 5, 5},
        {"Secondary Bus Reset", 6, 6},
        {"Fast Back-to-Back Enable", 7, 7},
        {"Primary Discard Timer", 8, 8},
        {"Secondary Discard Timer", 9, 9},
        {"Discard Timer Status", 10, 10},
        {"Discard Timer SERR# Enable", 11, 11}}});
  return out;
}

// ---- capabilities ----

// Version 1 of the structure ends after what its function needs, version 2 has every register.
unsigned express_version(const StructureAt& p) { return p.read(PCI_EXP_FLAGS, 2) & PCI_EXP_FLAGS_VERS; }
bool has_link(const StructureAt& p) {
  return p.express_type != PCI_EXP_TYPE_RC_END && p.express_type != PCI_EXP_TYPE_RC_EC;
}
bool has_slot(const StructureAt& p) {
  return (p.express_type == PCI_EXP_TYPE_ROOT_PORT || p.express_type == PCI_EXP_TYPE_DOWNSTREAM) &&
         (p.read(PCI_EXP_FLAGS, 2) & PCI_EXP_FLAGS_SLOT) != 0;
}
bool has_root(const StructureAt& p) {
  return p.express_type == PCI_EXP_TYPE_ROOT_PORT || p.express_type == PCI_EXP_TYPE_RC_EC;
}
bool second(const StructureAt& p) { return express_version(p) >= 2; }
bool second_link(const StructureAt& p) { return second(p) && has_link(p); }
bool second_slot(const StructureAt& p) { return second(p) && has_slot(p); }

constexpr string_view kPayload =
    "128 bytes|256 bytes|512 bytes|1024 bytes|2048 bytes|4096 bytes|reserved|reserved";
constexpr string_view kSpeed = "none|2.5 GT/s|5 GT/s|8 GT/s|16 GT/s|32 GT/s|64 GT/s";
constexpr string_view kAspm = "none|L0s|L1|L0s and L1";
constexpr string_view kL0sExit = "< 64 ns|< 128 ns|< 256 ns|< 512 ns|< 1 us|< 2 us|< 4 us|> 4 us";
constexpr string_view kL1Exit = "< 1 us|< 2 us|< 4 us|< 8 us|< 16 us|< 32 us|< 64 us|> 64 us";
constexpr string_view kL0sAccept = "64 ns|128 ns|256 ns|512 ns|1 us|2 us|4 us|no limit";
constexpr string_view kL1Accept = "1 us|2 us|4 us|8 us|16 us|32 us|64 us|no limit";
constexpr string_view kTimeout =
    "50 us to 50 ms|50 us to 100 us|1 ms to 10 ms|reserved|reserved|16 ms to 55 ms|65 ms to 210 "
    "ms|reserved|reserved|"
    "260 ms to 900 ms|1 s to 3.5 s|reserved|reserved|4 s to 13 s|17 s to 64 s|reserved";
constexpr string_view kIndicator = "reserved|on|blink|off";

StructureLayout power_management() {
  return {PCI_CAP_ID_PM,
          false,
          "PCIe r6.0 7.5.2",
          {
              {PCI_PM_PMC,
               2,
               "Power Management Capabilities",
               {{"Version", 0, 2},
                {"PME Clock", 3, 3},
                {"Immediate Readiness on Return to D0", 4, 4},
                {"Device Specific Initialization", 5, 5},
                {"Aux Current", 6, 8, "0 mA|55 mA|100 mA|160 mA|220 mA|270 mA|320 mA|375 mA"},
                {"D1 Support", 9, 9},
                {"D2 Support", 10, 10},
                {"PME from D0", 11, 11},
                {"PME from D1", 12, 12},
                {"PME from D2", 13, 13},
                {"PME from D3hot", 14, 14},
                {"PME from D3cold", 15, 15}}},
              {PCI_PM_CTRL,
               2,
               "Power Management Control/Status",
               {{"Power State", 0, 1, "D0|D1|D2|D3hot"},
                {"No Soft Reset", 3, 3},
                {"PME Enable", 8, 8},
                {"Data Select", 9, 12},
                {"Data Scale", 13, 14},
                {"PME Status", 15, 15}}},
              {PCI_PM_PPB_EXTENSIONS,
               1,
               "Bridge Extensions",
               {{"B2/B3 Support", 6, 6}, {"Bus Power/Clock Control Enable", 7, 7}}},
              {PCI_PM_DATA_REGISTER, 1, "Data", {{"Data", 0, 7}}},
          }};
}

bool msi64(const StructureAt& p) { return (p.read(PCI_MSI_FLAGS, 2) & PCI_MSI_FLAGS_64BIT) != 0; }
bool msi32(const StructureAt& p) { return !msi64(p); }
bool msi_masks(const StructureAt& p) { return (p.read(PCI_MSI_FLAGS, 2) & PCI_MSI_FLAGS_MASKBIT) != 0; }

StructureLayout msi() {
  constexpr string_view vectors = "1|2|4|8|16|32|reserved|reserved";
  return {PCI_CAP_ID_MSI,
          false,
          "PCIe r6.0 7.7.1",
          {
              {PCI_MSI_FLAGS,
               2,
               "Message Control",
               {{"MSI Enable", 0, 0},
                {"Multiple Message Capable", 1, 3, vectors},
                {"Multiple Message Enable", 4, 6, vectors},
                {"64-bit Address Capable", 7, 7},
                {"Per-Vector Masking Capable", 8, 8},
                {"Extended Message Data Capable", 9, 9},
                {"Extended Message Data Enable", 10, 10}}},
              {PCI_MSI_ADDRESS_LO, 4, "Message Address", {{"Address", 0, 31, {}, text_hex<8>}}, msi32},
              {PCI_MSI_ADDRESS_LO, 8, "Message Address", {{"Address", 0, 63, {}, text_hex<16>}}, msi64},
              {PCI_MSI_DATA_32, 2, "Message Data", {{"Data", 0, 15, {}, text_hex<4>}}, msi32},
              {PCI_MSI_DATA_64, 2, "Message Data", {{"Data", 0, 15, {}, text_hex<4>}}, msi64},
              {PCI_MSI_MASK_32,
               4,
               "Mask Bits",
               {{"Mask", 0, 31, {}, text_hex<8>}},
               [](const StructureAt& p) { return msi32(p) && msi_masks(p); }},
              {PCI_MSI_PENDING_32,
               4,
               "Pending Bits",
               {{"Pending", 0, 31, {}, text_hex<8>}},
               [](const StructureAt& p) { return msi32(p) && msi_masks(p); }},
              {PCI_MSI_MASK_64,
               4,
               "Mask Bits",
               {{"Mask", 0, 31, {}, text_hex<8>}},
               [](const StructureAt& p) { return msi64(p) && msi_masks(p); }},
              {PCI_MSI_PENDING_64,
               4,
               "Pending Bits",
               {{"Pending", 0, 31, {}, text_hex<8>}},
               [](const StructureAt& p) { return msi64(p) && msi_masks(p); }},
          }};
}

StructureLayout msix() {
  return {
      PCI_CAP_ID_MSIX,
      false,
      "PCIe r6.0 7.7.2",
      {
          {PCI_MSIX_FLAGS,
           2,
           "Message Control",
           {{"Table Size", 0, 10, {}, text_plus_one}, {"Function Mask", 14, 14}, {"MSI-X Enable", 15, 15}}},
          {PCI_MSIX_TABLE, 4, "Table", {{"BIR", 0, 2}, {"Offset", 3, 31, {}, text_high_bits<3>}}},
          {PCI_MSIX_PBA, 4, "Pending Bit Array", {{"BIR", 0, 2}, {"Offset", 3, 31, {}, text_high_bits<3>}}},
      }};
}

StructureLayout express() {
  StructureLayout out{PCI_CAP_ID_EXP, false, "PCIe r6.0 7.5.3", {}};
  auto add = [&](RegisterLayout r) { out.registers.push_back(std::move(r)); };
  add({PCI_EXP_FLAGS,
       2,
       "PCI Express Capabilities",
       {{"Capability Version", 0, 3},
        {"Device/Port Type", 4, 7,
         "Endpoint|Legacy Endpoint|2|3|Root Port|Upstream Port|Downstream Port|PCI Express to PCI Bridge|PCI "
         "to PCI "
         "Express Bridge|Root Complex Integrated Endpoint|Root Complex Event Collector"},
        {"Slot Implemented", 8, 8},
        {"Interrupt Message Number", 9, 13}}});
  add({PCI_EXP_DEVCAP,
       4,
       "Device Capabilities",
       {{"Max Payload Size Supported", 0, 2, kPayload},
        {"Phantom Functions Supported", 3, 4},
        {"Extended Tag Field Supported", 5, 5},
        {"L0s Acceptable Latency", 6, 8, kL0sAccept},
        {"L1 Acceptable Latency", 9, 11, kL1Accept},
        {"Attention Button Present", 12, 12},
        {"Attention Indicator Present", 13, 13},
        {"Power Indicator Present", 14, 14},
        {"Role-Based Error Reporting", 15, 15},
        {"Captured Slot Power Limit Value", 18, 25},
        {"Captured Slot Power Limit Scale", 26, 27, "1.0x|0.1x|0.01x|0.001x"},
        {"Function Level Reset Capability", 28, 28}}});
  add({PCI_EXP_DEVCTL,
       2,
       "Device Control",
       {{"Correctable Error Reporting Enable", 0, 0},
        {"Non-Fatal Error Reporting Enable", 1, 1},
        {"Fatal Error Reporting Enable", 2, 2},
        {"Unsupported Request Reporting Enable", 3, 3},
        {"Relaxed Ordering Enable", 4, 4},
        {"Max Payload Size", 5, 7, kPayload},
        {"Extended Tag Field Enable", 8, 8},
        {"Phantom Functions Enable", 9, 9},
        {"Aux Power PM Enable", 10, 10},
        {"No Snoop Enable", 11, 11},
        {"Max Read Request Size", 12, 14, kPayload},
        {"Bridge Retry or Function Level Reset", 15, 15}}});
  add({PCI_EXP_DEVSTA,
       2,
       "Device Status",
       {{"Correctable Error Detected", 0, 0},
        {"Non-Fatal Error Detected", 1, 1},
        {"Fatal Error Detected", 2, 2},
        {"Unsupported Request Detected", 3, 3},
        {"Aux Power Detected", 4, 4},
        {"Transactions Pending", 5, 5}}});
  add({PCI_EXP_LNKCAP,
       4,
       "Link Capabilities",
       {{"Max Link Speed", 0, 3, kSpeed},
        {"Maximum Link Width", 4, 9, {}, text_width},
        {"ASPM Support", 10, 11, kAspm},
        {"L0s Exit Latency", 12, 14, kL0sExit},
        {"L1 Exit Latency", 15, 17, kL1Exit},
        {"Clock Power Management", 18, 18},
        {"Surprise Down Error Reporting Capable", 19, 19},
        {"Data Link Layer Link Active Reporting Capable", 20, 20},
        {"Link Bandwidth Notification Capability", 21, 21},
        {"ASPM Optionality Compliance", 22, 22},
        {"Port Number", 24, 31}},
       has_link});
  add({PCI_EXP_LNKCTL,
       2,
       "Link Control",
       {{"ASPM Control", 0, 1, kAspm},
        {"Read Completion Boundary", 3, 3, "64 bytes|128 bytes"},
        {"Link Disable", 4, 4},
        {"Retrain Link", 5, 5},
        {"Common Clock Configuration", 6, 6},
        {"Extended Synch", 7, 7},
        {"Enable Clock Power Management", 8, 8},
        {"Hardware Autonomous Width Disable", 9, 9},
        {"Link Bandwidth Management Interrupt Enable", 10, 10},
        {"Link Autonomous Bandwidth Interrupt Enable", 11, 11},
        {"DRS Signaling Control", 14, 15}},
       has_link});
  add({PCI_EXP_LNKSTA,
       2,
       "Link Status",
       {{"Current Link Speed", 0, 3, kSpeed},
        {"Negotiated Link Width", 4, 9, {}, text_width},
        {"Link Training", 11, 11},
        {"Slot Clock Configuration", 12, 12},
        {"Data Link Layer Link Active", 13, 13},
        {"Link Bandwidth Management Status", 14, 14},
        {"Link Autonomous Bandwidth Status", 15, 15}},
       has_link});
  add({PCI_EXP_SLTCAP,
       4,
       "Slot Capabilities",
       {{"Attention Button Present", 0, 0},
        {"Power Controller Present", 1, 1},
        {"MRL Sensor Present", 2, 2},
        {"Attention Indicator Present", 3, 3},
        {"Power Indicator Present", 4, 4},
        {"Hot-Plug Surprise", 5, 5},
        {"Hot-Plug Capable", 6, 6},
        {"Slot Power Limit Value", 7, 14},
        {"Slot Power Limit Scale", 15, 16, "1.0x|0.1x|0.01x|0.001x"},
        {"Electromechanical Interlock Present", 17, 17},
        {"No Command Completed Support", 18, 18},
        {"Physical Slot Number", 19, 31}},
       has_slot});
  add({PCI_EXP_SLTCTL,
       2,
       "Slot Control",
       {{"Attention Button Pressed Enable", 0, 0},
        {"Power Fault Detected Enable", 1, 1},
        {"MRL Sensor Changed Enable", 2, 2},
        {"Presence Detect Changed Enable", 3, 3},
        {"Command Completed Interrupt Enable", 4, 4},
        {"Hot-Plug Interrupt Enable", 5, 5},
        {"Attention Indicator Control", 6, 7, kIndicator},
        {"Power Indicator Control", 8, 9, kIndicator},
        {"Power Controller Control", 10, 10, "on|off"},
        {"Electromechanical Interlock Control", 11, 11},
        {"Data Link Layer State Changed Enable", 12, 12},
        {"Auto Slot Power Limit Disable", 13, 13}},
       has_slot});
  add({PCI_EXP_SLTSTA,
       2,
       "Slot Status",
       {{"Attention Button Pressed", 0, 0},
        {"Power Fault Detected", 1, 1},
        {"MRL Sensor Changed", 2, 2},
        {"Presence Detect Changed", 3, 3},
        {"Command Completed", 4, 4},
        {"MRL Sensor State", 5, 5, "closed|open"},
        {"Presence Detect State", 6, 6},
        {"Electromechanical Interlock Status", 7, 7},
        {"Data Link Layer State Changed", 8, 8}},
       has_slot});
  add({PCI_EXP_RTCTL,
       2,
       "Root Control",
       {{"System Error on Correctable Error Enable", 0, 0},
        {"System Error on Non-Fatal Error Enable", 1, 1},
        {"System Error on Fatal Error Enable", 2, 2},
        {"PME Interrupt Enable", 3, 3},
        {"CRS Software Visibility Enable", 4, 4}},
       has_root});
  add({PCI_EXP_RTCAP, 2, "Root Capabilities", {{"CRS Software Visibility", 0, 0}}, has_root});
  add({PCI_EXP_RTSTA,
       4,
       "Root Status",
       {{"PME Requester ID", 0, 15, {}, text_hex<4>}, {"PME Status", 16, 16}, {"PME Pending", 17, 17}},
       has_root});
  add({PCI_EXP_DEVCAP2,
       4,
       "Device Capabilities 2",
       {{"Completion Timeout Ranges", 0, 3,
         "none|A|B|A and B|reserved|reserved|B and C|A, B and "
         "C|reserved|reserved|reserved|reserved|reserved|reserved|B, C "
         "and D|A, B, C and D"},
        {"Completion Timeout Disable Supported", 4, 4},
        {"ARI Forwarding Supported", 5, 5},
        {"AtomicOp Routing Supported", 6, 6},
        {"32-bit AtomicOp Completer Supported", 7, 7},
        {"64-bit AtomicOp Completer Supported", 8, 8},
        {"128-bit CAS Completer Supported", 9, 9},
        {"No RO-enabled PR-PR Passing", 10, 10},
        {"LTR Mechanism Supported", 11, 11},
        {"TPH Completer Supported", 12, 13, "none|TPH|reserved|TPH and Extended TPH"},
        {"10-Bit Tag Completer Supported", 16, 16},
        {"10-Bit Tag Requester Supported", 17, 17},
        {"OBFF Supported", 18, 19, "none|message|WAKE#|WAKE# and message"},
        {"Extended Fmt Field Supported", 20, 20},
        {"End-End TLP Prefix Supported", 21, 21},
        {"Max End-End TLP Prefixes", 22, 23, "4|1|2|3"},
        {"Emergency Power Reduction Supported", 24, 25,
         "none|device specific|form factor or device specific|reserved"},
        {"Emergency Power Reduction Initialization Required", 26, 26},
        {"FRS Supported", 31, 31}},
       second});
  add({PCI_EXP_DEVCTL2,
       2,
       "Device Control 2",
       {{"Completion Timeout Value", 0, 3, kTimeout},
        {"Completion Timeout Disable", 4, 4},
        {"ARI Forwarding Enable", 5, 5},
        {"AtomicOp Requester Enable", 6, 6},
        {"AtomicOp Egress Blocking", 7, 7},
        {"IDO Request Enable", 8, 8},
        {"IDO Completion Enable", 9, 9},
        {"LTR Mechanism Enable", 10, 10},
        {"Emergency Power Reduction Request", 11, 11},
        {"10-Bit Tag Requester Enable", 12, 12},
        {"OBFF Enable", 13, 14, "off|message A|message B|WAKE#"},
        {"End-End TLP Prefix Blocking", 15, 15}},
       second});
  add({PCI_EXP_DEVSTA2, 2, "Device Status 2", {}, second});
  add({PCI_EXP_LNKCAP2,
       4,
       "Link Capabilities 2",
       {{"Supported Link Speeds", 1, 7, {}, text_speeds},
        {"Crosslink Supported", 8, 8},
        {"Lower SKP OS Generation Supported", 9, 15, {}, text_speeds},
        {"Lower SKP OS Reception Supported", 16, 22, {}, text_speeds},
        {"Retimer Presence Detect Supported", 23, 23},
        {"Two Retimers Presence Detect Supported", 24, 24},
        {"DRS Supported", 31, 31}},
       second_link});
  add({PCI_EXP_LNKCTL2,
       2,
       "Link Control 2",
       {{"Target Link Speed", 0, 3, kSpeed},
        {"Enter Compliance", 4, 4},
        {"Hardware Autonomous Speed Disable", 5, 5},
        {"Selectable De-emphasis", 6, 6, "-6 dB|-3.5 dB"},
        {"Transmit Margin", 7, 9},
        {"Enter Modified Compliance", 10, 10},
        {"Compliance SOS", 11, 11},
        {"Compliance Preset/De-emphasis", 12, 15}},
       second_link});
  add({PCI_EXP_LNKSTA2,
       2,
       "Link Status 2",
       {{"Current De-emphasis Level", 0, 0, "-6 dB|-3.5 dB"},
        {"Equalization 8 GT/s Complete", 1, 1},
        {"Equalization 8 GT/s Phase 1 Successful", 2, 2},
        {"Equalization 8 GT/s Phase 2 Successful", 3, 3},
        {"Equalization 8 GT/s Phase 3 Successful", 4, 4},
        {"Link Equalization Request 8 GT/s", 5, 5},
        {"Retimer Presence Detected", 6, 6},
        {"Two Retimers Presence Detected", 7, 7},
        {"Crosslink Resolution", 8, 9, "none|upstream port|downstream port|incomplete"},
        {"Flit Mode Status", 10, 10},
        {"Downstream Component Presence", 12, 14,
         "link down, not known|link down, not present|link down, present|reserved|link up, present|link up, "
         "present, DRS|"
         "reserved|reserved"},
        {"DRS Message Received", 15, 15}},
       second_link});
  add({PCI_EXP_SLTCAP2, 4, "Slot Capabilities 2", {{"In-Band PD Disable Supported", 0, 0}}, second_slot});
  add({PCI_EXP_SLTCTL2, 2, "Slot Control 2", {}, second_slot});
  add({PCI_EXP_SLTSTA2, 2, "Slot Status 2", {}, second_slot});
  return out;
}

StructureLayout vendor_specific() {
  return {PCI_CAP_ID_VNDR, false, "PCIe r6.0 7.9.4", {{2, 1, "Length", {{"Length", 0, 7}}}}};
}

StructureLayout subsystem() {
  return {PCI_CAP_ID_SSVID,
          false,
          "PCIe r6.0 7.9.23",
          {{4, 2, "Subsystem Vendor ID", {{"Subsystem Vendor ID", 0, 15, {}, text_hex<4>}}},
           {6, 2, "Subsystem ID", {{"Subsystem ID", 0, 15, {}, text_hex<4>}}}}};
}

StructureLayout vital_product_data() {
  return {PCI_CAP_ID_VPD,
          false,
          "PCIe r6.0 7.9.18",
          {{2, 2, "VPD Address", {{"Address", 0, 14, {}, text_hex<4>}, {"F", 15, 15}}},
           {4, 4, "VPD Data", {{"Data", 0, 31, {}, text_hex<8>}}}}};
}

StructureLayout advanced_features() {
  return {PCI_CAP_ID_AF,
          false,
          "PCIe r6.0 7.9.21",
          {{2, 1, "Length", {{"Length", 0, 7}}},
           {3,
            1,
            "AF Capabilities",
            {{"Transactions Pending Capable", 0, 0}, {"Function Level Reset Capable", 1, 1}}},
           {4, 1, "AF Control", {{"Initiate Function Level Reset", 0, 0}}},
           {5, 1, "AF Status", {{"Transactions Pending", 0, 0}}}}};
}

}  // namespace

const StructureLayout& endpoint_header() {
  static const StructureLayout layout = make_endpoint_header();
  return layout;
}

const StructureLayout& bridge_header() {
  static const StructureLayout layout = make_bridge_header();
  return layout;
}

std::span<const StructureLayout> standard_layouts() {
  static const std::vector<StructureLayout> all = {
      power_management(),  vital_product_data(), msi(), vendor_specific(), subsystem(), express(), msix(),
      advanced_features(),
  };
  return all;
}

}  // namespace kz
