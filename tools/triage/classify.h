// SPDX-License-Identifier: GPL-2.0-or-later
// From facts to a class: what kind of fault explains the evidence of a run. A pure function; it reads what
// the journal holds and nothing else.
//
// The rules are an ordered table (classify.cc): causes stand before their consequences, so bad cells explain
// wrong data and wrong matmuls, a dead firmware explains timeouts, heat explains slowness. The first rule
// that a fact satisfies gives the class; the earliest such fact is the first cause.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tools/journal/evidence.h"
#include "tools/journal/verdict.h"

namespace kz::triage {

enum class FaultClass : uint8_t {
  link_signal,
  power,
  thermal,
  hbm_ecc,
  driver_bug,
  firmware_hang,
  firmware_mismatch,
  iommu_dma,
  resource_exhaustion,
  hotplug_removal,
  power_management,
  bios_bar,
  compute_sdc,
  dma_corruption,
  queue_protocol,
  security_isolation,
  performance_regression,
  permission_node_missing,
  abi_new_kernel,
  device_spec_violation,
  unknown
};
std::string_view to_string(FaultClass c);  // "link_signal", ...
std::optional<FaultClass> parse_class(std::string_view text);

enum class Confidence : uint8_t { low, medium, high };
std::string_view to_string(Confidence c);

struct TestVerdict {
  std::string test;
  Verdict verdict = Verdict::pass;
  std::string reason;
};

struct Diagnosis {
  FaultClass cls = FaultClass::unknown;
  Confidence confidence = Confidence::low;
  std::optional<size_t> first_cause;  // index into the facts
  std::string rule;                   // name of the rule that gave the class
  std::string reason;                 // one sentence
};

// Facts and verdicts in the order of the journal. Verdicts speak only where no fact does.
Diagnosis classify(std::span<const Evidence> facts, std::span<const TestVerdict> verdicts = {});

struct RuleText {
  std::string_view name, means;
  FaultClass cls;
  Confidence confidence;
};
// The table, in order.
std::span<const RuleText> rule_texts();

// Evidence of the kind `driver` that a passing test leaves too: what the kernel refused and why, what a
// platform took away. Its `what`; no fault by itself.
bool is_driver_note(std::string_view what);

}  // namespace kz::triage
