// SPDX-License-Identifier: GPL-2.0-or-later
// The gauntlet's books: what is planted, what counts as caught, and the JSON that others read.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "shim/base/error.h"
#include "tools/kangzao/gauntlet/judge.h"
#include "tools/kangzao/gauntlet/order.h"
#include "tools/kangzao/gauntlet/plan.h"
#include "tools/kangzao/gauntlet/result.h"
#include "tools/softtpu/fault_board.h"

namespace kz::gauntlet {
namespace {

using nlohmann::json;
using softtpu::Row;

TEST(GauntletPlan, GlobsSelectRows) {
  EXPECT_EQ(select_rows({}).size(), static_cast<size_t>(Row::count));
  EXPECT_EQ(select_rows({"M01", "C*"}).size(), 16u);
  EXPECT_EQ(select_rows({"M0?"}).size(), 9u);
  EXPECT_EQ(select_rows({"D02", "D02"}), std::vector{Row::D02});
  try {
    select_rows({"M99"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::usage);
  }
}

TEST(GauntletPlan, EveryPlantingIsAccepted) {
  for (std::optional<uint64_t> vary : {std::optional<uint64_t>(), std::optional<uint64_t>(1),
                                       std::optional<uint64_t>(2), std::optional<uint64_t>(77)})
    for (Row row : select_rows({})) {
      softtpu::FaultBoard board;
      auto p = plan_row(row, vary, "128M");
      EXPECT_NO_THROW(board.inject(p.fault, false)) << p.fault.dump();
      EXPECT_FALSE(p.expected.empty());
    }
}

TEST(GauntletPlan, VaryDrawsTheSameForTheSameSeedAndCoversTheRange) {
  std::set<std::string> drawn;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    auto a = plan_row(Row::M01, seed, "128M"), b = plan_row(Row::M01, seed, "128M");
    EXPECT_EQ(a.fault, b.fault);
    drawn.insert(a.fault["params"].dump());
    double at = a.fault["params"]["addr_frac"];
    EXPECT_TRUE(at >= 0 && at <= 1);
  }
  EXPECT_GE(drawn.size(), 39u);
}

TEST(GauntletPlan, NoDrawIsNoFault) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    auto p = plan_row(Row::M28, seed, "128M").fault["params"];
    EXPECT_NE(p["bank"], p["other"]);
    auto c = plan_row(Row::M05, seed, "128M").fault["params"];
    EXPECT_FALSE(c["agg_words"] == 0 && c["agg_bit"] == c["bit"]);
  }
}

TEST(GauntletPlan, AnIgnoredAddressLineIsThere) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    auto p = plan_row(Row::M10, seed, "128M");
    unsigned bit = p.fault["params"]["bit"];
    std::string hbm = p.device["hbm"];
    uint64_t size = hbm == "128M" ? uint64_t{128} << 20 : std::stoull(hbm);
    EXPECT_LT(uint64_t{1} << bit, size);
  }
}

std::vector<TestDeclaration> declarations(std::initializer_list<const char*> ids) {
  std::vector<TestDeclaration> out;
  for (std::string id : ids) out.push_back({.id = id, .suite = id.substr(0, id.find('.')), .level = 2});
  return out;
}

TEST(GauntletOrder, GroundUpAndOnlyDeviceTests) {
  auto tests = declarations({"soak.rest", "dma.bandwidth", "dma.sizes", "zebra.last", "matmul.f32",
                             "hbm.march_ss", "queue.books", "identify.basics", "selftest.hangs"});
  tests.push_back({.id = "kmod.load", .suite = "kmod", .level = 1, .labels = {"root"}});
  std::vector<std::string> ids;
  for (const auto& t : ordered_tests(tests)) ids.push_back(t.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"identify.basics", "hbm.march_ss", "dma.sizes", "queue.books",
                                           "matmul.f32", "zebra.last", "dma.bandwidth", "soak.rest"}));
}

TEST(GauntletOrder, KnowsNoRows) {
  for (auto glob : order_table())
    for (const auto& row : softtpu::catalogue()) EXPECT_EQ(glob.find(row.id), std::string_view::npos);
}

Journal journal(std::vector<json> records) { return {.records = std::move(records)}; }

