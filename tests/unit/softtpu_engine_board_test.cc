// SPDX-License-Identifier: GPL-2.0-or-later
// The fault board: triggers, parameters, refusals; and the catalogue as a table.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "shim/base/error.h"
#include "tools/softtpu/fault_board.h"

namespace kz::softtpu {
namespace {

using nlohmann::json;

std::vector<int> strikes(FaultBoard& board, Row row, int n) {
  std::vector<int> at;
  for (int i = 0; i < n; ++i)
    if (board.due(row) != nullptr) at.push_back(i);
  return at;
}

TEST(SofttpuCatalogue, IsCompleteAndInOrder) {
  auto rows = catalogue();
  ASSERT_EQ(rows.size(), 28u + 18 + 17 + 15 + 21);
  std::set<std::string_view> ids;
  const std::set<std::string_view> classes = {"link_signal",
                                              "power",
                                              "thermal",
                                              "hbm_ecc",
                                              "driver_bug",
                                              "firmware_hang",
                                              "firmware_mismatch",
                                              "iommu_dma",
                                              "resource_exhaustion",
                                              "compute_sdc",
                                              "dma_corruption",
                                              "queue_protocol",
                                              "security_isolation",
                                              "performance_regression",
                                              "device_spec_violation"};
  for (const RowSpec& r : rows) {
    EXPECT_TRUE(ids.insert(r.id).second) << r.id;
    EXPECT_EQ(parse_row(r.id), r.row);
    EXPECT_EQ(&spec(r.row), &r);
    std::string_view rest = r.classes;
    while (!rest.empty()) {
      auto bar = rest.find('|');
      EXPECT_TRUE(classes.contains(rest.substr(0, bar))) << r.id << " " << rest;
      rest = bar == rest.npos ? "" : rest.substr(bar + 1);
    }
    for (const ParamSpec& p : r.params) {
      EXPECT_LE(p.low, p.fallback) << r.id << " " << p.name;
      EXPECT_LE(p.fallback, p.high) << r.id << " " << p.name;
      EXPECT_TRUE(p.real || p.fallback == std::floor(p.fallback)) << r.id << " " << p.name;
    }
  }
  EXPECT_EQ(parse_row("M29"), std::nullopt);
  EXPECT_EQ(spec(Row::D18).classes, "driver_bug|queue_protocol");
  EXPECT_EQ(spec(Row::F15).classes, "firmware_hang|device_spec_violation");
}

TEST(SofttpuFaultBoard, NothingPlantedNothingDue) {
  FaultBoard board;
  EXPECT_FALSE(board.any());
  EXPECT_EQ(board.due(Row::D01), nullptr);
  EXPECT_EQ(board.active(Row::D01), nullptr);
  EXPECT_TRUE(board.list().empty());
}

TEST(SofttpuFaultBoard, Triggers) {
  struct {
    json trigger;
    std::vector<int> at;
  } cases[] = {
      {{{"kind", "now"}}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
      {{{"kind", "after"}, {"n", 7}}, {7, 8, 9}},
      {{{"kind", "once"}, {"n", 0}}, {0}},
      {{{"kind", "once"}, {"n", 4}}, {4}},
      {{{"kind", "every"}, {"n", 3}}, {2, 5, 8}},
      {{{"kind", "time"}, {"ms", 3600000}}, {}},
      {{{"kind", "time"}, {"ms", 0}}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
      {{{"kind", "probability"}, {"p", 0}}, {}},
      {{{"kind", "probability"}, {"p", 1}}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
  };
  for (auto& c : cases) {
    FaultBoard board;
    board.inject({{"row", "D01"}, {"trigger", c.trigger}}, true);
    EXPECT_EQ(strikes(board, Row::D01, 10), c.at) << c.trigger;
    EXPECT_EQ(board.due(Row::D02), nullptr);
    EXPECT_EQ(board.list()[0]["opportunities"], 10);
    EXPECT_EQ(board.list()[0]["strikes"], c.at.size());
  }
}

TEST(SofttpuFaultBoard, TimeTriggerStartsLater) {
  FaultBoard board;
  auto start = std::chrono::steady_clock::now();
  board.inject({{"row", "F09"}, {"trigger", {{"kind", "time"}, {"ms", 30}}}}, true);
  EXPECT_EQ(board.active(Row::F09), nullptr);
  while (board.active(Row::F09) == nullptr &&
         std::chrono::steady_clock::now() - start < std::chrono::seconds(5))
    std::this_thread::yield();
  EXPECT_NE(board.active(Row::F09), nullptr);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
}

TEST(SofttpuFaultBoard, ProbabilityWithinItsBound) {
  FaultBoard board;
  const int n = 20000;
  const double p = 0.03;
  board.inject({{"row", "C14"}, {"seed", 11}, {"trigger", {{"kind", "probability"}, {"p", p}}}}, true);
  double hits = static_cast<double>(strikes(board, Row::C14, n).size());
  EXPECT_NEAR(hits, n * p, 5 * std::sqrt(n * p * (1 - p)));  // five sigma of the binomial
}

TEST(SofttpuFaultBoard, SameSeedSameStrikes) {
  auto draw = [](uint64_t seed) {
    FaultBoard board;
    board.inject({{"row", "C14"}, {"seed", seed}, {"trigger", {{"kind", "probability"}, {"p", 0.5}}}}, true);
    return strikes(board, Row::C14, 64);
  };
  EXPECT_EQ(draw(5), draw(5));
  EXPECT_NE(draw(5), draw(6));
}

// "one matmul in 1000": exactly one in each thousand, not at the same place.
TEST(SofttpuFaultBoard, EveryParameterStrikesOnceInEachRun) {
  FaultBoard board;
  board.inject({{"row", "C01"}, {"params", {{"every", 1000}}}}, true);
  std::vector<int> at = strikes(board, Row::C01, 10000);
  ASSERT_EQ(at.size(), 10u);
  std::set<int> places;
  for (size_t i = 0; i < at.size(); ++i) {
    EXPECT_EQ(at[i] / 1000, static_cast<int>(i));
    places.insert(at[i] % 1000);
  }
  EXPECT_GT(places.size(), 5u);
}

TEST(SofttpuFaultBoard, FillsInDefaultsAndClears) {
  FaultBoard board;
  int changes = 0;
  board.on_change([&] { ++changes; });
  int a = board.inject({{"row", "D04"}}, true);
  int b = board.inject({{"row", "D04"}, {"params", {{"pages", 2}}}}, true);
  EXPECT_NE(a, b);
  const Fault* f = board.due(Row::D04);
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(f->uparam("pages"), 1u);
  EXPECT_THROW(f->param("no such"), std::out_of_range);
  board.clear(a);
  ASSERT_NE(board.due(Row::D04), nullptr);
  EXPECT_EQ(board.due(Row::D04)->uparam("pages"), 2u);
  EXPECT_EQ(f->uparam("pages"), 1u) << "a cleared fault stays readable";
  board.clear(0);
  EXPECT_FALSE(board.any());
  EXPECT_EQ(changes, 4);
}

TEST(SofttpuFaultBoard, Refuses) {
  FaultBoard board;
  struct {
    json spec;
    Errc code;
  } bad[] = {
      {{{"row", "X01"}}, Errc::usage},
      {{{"trigger", json::object()}}, Errc::usage},
      {json::array(), Errc::usage},
      {{{"row", 7}}, Errc::usage},
      {{{"row", "D04"}, {"extra", 1}}, Errc::usage},
      {{{"row", "D04"}, {"seed", -1}}, Errc::usage},
      {{{"row", "D04"}, {"params", {{"page", 1}}}}, Errc::usage},
      {{{"row", "D04"}, {"params", {{"pages", 0}}}}, Errc::usage},
      {{{"row", "D04"}, {"params", {{"pages", 5}}}}, Errc::usage},
      {{{"row", "D04"}, {"params", {{"pages", 1.5}}}}, Errc::usage},
      {{{"row", "D04"}, {"params", {{"pages", "1"}}}}, Errc::usage},
      {{{"row", "D04"}, {"params", 3}}, Errc::usage},
      {{{"row", "D04"}, {"trigger", {{"kind", "never"}}}}, Errc::usage},
      {{{"row", "D04"}, {"trigger", {{"kind", "after"}}}}, Errc::usage},
      {{{"row", "D04"}, {"trigger", {{"kind", "now"}, {"n", 1}}}}, Errc::usage},
      {{{"row", "D04"}, {"trigger", {{"kind", "every"}, {"n", 0}}}}, Errc::usage},
      {{{"row", "D04"}, {"trigger", {{"kind", "probability"}, {"p", 1.5}}}}, Errc::usage},
      {{{"row", "M01"}}, Errc::busy},
  };
  for (auto& b : bad) {
    try {
      board.inject(b.spec, true);
      ADD_FAILURE() << b.spec << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), b.code) << b.spec;
    }
  }
  EXPECT_NO_THROW(board.inject({{"row", "M01"}}, false));
  try {
    board.clear(99);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::not_found);
  }
}

TEST(SofttpuFaultBoard, ThreadsCountEveryOpportunity) {
  FaultBoard board;
  board.inject({{"row", "Q01"}, {"params", {{"every", 4}}}}, true);
  std::atomic<int> hits{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i)
        if (const Fault* f = board.due(Row::Q01)) hits += f->uparam("every") == 4;
    });
  for (int i = 0; i < 50; ++i) board.clear(board.inject({{"row", "D01"}}, true));
  for (auto& t : threads) t.join();
  EXPECT_EQ(hits, 1000);
}

}  // namespace
}  // namespace kz::softtpu
