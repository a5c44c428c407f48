// SPDX-License-Identifier: GPL-2.0-or-later
// The gauntlet's books: what is planted, what counts as caught, and the JSON that others read.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "shim/base/error.h"
#include "tools/kangzao/gauntlet/driver_bugs.h"
#include "tools/kangzao/gauntlet/judge.h"
#include "tools/kangzao/gauntlet/order.h"
#include "tools/kangzao/gauntlet/plan.h"
#include "tools/kangzao/gauntlet/result.h"
#include "tools/kangzao/gauntlet/run_folders.h"
#include "tools/kangzao/gauntlet/state_file.h"
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

std::vector<DriverBug> driver_bugs() {
  std::ifstream in(KZ_SOURCE_DIR "/shim/kmod/bugs.txt");
  return parse_driver_bugs({std::istreambuf_iterator<char>(in), {}});
}

TEST(GauntletDriverBugs, TheTableIsReadWhole) {
  auto bugs = driver_bugs();
  ASSERT_EQ(bugs.size(), 36u) << "K01 to K37 but for K33, which is no bug of the source";
  EXPECT_EQ(bugs.front().id, "K01");
  EXPECT_EQ(bugs.front().cls, "driver_bug");
  EXPECT_EQ(bugs.front().first, 16u);
  EXPECT_EQ(bugs.front().last, 65536u);
  EXPECT_EQ(bugs.front().fallback, 4096u);
  EXPECT_FALSE(bugs.front().needs_debug);
  EXPECT_TRUE(select_driver_bugs(bugs, {"K03"}).front().needs_debug);
  EXPECT_EQ(select_driver_bugs(bugs, {"K0*"}).size(), 9u);
  EXPECT_EQ(select_driver_bugs(bugs, {}).size(), 36u);
  EXPECT_THROW(select_driver_bugs(bugs, {"K33"}), Error);
}

TEST(GauntletDriverBugs, LinesThatAreNoneAreRefused) {
  EXPECT_TRUE(parse_driver_bugs("# a comment\n\n").empty());
  for (auto line : {"K01", "K01 no_class stock - - title", "K01 driver_bug maybe - - title",
                    "K01 driver_bug stock 1..2 3 title", "K01 driver_bug stock 2..1 1 title",
                    "K01 driver_bug stock 1..x 1 title", "K01 driver_bug stock - 1 title",
                    "K01 driver_bug stock 0..2 0 title", "K01 driver_bug stock 1..2 1"})
    EXPECT_THROW(parse_driver_bugs(line), Error) << line;
}

TEST(GauntletDriverBugs, ArgumentsAreDrawnFromTheWholeRange) {
  for (auto& bug : driver_bugs()) {
    EXPECT_EQ(bug_argument(bug, {}), bug.fallback);
    std::set<uint64_t> drawn;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      auto a = bug_argument(bug, seed);
      EXPECT_EQ(a, bug_argument(bug, seed));
      if (bug.last == 0) {
        EXPECT_EQ(a, 0u);
      } else {
        EXPECT_TRUE(a >= bug.first && a <= bug.last) << bug.id << " " << a;
      }
      drawn.insert(a);
    }
    if (bug.last > 0) {
      EXPECT_GE(drawn.size(), std::min<uint64_t>(bug.last - bug.first + 1, 16)) << bug.id;
    }
  }
}

TEST(GauntletDriverBugs, NothingTellsTheGuestWhatIsPlanted) {
  auto bug = select_driver_bugs(driver_bugs(), {"K15"}).front();
  EXPECT_EQ(make_words(bug, 100),
            (std::vector<std::string>{"KZ_BUGS=1", "KZ_PLANT=K15", "KZ_PLANT_ARG=100"}));
}

TEST(GauntletJudge, NamesWhoseMeritAKernelLineIs) {
  // Forms: Documentation/dev-tools/kasan.rst, kmemleak.rst, locking/lockdep-design.rst, kernel/hung_task.c.
  EXPECT_EQ(kernel_detector("BUG: KASAN: slab-use-after-free in kz_release+0x1c/0x40"), "KASAN");
  EXPECT_EQ(kernel_detector("WARNING: possible circular locking dependency detected"), "lockdep");
  EXPECT_EQ(kernel_detector("BUG: sleeping function called from invalid context at mm/slab.h:494"),
            "DEBUG_ATOMIC_SLEEP");
  EXPECT_EQ(kernel_detector("kmemleak: 3 new suspected memory leaks"), "kmemleak");
  EXPECT_EQ(kernel_detector("DMA-API: kz_accel 0000:01:00.0: device driver has pending DMA allocations"),
            "DMA-API");
  EXPECT_EQ(kernel_detector("INFO: task insmod:412 blocked for more than 120 seconds."), "hung task");
  EXPECT_EQ(kernel_detector("BUG: kernel NULL pointer dereference, address: 0000000000000010"), "kernel log");
}

