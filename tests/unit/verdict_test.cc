// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/journal/verdict.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kz {
namespace {

// The nine words are part of the tool's interface (README.md).
TEST(VerdictTest, WordsAreThoseOfTheInterface) {
  std::set<std::string> words;
  for (Verdict v : all_verdicts) words.insert(std::string(to_string(v)));
  EXPECT_EQ(words, (std::set<std::string>{"pass", "fail", "warn", "skip", "blocked", "crash", "timeout",
                                          "device-lost", "not-run"}));
}

TEST(VerdictTest, EveryWordReadsBack) {
  for (Verdict v : all_verdicts) EXPECT_EQ(parse_verdict(to_string(v)), v);
}

TEST(VerdictTest, OtherWordsAreNone) {
  for (const char* word : {"", "PASS", "passed", "device_lost", "pass ", "unknown"})
    EXPECT_FALSE(parse_verdict(word)) << word;
}

}  // namespace
}  // namespace kz
