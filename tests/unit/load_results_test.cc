// SPDX-License-Identifier: GPL-2.0-or-later
// What the engine must find wrong: a device that gives results as right that are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/load_hand_device.h"

namespace kz::load {
namespace {

const OpAccount& of(const Sum& s, Op op) { return s.ops[static_cast<size_t>(op)]; }

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