TEST(GauntletJudge, AlarmsDetectorsAndTime) {
  auto j = journal(
      {{{"type", "run-start"}, {"mono", 1e9}},
       {{"type", "verdict"}, {"id", "a.ok"}, {"verdict", "pass"}, {"mono", 2e9}},
       {{"type", "evidence"}, {"id", "b.bad"}, {"kind", "march.mismatch"}, {"detail", {{"shape", "cell"}}}},
       {{"type", "verdict"}, {"id", "b.bad"}, {"verdict", "fail"}, {"reason", "x"}, {"mono", 4.5e9}},
       {{"type", "verdict"}, {"id", "c.hang"}, {"verdict", "timeout"}, {"mono", 9e9}},
       {{"type", "verdict"}, {"id", "d.no"}, {"verdict", "blocked"}, {"reason", "y"}, {"mono", 9e9}}});
  auto said = judge(j);
  ASSERT_EQ(said.alarms.size(), 2u);
  EXPECT_EQ(said.alarms[0].test, "b.bad");
  EXPECT_EQ(said.alarms[0].detector, "our check (march.mismatch)");
  EXPECT_DOUBLE_EQ(said.alarms[0].seconds, 3.5);
  EXPECT_EQ(said.alarms[1].detector, "runner (timeout)");
  EXPECT_EQ(said.passed, 1u);
  EXPECT_EQ(said.blocked, std::vector<std::string>{"d.no: y"});
  EXPECT_EQ(said.diagnosis.cls, triage::FaultClass::hbm_ecc);
}

TEST(GauntletJudge, IgnoredTestsSayNothing) {
  auto j = journal(
      {{{"type", "evidence"}, {"id", "b.bad"}, {"kind", "march.mismatch"}, {"detail", {{"shape", "cell"}}}},
       {{"type", "verdict"}, {"id", "b.bad"}, {"verdict", "fail"}, {"reason", "x"}}});
  auto said = judge(j, {"b.bad"});
  EXPECT_TRUE(said.alarms.empty());
  EXPECT_EQ(said.diagnosis.cls, triage::FaultClass::unknown);
}

TEST(GauntletJudge, KernelLogIsItsOwnDetector) {
  auto j =
      journal({{{"type", "evidence"}, {"id", "b"}, {"kind", "kernel.log"}, {"detail", {{"line", "BUG"}}}},
               {{"type", "verdict"}, {"id", "b"}, {"verdict", "warn"}, {"reason", "x"}}});
  EXPECT_EQ(judge(j).alarms.at(0).detector, "kernel log");
}

RowResult caught(std::string id, std::string cls, std::string expected) {
  return {.id = std::move(id),
          .caught = true,
          .by = {"t.x"},
          .detector = "our check",
          .seconds = 1,
          .cls = std::move(cls),
          .expected = std::move(expected)};
}

TEST(GauntletResult, CountsAndExitCode) {
  GauntletResult g;
  EXPECT_EQ(g.exit_code(), 125);
  g.rows = {caught("M01", "hbm_ecc", "hbm_ecc"),
            caught("D18", "queue_protocol", "driver_bug|queue_protocol")};
  g.clean = {{.passed = 3}};
  EXPECT_EQ(g.exit_code(), 0);
  g.rows.push_back({.id = "X", .unplantable = "no"});
  EXPECT_EQ(g.total(), 2u);
  EXPECT_EQ(g.exit_code(), 0);
  g.clean.push_back({.alarms = {"t: fail"}});
  EXPECT_EQ(g.exit_code(), 1);
  g.clean.pop_back();
  g.rows.push_back(caught("M02", "dma_corruption", "hbm_ecc"));
  EXPECT_EQ(g.right(), 2u);
  EXPECT_EQ(g.exit_code(), 1);
}

TEST(GauntletResult, RightClassIsOneOfTheAccepted) {
  EXPECT_TRUE(caught("a", "b", "a|b|c").right_class());
  EXPECT_TRUE(caught("a", "c", "a|b|c").right_class());
  EXPECT_FALSE(caught("a", "a|b", "a|b|c").right_class());
  EXPECT_FALSE(caught("a", "", "a|b").right_class());
}

TEST(GauntletResult, JsonHasTheAgreedFields) {
  GauntletResult g;
  g.rows = {caught("M01", "hbm_ecc", "hbm_ecc"),
            {.id = "C01", .seconds = 9, .expected = "compute_sdc"},
            {.id = "F05", .unplantable = "busy"}};
  g.clean = {{.seconds = 2, .passed = 5}, {.alarms = {"x"}}};
  json j = to_json(g);
  EXPECT_EQ(j["rows"].size(), 2u);
  for (const char* key : {"id", "caught", "by", "detector", "seconds", "class", "expected_class"})
    EXPECT_TRUE(j["rows"][0].contains(key)) << key;
  EXPECT_EQ(j["caught"], 1);
  EXPECT_EQ(j["total"], 2);
  EXPECT_EQ(j["right_class"], 1);
  EXPECT_EQ(j["clean_runs"], 2);
  EXPECT_EQ(j["false_alarms"], 1);
  EXPECT_EQ(j["missed"], json({"C01"}));
  EXPECT_EQ(j["unplantable"][0]["id"], "F05");
}

TEST(GauntletResult, RowsSurviveTheStateFile) {
  auto row = caught("M01", "hbm_ecc", "hbm_ecc");
  row.fault = {{"row", "M01"}};
  row.reason = "because";
  EXPECT_EQ(to_json(row_from_json(json::parse(to_json(row).dump()))), to_json(row));
}

}  // namespace
}  // namespace kz::gauntlet