TEST(GauntletState, KeepsWhatHasTheSameKey) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / ("kz-state-" + std::to_string(::getpid()));
  const std::string file = folder / "deep/state.jsonl";
  StateFile mine(file, "k1", "b"), other(file, "k2", "b");
  EXPECT_TRUE(mine.read().rows.empty());
  mine.add(RowResult{.id = "K01", .caught = true});
  other.add(RowResult{.id = "K02"});
  mine.add(CleanRun{.passed = 7});
  mine.add(CleanRun{.passed = 8, .kernel = "sid"});
  mine.add_ignored("a.b");
  std::ofstream(file, std::ios::app) << R"({"key": "k1", "row")"
                                        "\n[]\n{\"key\": 7}\n"
                                     << R"({"key": "k1", "row": {"id": "K03"}})"
                                        "\n";  // cut off, and of others
  Finished done = mine.read();
  ASSERT_EQ(done.rows.size(), 1u);
  EXPECT_TRUE(done.rows.at("K01").caught);
  EXPECT_EQ(done.clean[""].at(0).passed, 7u);
  EXPECT_EQ(done.clean["sid"].at(0).passed, 8u);
  EXPECT_EQ(done.ignored, std::set<std::string>{"a.b"});
  EXPECT_NO_THROW(StateFile("", "k", "b").add_ignored("a"));
  EXPECT_THROW(StateFile("/proc/no/such", "k", "b").add_ignored("a"), std::exception);
  std::filesystem::remove_all(folder);
}

TEST(GauntletJudge, SilenceOfACleanRunProvesSomethingOnlyWhereTestsRan) {
  Judgement silent{.alarms = {}, .blocked = {}, .passed = 3};
  EXPECT_TRUE(clean_run(silent, 1, 0, "").alarms.empty());
  EXPECT_EQ(clean_run(silent, 1, 125, "").alarms.size(), 1u);
  EXPECT_EQ(clean_run(silent, 1, 0, "it broke off").alarms, std::vector<std::string>{"it broke off"});
  silent.blocked = {"a.b: no room"};
  EXPECT_EQ(clean_run(silent, 1, 125, "").alarms, std::vector<std::string>{"blocked: a.b: no room"});
}

TEST(GauntletFolders, AreNamedOnlyAfterwardsAndGoUnlessKept) {
  namespace fs = std::filesystem;
  const auto keep = fs::path(::testing::TempDir()) / ("kz-folders-" + std::to_string(::getpid()));
  {
    RunFolders kept(keep);
    const std::string first = kept.fresh();
    EXPECT_NE(kept.fresh(), first);
    fs::create_directory(first);
    kept.done(first, "K01");
    EXPECT_TRUE(fs::exists(first + "-K01"));
  }
  EXPECT_TRUE(fs::exists(keep));
  fs::remove_all(keep);
  std::string gone;
  {
    RunFolders temporary("");
    gone = temporary.fresh();
    fs::create_directory(gone);
    temporary.done(gone, "K01");
    EXPECT_FALSE(fs::exists(gone));
    fs::create_directory(gone);
  }
  EXPECT_FALSE(fs::exists(fs::path(gone).parent_path()));
}

TEST(GauntletResult, CountsWhatOurChecksCatchOnAStockKernel) {
  GauntletResult g;
  for (auto [kernel, detector] : {std::pair{"stable-1", "our check (driver)"},
                                  {"stable-1", "kernel log"},
                                  {"stable-1-debug", "our check (driver)"},
                                  {"stable-1-debug", "KASAN"}}) {
    g.rows.push_back({.id = "K01",
                      .caught = true,
                      .by = {"a.b"},
                      .detector = detector,
                      .cls = "driver_bug",
                      .expected = "driver_bug",
                      .kernel = kernel});
    EXPECT_EQ(row_from_json(to_json(g.rows.back())).kernel, kernel);
  }
  EXPECT_EQ(g.ours_on_stock(), 1u);
  EXPECT_EQ(to_json(g)["ours_on_stock"], 1);
  EXPECT_NE(to_terminal(g).find("our own checks on a stock kernel caught 1\n"), std::string::npos);
  g.rows = {{.id = "M01"}};
  EXPECT_FALSE(to_json(g).contains("ours_on_stock"));
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
  g.clean = {{.seconds = 2, .passed = 5}, {.alarms = {"x"}, .kernel = "sid"}};
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
