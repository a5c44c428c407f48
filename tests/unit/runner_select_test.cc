// SPDX-License-Identifier: GPL-2.0-or-later
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shim/base/error.h"
#include "tools/kangzao/runner/catalog.h"
#include "tools/kangzao/runner/run.h"

namespace kz {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TestDeclaration test(const std::string& id, int level, std::vector<std::string> labels = {},
                     std::vector<std::string> profiles = {"quick", "full"}) {
  auto dot = id.find_last_of('.');
  return {.id = id,
          .suite = id.substr(0, dot),
          .test = id.substr(dot + 1),
          .meaning = "m",
          .program = "/bin/kz-test-x",
          .level = level,
          .labels = std::move(labels),
          .needs = {},
          .profiles = std::move(profiles)};
}

std::vector<TestDeclaration> catalogue() {
  return {test("pcie.link.up", 1),
          test("dma.copy", 2),
          test("dma.order", 2, {"long"}),
          test("soak.mixed", 3, {"long"}, {"full"}),
          test("reset.flr", 4, {"destructive"}),
          test("kmod.load.twice", 4, {"destructive", "kernel"}),
          test("selftest.hangs", 1)};
}

std::vector<std::string> ids(const Selection& s) {
  std::vector<std::string> out;
  for (auto& t : select_tests(catalogue(), s)) out.push_back(t.id);
  return out;
}

std::string complaint(const Selection& s) {
  try {
    select_tests(catalogue(), s);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::usage);
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Select, TestsOfTheKernelsSideRunOnlyWhenAskedFor) {
  EXPECT_THAT(ids({.groups = {"kmod"}}), ElementsAre("kmod.load.twice"));
  EXPECT_THAT(ids({.filters = {"kmod.*"}}), ElementsAre("kmod.load.twice"));
  EXPECT_THAT(ids({.labels = {"kernel"}}), ElementsAre("kmod.load.twice"));
  EXPECT_THAT(ids({.levels = {4}}), ElementsAre("reset.flr"));
  EXPECT_THAT(ids({.levels = {4}, .whole = true}), ElementsAre("reset.flr", "kmod.load.twice"));
}

TEST(Select, TheProfileDecidesAndSelftestsNeverBelong) {
  EXPECT_THAT(ids({}), ElementsAre("pcie.link.up", "dma.copy", "dma.order", "reset.flr"));
  EXPECT_THAT(ids({.profile = "full"}),
              ElementsAre("pcie.link.up", "dma.copy", "dma.order", "soak.mixed", "reset.flr"));
  EXPECT_THAT(ids({.profile = "all"}),
              ElementsAre("pcie.link.up", "dma.copy", "dma.order", "soak.mixed", "reset.flr"));
}

TEST(Select, ByLevelGroupAndLabel) {
  EXPECT_THAT(ids({.levels = {1, 4}}), ElementsAre("pcie.link.up", "reset.flr"));
  EXPECT_THAT(ids({.groups = {"dma"}}), ElementsAre("dma.copy", "dma.order"));
  EXPECT_THAT(ids({.labels = {"destructive"}}), ElementsAre("reset.flr"));
  EXPECT_THAT(ids({.without_labels = {"long", "destructive"}}), ElementsAre("pcie.link.up", "dma.copy"));
  EXPECT_THAT(ids({.groups = {"selftest"}}), ElementsAre("selftest.hangs"));
  EXPECT_THAT(ids({.filters = {"dma.*"}, .levels = {1}}), IsEmpty());
}

TEST(Select, ATestByItsNameRunsWhateverTheProfile) {
  EXPECT_THAT(ids({.filters = {"soak.mixed"}}), ElementsAre("soak.mixed"));
  EXPECT_THAT(ids({.filters = {"soak.*"}}), IsEmpty());
}

TEST(Select, InTheOrderAskedFor) {
  Selection s;
  s.order = {"reset.*", "dma.order"};
  EXPECT_THAT(ids(s), ElementsAre("reset.flr", "dma.order", "pcie.link.up", "dma.copy"));
}

TEST(Select, WhatIsNotThereIsNamedWithWhatIsNear) {
  EXPECT_THAT(complaint({.filters = {"dma.cpoy"}}), HasSubstr("did you mean dma.copy"));
  EXPECT_THAT(complaint({.groups = {"pcei"}}), HasSubstr("did you mean pcie"));
  EXPECT_THAT(complaint({.labels = {"destructiv"}}), HasSubstr("did you mean destructive"));
  EXPECT_THAT(complaint({.profile = "quik"}), HasSubstr("did you mean quick"));
  EXPECT_THAT(complaint({.filters = {"xxxxxxxxxxxxxxxx"}}), HasSubstr("kangzao list"));
}

TEST(Glob, StarsAndQuestionMarks) {
  EXPECT_TRUE(glob_match("dma.*", "dma.copy"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*o?y", "dma.copy"));
  EXPECT_TRUE(glob_match("a*b*c", "aXbXbXc"));
  EXPECT_FALSE(glob_match("dma", "dma.copy"));
  EXPECT_FALSE(glob_match("d?a", "da"));
  EXPECT_FALSE(glob_match("", "x"));
  EXPECT_FALSE(glob_match("*x", "xy"));
}

TEST(RunOptionsTest, ReadBackWhole) {
  RunOptions o;
  o.device = "pci:0000:01:00.0";
  o.selection = {.profile = "full",
                 .filters = {"a.*"},
                 .groups = {"b"},
                 .labels = {"long"},
                 .without_labels = {"root"},
                 .levels = {2, 3},
                 .order = {"z"}};
  o.repeat = 7;
  o.until_fail = o.stop_on_fail = o.destructive = o.i_know = true;
  o.seed = 0xffff'ffff'ffff'fff1;
  o.retries = 0;
  RunOptions back = RunOptions::from_json(nlohmann::json::parse(o.to_json().dump()));
  EXPECT_EQ(back.to_json(), o.to_json());
  EXPECT_EQ(back.seed, o.seed);
  EXPECT_EQ(back.selection.order, o.selection.order);
}

TEST(Select, OrderNamesTestsThatThereAre) {
  Selection s;
  s.order = {"dma.ordr"};
  try {
    ids(s);
    FAIL() << "an order that names nothing was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::usage);
    EXPECT_THAT(e.what(), HasSubstr("dma.order"));
  }
}

}  // namespace
}  // namespace kz
