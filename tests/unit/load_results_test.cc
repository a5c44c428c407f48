// SPDX-License-Identifier: GPL-2.0-or-later
// What the engine must find wrong: a device that gives results as right that are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/load_hand_device.h"

namespace kz::load {
namespace {

const OpAccount& of(const Sum& s, Op op) { return s.ops[static_cast<size_t>(op)]; }

bool is_read_back(const Command& c) {
  const auto* copy = std::get_if<cmd::Copy>(&c.work);
  return copy != nullptr && copy->src.space == Place::Space::hbm && copy->dst.space == Place::Space::host;
}
bool is_computing(const Command& c) {
  return std::holds_alternative<cmd::Matmul>(c.work) || std::holds_alternative<cmd::Vector>(c.work);
}

TEST(load_results, right_ones_are_right) {
  for (const std::string what :
       {"mix=matmul,vector,nop\ndim=9\nelements=33", "mix=matmul,vector\ndim=1\nelements=1",
        "mix=copy-in,copy-out,copy-hbm\nsize=32-9000"}) {
    auto s = run_on({.service = 5us}, "[a]\n" + what + "\nloop=closed\ncount=500\n");
    EXPECT_TRUE(s->clean()) << what;
    EXPECT_GT(s->all.verified, 100u) << what;
  }
}

// From the 150th command on every so many of those that `which` says leave out `part` of what they should
// write. Each of them must be found, whatever was in the places before.
void expect_all_found(const std::string& job, HandMade::Part part, bool (*which)(const Command&),
                      unsigned every = 1) {
  HandMade how{.service = 5us};
  uint64_t bad = 0, seen = 0;
  how.part = [&](uint64_t n, const Command& c) {
    if (n < 150 || !which(c) || ++seen % every != 0) return HandMade::Part::all;
    ++bad;
    return part;
  };
  auto s = run_on(how, "[a]\nloop=closed\ncount=700\n" + job);
  EXPECT_GT(bad, 30u);
  EXPECT_EQ(s->all.mismatched, bad) << job;
  EXPECT_TRUE(s->balanced());
}

TEST(load_results, computations_that_write_nothing_are_found) {
  for (const std::string job : {"mix=vector,nop\ndepth=4\n", "mix=matmul,nop\ndim=8\ndepth=4\n",
                                "mix=matmul,vector,nop\ndim=1\nelements=1\ndepth=7\n"})
    expect_all_found(job, HandMade::Part::none, is_computing);
}

TEST(load_results, computations_that_write_nothing_at_all_are_found_where_an_earlier_load_left_its_results) {
  HandMade how{.service = 5us};
  how.memory = std::make_shared<HandMemory>();
  const std::string job = "[a]\nmix=vector\nloop=closed\ncount=50\ndepth=8\n";
  EXPECT_TRUE(run_on(how, job)->clean());
  how.part = [](uint64_t, const Command& c) {
    return is_computing(c) ? HandMade::Part::none : HandMade::Part::all;
  };
  EXPECT_EQ(run_on(how, job)->all.mismatched, 50u);
}

TEST(load_results, results_that_are_not_read_back_are_found) {
  for (auto part : {HandMade::Part::none, HandMade::Part::all_but_the_middle}) {
    expect_all_found("mix=vector,nop\ndepth=4\n", part, is_read_back);
    expect_all_found("mix=matmul,nop\ndim=16\ndepth=4\n", part, is_read_back);
  }
}

TEST(load_results, copies_that_leave_out_a_piece_are_found) {
  for (auto part : {HandMade::Part::none, HandMade::Part::all_but_the_middle})
    expect_all_found("mix=copy-in,copy-out\nsize=300-9000\ndepth=1\n", part, is_read_back, 5);
}

TEST(load_results, copies_are_looked_at_where_no_copy_out_comes_by) {
  for (const std::string mix : {"copy-in", "copy-hbm", "copy-in,copy-hbm"}) {
    HandMade how{.service = 5us};
    const std::string job = "[a]\nmix=" + mix + "\nsize=4K\nloop=closed\ncount=300\n";
    auto s = run_on(how, job);
    EXPECT_TRUE(s->clean()) << mix;
    EXPECT_EQ(s->all.verified, 66u) << mix;
    how.spoil = [](uint64_t n) { return n == 360; };  // the first 66 fill the places
    s = run_on(how, job);
    EXPECT_EQ(s->all.mismatched, 1u) << mix;
    EXPECT_TRUE(s->balanced()) << mix;
    EXPECT_EQ(run_on(how, job + "verify=no\n")->all.verified, 0u);
  }
}

TEST(load_results, memory_given_out_twice_is_found) {
  auto s =
      run_on({.service = 10us, .twins_from = 5}, "[a]\nmix=alloc,nop\nrate=2000\nblocks=12\ntime=100ms\n");
  EXPECT_GT(of(*s, Op::alloc).mismatched, 3u);
  ASSERT_FALSE(s->findings.empty());
  EXPECT_THAT(s->findings[0], ::testing::HasSubstr("given out twice"));
}

TEST(load_results, memory_that_the_load_itself_uses_must_not_be_given_out) {
  auto s =
      run_on({.service = 10us, .twins_from = 1}, "[a]\nmix=alloc,copy-in\nrate=2000\nblocks=1\ntime=100ms\n");
  EXPECT_GT(of(*s, Op::alloc).completed, 3u);
  EXPECT_EQ(of(*s, Op::alloc).mismatched, of(*s, Op::alloc).completed);
}

}  // namespace
}  // namespace kz::load
