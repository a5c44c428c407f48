// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/report/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kz {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json metric(const char* name, double value) { return {{"name", name}, {"value", value}, {"unit", "us"}}; }

RunSummary run_of(Verdict v, const std::string& kernel, std::vector<double> latency) {
  RunSummary run;
  run.device = "softtpu:";
  run.environment = {{"kernel", kernel}, {"device", {{"firmware", "1.4.2"}, {"link", "speed 4 x16"}}}};
  run.results.push_back({.id = "a.one", .level = 1, .verdict = v});
  for (double x : latency) run.results[0].metrics.push_back(metric("p50", x));
  return run;
}

TEST(Compare, EqualRunsAreTheSame) {
  RunSummary run = run_of(Verdict::pass, "6.1", {10});
  Comparison c = compare(run, run, 0.5);
  EXPECT_TRUE(c.same());
  EXPECT_EQ(to_terminal(c), "nothing changed\n");
}

TEST(Compare, NamesVerdictsThatChanged) {
  Comparison c = compare(run_of(Verdict::pass, "6.1", {}), run_of(Verdict::fail, "6.1", {}), 0.5);
  ASSERT_EQ(c.verdicts.size(), 1u);
  EXPECT_EQ(c.verdicts[0].what, "a.one");
  EXPECT_EQ(c.verdicts[0].before, "pass");
  EXPECT_EQ(c.verdicts[0].after, "fail");
  EXPECT_FALSE(c.same());
}

TEST(Compare, ATestOfOneRunOnlyIsAbsentInTheOther) {
  RunSummary more = run_of(Verdict::pass, "6.1", {}), less = more;
  more.results.push_back({.id = "b.two", .level = 2, .verdict = Verdict::pass});
  Comparison c = compare(more, less, 0.5);
  ASSERT_EQ(c.verdicts.size(), 1u);
  EXPECT_EQ(c.verdicts[0].after, "absent");
}

TEST(Compare, NamesTheEnvironmentThatChanged) {
  RunSummary after = run_of(Verdict::pass, "6.12", {});
  after.environment["device"]["firmware"] = "1.5.0";
  after.environment["device"].erase("link");
  after.environment["memlock_kib"] = 8192;
  Comparison c = compare(run_of(Verdict::pass, "6.1", {}), after, 0.5);
  std::map<std::string, std::string> got;
  for (auto& x : c.environment) got[x.what] = x.before + ">" + x.after;
  EXPECT_EQ(got, (std::map<std::string, std::string>{{"kernel", "6.1>6.12"},
                                                     {"device.firmware", "1.4.2>1.5.0"},
                                                     {"device.link", "speed 4 x16>absent"},
                                                     {"memlock_kib", "absent>8192"}}));
}

TEST(Compare, MeasurementsMoveByMoreThanTheThreshold) {
  // Medians: 10 and 15. Half more is the threshold itself and does not count.
  RunSummary a = run_of(Verdict::pass, "6.1", {9, 10, 500}), b = run_of(Verdict::pass, "6.1", {15, 1, 16});
  EXPECT_TRUE(compare(a, b, 0.5).metrics.empty());
  Comparison c = compare(a, b, 0.49);
  ASSERT_EQ(c.metrics.size(), 1u);
  EXPECT_EQ(c.metrics[0].what, "a.one p50");
  EXPECT_EQ(c.metrics[0].before, "10 us");
  EXPECT_EQ(c.metrics[0].after, "15 us");
  EXPECT_EQ(compare(b, a, 0.3).metrics.size(), 1u);  // down by a third
  EXPECT_TRUE(compare(b, a, 0.4).metrics.empty());
  RunSummary zero = run_of(Verdict::pass, "6.1", {0});
  EXPECT_TRUE(compare(zero, zero, 0).metrics.empty());
  EXPECT_EQ(compare(zero, a, 0.5).metrics.size(), 1u);
}

TEST(Compare, JsonHoldsTheSame) {
  json j = to_json(compare(run_of(Verdict::pass, "6.1", {1}), run_of(Verdict::crash, "6.2", {9}), 0.5));
  EXPECT_EQ(j["schema"], 1);
  EXPECT_EQ(j["verdicts"][0]["after"], "crash");
  EXPECT_EQ(j["environment"][0]["what"], "kernel");
  EXPECT_EQ(j["metrics"][0]["before"], "1 us");
}

}  // namespace
}  // namespace kz
