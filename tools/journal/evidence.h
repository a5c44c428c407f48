// SPDX-License-Identifier: GPL-2.0-or-later
// Evidence: what a test saw, as facts in a fixed vocabulary. Tests write it, the journal keeps it, the
// classifier in tools/triage reads it and nothing else. A fact says what was observed, never what somebody
// believes to be the cause.
//
// A record is {"kind": KIND, "detail": {...}}. The details that a kind must carry stand with it; more may be
// added.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kz {

struct Evidence {
  std::string kind;
  nlohmann::json detail;
};

namespace ev {
// Bytes differ from what was written. "path": "host>hbm>host" | "hbm>hbm" | "aperture" | "sg" | ...; "first":
// offset; "bytes": count; "length"; "shape": "bit" | "zeroes" | "stale" | "shifted" | "swapped_bytes" |
// "tail" | "head" | "chunk_edge" | "swapped_pieces" | "mixed"; "reread": "same" | "differs" | "good";
// "cells": "bad" (march over the same cells fails) | "good" | "unknown"; "moved_again": "good" | "bad" (same
// copy repeated).
inline constexpr std::string_view data_mismatch = "data.mismatch";
// Bytes outside the target changed. "where": "before" | "after"; "bytes"; "path"
inline constexpr std::string_view guard_overwritten = "data.guard_overwritten";
// Data was not there when its completion was seen, and was there later. "after_ns"
inline constexpr std::string_view data_late = "data.late";
// Memory changed without being asked after the completion ("late second transfer"). "after_ns"
inline constexpr std::string_view data_rewritten = "data.rewritten";
// A march element read the wrong value. "test"; "element"; "op"; "addr" (physical where known); "expected";
// "read"; "xor"; "shape": "cell" | "row" | "column" | "lane" | "bank" | "channel" | "address_line" |
// "scattered"; "reread": "hard" | "intermittent"; "celsius"; "count"
inline constexpr std::string_view march_mismatch = "march.mismatch";
// Two addresses answer as one, or an address has no cell. "kind": "alias" | "no_cell"; "addresses"
inline constexpr std::string_view address_fault = "march.address";
// ECC: "what": "ce" | "ue" | "poison" | "counter_stuck" | "counter_wrong" | "miscorrected"; "channel";
// "delta"
inline constexpr std::string_view ecc = "ecc";
// A page that was retired came back from the allocator. "addr"
inline constexpr std::string_view retired_reused = "hbm.retired_reused";
// HBM of a new owner or after a reset was not zero ("pattern": whose bytes). "after": "free" | "reset" |
// "context"
inline constexpr std::string_view hbm_not_cleared = "hbm.not_cleared";
// One context reached or was given another's page. "how": "read" | "write" | "same_page" |
// "privileged" (an ordinary context was allowed a privileged command) | "second_client"
inline constexpr std::string_view isolation = "hbm.isolation";
// Free HBM did not return to its base. "bytes"; "cycles"; "slope_bytes_per_cycle"
inline constexpr std::string_view hbm_leak = "hbm.leak";
// Allocation ended other than it should. "asked"; "expected"; "got"
inline constexpr std::string_view alloc_wrong = "hbm.alloc_wrong";
// DMA reached or claimed to reach memory it may not. "how": "unmapped" | "read_only" | "after_unmap" |
// "bus_master_off"; "status"; "touched": bool
inline constexpr std::string_view dma_illegal = "dma.illegal";
// The device emitted a bus address other than the one given. "given"; "seen"; "bits"
inline constexpr std::string_view dma_address = "dma.address";
// A command ended with another status than the ABI says. "command"; "expected"; "got"
inline constexpr std::string_view status_wrong = "queue.status";
// No completion within the budget. "command"; "budget_ms"; "others": "complete" | "stuck" (other queues);
// "heartbeat": "alive" | "stopped" | "unknown"; "after": what was sent ("malformed" | "zero_size" | "valid");
// "fetched": bool (SQ_HEAD moved past it); "again_after_ring": bool (ringing again brought it); "same_queue":
// "complete" | "stuck" | "unknown" (a NOP behind it); "written": "yes" | "no" | "unknown" (the device counts
// a completion that nobody saw); "counted": "yes" | "no" | "unknown" (its telemetry counts that NOP as done);
// "fatal": KZ_RR_* where the status register says that the firmware gave up
inline constexpr std::string_view no_completion = "queue.no_completion";
// A count of struct QueueAudit that must be 0 is not. "field"; "count"; "queue"
inline constexpr std::string_view audit = "queue.audit";
// An interrupt came on another vector than the queue's. "expected"; "seen"
inline constexpr std::string_view wrong_vector = "queue.wrong_vector";
// Work was done before the fence in front of it. "first"; "second"
inline constexpr std::string_view fence_passed = "queue.fence_passed";
// Equal queues got unequal service. "shares"
inline constexpr std::string_view starved = "queue.starved";
// An abort took more than its command. "target"; "also"
inline constexpr std::string_view abort_spread = "queue.abort_spread";
// A full ring was not held back: entries lost or overwritten. "lost"
inline constexpr std::string_view ring_overrun = "queue.overrun";
// Matmul or vector result wrong. "op"; "dtype"; "shape": [m,n,k]; "wrong": count; "where": "element" | "row"
// | "column" | "tail" | "all"; "what": "bits" | "nan" | "inf" | "denormal" | "sign" | "wrap" | "rounding";
// "rerun": "same" | "differs" | "good"; "max_err"; "bound"; "celsius"
inline constexpr std::string_view compute_wrong = "compute.wrong";
// Telemetry: "what": "frozen" | "all_ones" | "implausible" | "heartbeat_stopped" | "clock_backwards" |
// "missing"; "field"
inline constexpr std::string_view telemetry = "telemetry";
// A temperature, power, fan or clock value past its limit or trend. "what": "over_limit" | "climbing" |
// "throttled" | "fan_stopped" | "over_cap" | "brownout"; "value"; "limit"; "under_load": bool; "celsius"
inline constexpr std::string_view limits = "limits";
// Firmware version, image or identity is not what it should be. "what": "version" | "bad_image_accepted" |
// "image_refused" | "job_broken" (an update disturbed a command that ran); "got"; "want"
inline constexpr std::string_view firmware = "firmware";
// Reset: "kind"; "what": "never_ready" | "count_wrong" | "reason_wrong" | "state_kept" | "config_lost"; "ms"
inline constexpr std::string_view reset = "reset";
// A device reset, crash or fatal state nobody asked for. "reason" (KZ_RR_*); "during": what ran
inline constexpr std::string_view spontaneous_reset = "reset.spontaneous";
// Device lost. "how": "all_ones" | "zeroes" | "closed" | "no_reply" | "answers_again"; "under_load": bool;
// "back": bool
inline constexpr std::string_view lost = "device.lost";
// Speed: "what": "bandwidth" | "latency" | "tail" | "trend"; "value"; "reference"; "ratio"
inline constexpr std::string_view slow = "slow";
// A rule of the PCI specification is broken. "rule"; "offset"; "got"
inline constexpr std::string_view pci_rule = "pci.rule";
// The link runs below what both ends can do. "what": "narrow" | "slow"; "got"; "max" (both as "x8" or "8
// GT/s")
inline constexpr std::string_view link = "link";
// AER counters or status bits of the device are not zero. "severity": "correctable" | "nonfatal" | "fatal";
// "count"
inline constexpr std::string_view aer = "aer";
// Node, permission or limit on the host. "what"; "path"
inline constexpr std::string_view host_access = "host.access";
// A kernel driver or its module does not hold. "what": "left_behind" | "leak" | "never_unloads" | "hangs" |
// "refused" (a load, as it should be; "explained", "cure") | "abi" | "errno" | "lost" | "padding" | "rights"
// | "not_cleared" | "asleep" (lost over a sleep) | "recovered_without_effect" | ...; more by what
inline constexpr std::string_view driver = "driver";
// A line of the kernel log that counts against the test. "line"
inline constexpr std::string_view kernel_log = "kernel.log";
}  // namespace ev

}  // namespace kz
