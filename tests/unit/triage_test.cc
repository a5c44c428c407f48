// SPDX-License-Identifier: GPL-2.0-or-later
// Hand-written sets of facts, as a person would judge them.
#include <gtest/gtest.h>

#include <set>

#include "tools/triage/classify.h"

namespace kz::triage {
namespace {

using nlohmann::json;
using Facts = std::vector<Evidence>;

Evidence fact(std::string_view kind, json detail) { return {std::string(kind), std::move(detail)}; }

Evidence no_answer(json more) {
  json d = {{"command", "COPY"}, {"others", "complete"},      {"heartbeat", "alive"},  {"after", "valid"},
            {"fetched", true},   {"again_after_ring", false}, {"same_queue", "stuck"}, {"written", "no"}};
  d.update(more);
  return fact(ev::no_completion, d);
}

struct Case {
  const char* name;
  FaultClass want;
  Facts facts;
};

std::vector<Case> cases() {
  using C = FaultClass;
  auto mismatch = [](const char* cells) {
    return fact(ev::data_mismatch, {{"cells", cells}, {"shape", "bit"}});
  };
  auto wrong = fact(ev::compute_wrong, {{"op", "matmul"}, {"what", "bits"}});
  auto slow = fact(ev::slow, {{"what", "latency"}, {"ratio", 3}});
  return {
      {"bad cells explain wrong data and wrong sums",
       C::hbm_ecc,
       {wrong, mismatch("good"), fact(ev::march_mismatch, {{"shape", "cell"}})}},
      {"wrong data over bad cells", C::hbm_ecc, {wrong, mismatch("bad")}},
      {"wrong data over good cells", C::dma_corruption, {wrong, mismatch("good")}},
      {"a wrong product alone", C::compute_sdc, {wrong}},
      {"an aliased address", C::hbm_ecc, {fact(ev::address_fault, {{"kind", "alias"}})}},
      {"a counter that does not count", C::hbm_ecc, {fact(ev::ecc, {{"what", "counter_stuck"}})}},
      {"a dead heartbeat explains silence",
       C::firmware_hang,
       {no_answer({{"heartbeat", "stopped"}}), fact(ev::audit, {{"field", "unaccounted"}})}},
      {"silence after a malformed command", C::firmware_hang, {no_answer({{"after", "malformed"}})}},
      {"a missed doorbell", C::queue_protocol, {no_answer({{"again_after_ring", true}, {"fetched", false}})}},
      {"a completion that never came", C::queue_protocol, {no_answer({{"same_queue", "complete"}})}},
      {"completions that land elsewhere",
       C::queue_protocol,
       {no_answer({{"others", "stuck"}, {"counted", "yes"}})}},
      {"a queue that hangs and counts nothing", C::firmware_hang, {no_answer({{"counted", "no"}})}},
      {"a queue that hangs", C::firmware_hang, {no_answer(json::object())}},
      {"all queues hang", C::firmware_hang, {no_answer({{"others", "stuck"}, {"same_queue", "complete"}})}},
      {"heat explains slowness",
       C::thermal,
       {slow, fact(ev::limits, {{"what", "throttled"}, {"reasons", 1}})}},
      {"a power cap explains slowness",
       C::power,
       {slow, fact(ev::limits, {{"what", "throttled"}, {"reasons", 2}})}},
      {"a narrow link explains slowness", C::link_signal, {slow, fact(ev::link, {{"what", "narrow"}})}},
      {"errors of the link", C::link_signal, {fact(ev::aer, {{"severity", "correctable"}, {"count", 3}})}},
      {"slowness alone", C::performance_regression, {slow}},
      {"a stopped fan", C::thermal, {fact(ev::limits, {{"what", "fan_stopped"}})}},
      {"over the cap", C::power, {fact(ev::limits, {{"what", "over_cap"}})}},
      {"brown-out explains loss",
       C::power,
       {fact(ev::lost, {{"how", "all_ones"}, {"under_load", false}}),
        fact(ev::limits, {{"what", "brownout"}})}},
      {"lost under load", C::power, {fact(ev::lost, {{"how", "all_ones"}, {"under_load", true}})}},
      {"removed",
       C::hotplug_removal,
       {fact(ev::lost, {{"how", "all_ones"}, {"under_load", false}}), no_answer(json::object()),
        mismatch("unknown")}},
      {"all ones in telemetry are no heat",
       C::firmware_hang,
       {fact(ev::limits, {{"what", "over_limit"}, {"value", 4294967}}),
        fact(ev::telemetry, {{"what", "all_ones"}})}},
      {"the device says why it reset",
       C::thermal,
       {no_answer(json::object()), fact(ev::lost, {{"how", "no_reply"}}),
        fact(ev::spontaneous_reset, {{"reason", 5}})}},
      {"a firmware crash explains lost commands",
       C::firmware_hang,
       {fact(ev::audit, {{"field", "unaccounted"}}), fact(ev::spontaneous_reset, {{"reason", 6}})}},
      {"an interrupt lost",
       C::queue_protocol,
       {fact(ev::audit, {{"field", "completion_without_interrupt"}})}},
      {"stale data behind a completion",
       C::dma_corruption,
       {fact(ev::fence_passed, {{"first", "FILL"}}), fact(ev::data_late, {{"after_ns", 1000}})}},
      {"wrong firmware", C::firmware_mismatch, {fact(ev::firmware, {{"what", "version"}})}},
      {"an update that broke a job",
       C::firmware_hang,
       {fact(ev::status_wrong, {}), fact(ev::firmware, {{"what", "job_broken"}})}},
      {"memory of another", C::security_isolation, {fact(ev::isolation, {{"how", "read"}})}},
      {"memory not cleared", C::security_isolation, {fact(ev::hbm_leak, {}), fact(ev::hbm_not_cleared, {})}},
      {"DMA after unmap",
       C::iommu_dma,
       {fact(ev::status_wrong, {}), fact(ev::dma_illegal, {{"how", "after_unmap"}})}},
      {"DMA without bus master", C::queue_protocol, {fact(ev::dma_illegal, {{"how", "bus_master_off"}})}},
      {"a leak", C::resource_exhaustion, {fact(ev::hbm_leak, {{"bytes", 65536}})}},
      {"a broken capability chain", C::device_spec_violation, {fact(ev::pci_rule, {{"rule", "x"}})}},
      {"a wrong status", C::queue_protocol, {fact(ev::status_wrong, {{"command", "NOP"}})}},
      {"a clock that runs backwards", C::firmware_hang, {fact(ev::telemetry, {{"what", "clock_backwards"}})}},
      {"an endless reset", C::firmware_hang, {fact(ev::reset, {{"what", "never_ready"}})}},
  };
}

TEST(Classify, AsAPersonWould) {
  for (const Case& c : cases()) {
    Diagnosis d = classify(c.facts);
    EXPECT_EQ(to_string(d.cls), to_string(c.want)) << c.name << ": " << d.rule;
    ASSERT_TRUE(d.first_cause) << c.name;
    EXPECT_LT(*d.first_cause, c.facts.size());
    EXPECT_FALSE(d.reason.empty());
  }
}

TEST(Classify, NamesTheFirstCauseNotTheFirstFact) {
  Facts facts = {fact(ev::compute_wrong, {}), fact(ev::march_mismatch, {{"addr", "0x1"}}),
                 fact(ev::march_mismatch, {{"addr", "0x2"}})};
  EXPECT_EQ(classify(facts).first_cause, 1u);
}

TEST(Classify, NothingMeansNothing) {
  Diagnosis d = classify({});
  EXPECT_EQ(d.cls, FaultClass::unknown);
  EXPECT_EQ(d.confidence, Confidence::low);
  EXPECT_FALSE(d.first_cause);
}

TEST(Classify, VerdictsSpeakOnlyWhereNoFactDoes) {
  std::vector<TestVerdict> verdicts = {{"a.b", Verdict::fail, "x"}, {"c.d", Verdict::device_lost, "y"}};
  EXPECT_EQ(classify({}, verdicts).cls, FaultClass::hotplug_removal);
  EXPECT_EQ(classify({}, verdicts).confidence, Confidence::low);
  Facts facts = {fact(ev::ecc, {{"what", "ce"}})};
  EXPECT_EQ(classify(facts, verdicts).cls, FaultClass::hbm_ecc);
  EXPECT_EQ(classify({}, std::span(verdicts).first(1)).cls, FaultClass::unknown);
}

TEST(Classify, SurvivesAnyDetail) {
  for (json detail : {json(), json(3), json("text"), json::array({1, 2}),
                      json{{"what", 5}, {"reason", "x"}, {"how", nullptr}}})
    for (std::string_view kind : {ev::spontaneous_reset, ev::telemetry, ev::no_completion, ev::data_mismatch,
                                  ev::lost, ev::limits, ev::reset, std::string_view("nobody's")})
      EXPECT_NO_THROW(classify(Facts{fact(kind, detail)}));
}

TEST(Classify, EveryKindOfFactLeadsSomewhere) {
  for (std::string_view kind : {ev::data_mismatch,
                                ev::guard_overwritten,
                                ev::data_late,
                                ev::data_rewritten,
                                ev::march_mismatch,
                                ev::address_fault,
                                ev::ecc,
                                ev::retired_reused,
                                ev::hbm_not_cleared,
                                ev::isolation,
                                ev::hbm_leak,
                                ev::alloc_wrong,
                                ev::dma_illegal,
                                ev::dma_address,
                                ev::status_wrong,
                                ev::no_completion,
                                ev::audit,
                                ev::wrong_vector,
                                ev::fence_passed,
                                ev::starved,
                                ev::abort_spread,
                                ev::ring_overrun,
                                ev::compute_wrong,
                                ev::telemetry,
                                ev::limits,
                                ev::firmware,
                                ev::reset,
                                ev::spontaneous_reset,
                                ev::lost,
                                ev::slow,
                                ev::pci_rule,
                                ev::host_access,
                                ev::driver,
                                ev::kernel_log})
    EXPECT_NE(classify(Facts{fact(kind, json::object())}).cls, FaultClass::unknown) << kind;
}

TEST(Classify, DriversByWhatTheyBreak) {
  auto of = [](const char* what) { return classify(Facts{fact(ev::driver, {{"what", what}})}).cls; };
  for (auto what : {"padding", "rights", "not_cleared"})
    EXPECT_EQ(of(what), FaultClass::security_isolation) << what;
  for (auto what : {"leak", "hangs", "errno", "abi", "never_unloads"})
    EXPECT_EQ(of(what), FaultClass::driver_bug) << what;
  EXPECT_EQ(of("asleep"), FaultClass::power_management);
  EXPECT_EQ(of("refused"), FaultClass::unknown) << "as it should be";
}

TEST(Classify, NamesRoundTrip) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(FaultClass::unknown); ++i) {
    auto c = static_cast<FaultClass>(i);
    names.insert(to_string(c));
    EXPECT_EQ(parse_class(to_string(c)), c);
  }
  EXPECT_EQ(names.size(), 21u);
  EXPECT_FALSE(parse_class("nonsense"));
  std::set<std::string_view> rules;
  for (const auto& r : rule_texts()) EXPECT_TRUE(rules.insert(r.name).second) << r.name << " twice";
}

}  // namespace
}  // namespace kz::triage
