// SPDX-License-Identifier: GPL-2.0-or-later
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "tools/journal/reader.h"
#include "tools/journal/writer.h"

namespace kz {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() {
    std::string pattern = ::testing::TempDir() + "kz-journal-XXXXXX";
    dir_ = ::mkdtemp(pattern.data());
  }
  ~JournalTest() override { fs::remove_all(dir_); }

  std::string file() const { return dir_ + "/journal.jsonl"; }
  std::string bytes() const {
    std::ostringstream text;
    text << std::ifstream(file(), std::ios::binary).rdbuf();
    return text.str();
  }
  void append(const std::string& text) { std::ofstream(file(), std::ios::app | std::ios::binary) << text; }

  std::string dir_;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST_F(JournalTest, EveryLineCarriesClockBootAndSequence) {
  {
    JournalWriter w(dir_, JournalWriter::Mode::create);
    w.write({{"type", "a"}, {"x", 1}});
    w.write({{"type", "b"}}, true);
    EXPECT_EQ(w.records(), 2u);
  }
  Journal j = read_journal(dir_);
  ASSERT_EQ(j.records.size(), 2u);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  for (size_t i = 0; i < 2; ++i) {
    const json& r = j.records[i];
    EXPECT_EQ(r["v"], 1);
    EXPECT_EQ(r["seq"], i);
    EXPECT_EQ(r["boot"], boot);
    EXPECT_TRUE(r["mono"].is_number_unsigned());
    EXPECT_THAT(
        text_of(r, "wall"),
        MatchesRegex("20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\\.[0-9]{9}Z"));
  }
  EXPECT_LE(j.records[0]["mono"].get<uint64_t>(), j.records[1]["mono"].get<uint64_t>());
  EXPECT_EQ(j.records[0]["x"], 1);
}

TEST_F(JournalTest, BytesThatAreNoUtf8DoNotStopIt) {
  {
    JournalWriter w(dir_, JournalWriter::Mode::create);
    w.write({{"type", "note"}, {"text", "a\xff\xc3(b\n\x01"}});
  }
  Journal j = read_journal(dir_);
  ASSERT_EQ(j.records.size(), 1u);
  EXPECT_THAT(text_of(j.records[0], "text"), HasSubstr("(b\n\x01"));
}

TEST_F(JournalTest, ANewRunDoesNotTouchAnOldJournal) {
  { JournalWriter(dir_, JournalWriter::Mode::create).write({{"type", "old"}}); }
  std::string before = bytes();
  EXPECT_THAT(message_of([&] { JournalWriter(dir_, JournalWriter::Mode::create); }), HasSubstr(dir_));
  EXPECT_EQ(bytes(), before);
}

TEST_F(JournalTest, OneWriterAtATime) {
  auto first = std::make_unique<JournalWriter>(dir_, JournalWriter::Mode::create);
  first->write({{"type", "a"}});
  EXPECT_THAT(message_of([&] { JournalWriter(dir_, JournalWriter::Mode::append); }),
              HasSubstr("another runner"));
  first.reset();
  JournalWriter(dir_, JournalWriter::Mode::append).write({{"type", "b"}});
  EXPECT_EQ(read_journal(dir_).records.size(), 2u);
}

TEST_F(JournalTest, ADeletedJournalIsNoticedAtTheNextDurableRecord) {
  JournalWriter w(dir_, JournalWriter::Mode::create);
  w.write({{"type", "a"}}, true);
  fs::remove_all(dir_);
  EXPECT_THAT(message_of([&] { w.write({{"type", "b"}}, true); }), HasSubstr("somebody deleted it"));
  EXPECT_THAT(message_of([&] { w.write({{"type", "c"}}); }), HasSubstr("failed before"));
}

TEST_F(JournalTest, AppendingCutsATornLineAndGoesOnCounting) {
  {
    JournalWriter w(dir_, JournalWriter::Mode::create);
    for (int i = 0; i < 3; ++i) w.write({{"type", "a"}});
  }
  append("{\"type\":\"torn\",\"seq\":99");
  EXPECT_TRUE(read_journal(dir_).torn);
  EXPECT_EQ(read_journal(dir_).records.size(), 3u);
  { JournalWriter(dir_, JournalWriter::Mode::append).write({{"type", "b"}}); }
  Journal j = read_journal(dir_);
  EXPECT_FALSE(j.torn);
  EXPECT_TRUE(j.problems.empty());
  ASSERT_EQ(j.records.size(), 4u);
  EXPECT_EQ(j.records[3]["type"], "b");
  EXPECT_EQ(j.records[3]["seq"], 3);
}

class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    const rlimit few = {most, old_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &old_); }
  DescriptorLimit(const DescriptorLimit&) = delete;

 private:
  rlimit old_{};
};

TEST_F(JournalTest, WhatCannotBeOpenedIsNotCut) {
  { JournalWriter(dir_, JournalWriter::Mode::create).write({{"type", "a"}}); }
  std::string before = bytes();
  int free = ::dup(0);
  ::close(free);
  std::string message = message_of([&] {
    DescriptorLimit few(static_cast<rlim_t>(free) + 1);  // for the lock, not for the journal; over when we look
    JournalWriter(dir_, JournalWriter::Mode::append);
  });
  EXPECT_THAT(message, HasSubstr("journal.jsonl"));
  EXPECT_EQ(bytes(), before);
}

TEST_F(JournalTest, ARecordTooLongForReadersIsCutAndStaysReadable) {
  {
    JournalWriter w(dir_, JournalWriter::Mode::create);
    w.write({{"type", "note"}, {"id", "x.y"}, {"text", std::string(3 << 20, 'z')}, {"n", 5}});
    w.write({{"type", "after"}});
  }
  Journal j = read_journal(dir_);
  EXPECT_TRUE(j.problems.empty());
  ASSERT_EQ(j.records.size(), 2u);
  EXPECT_EQ(j.records[0]["cut"], true);
  EXPECT_EQ(j.records[0]["id"], "x.y");
  EXPECT_EQ(j.records[0]["n"], 5);
  EXPECT_EQ(text_of(j.records[0], "text"), std::string(4096, 'z'));
}

// The file may grow to 16 KiB, as on a disk that is full then. In a child: the limit is the process's.
TEST_F(JournalTest, AFullDiskHarmsNothingThatIsWritten) {
  pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{16384, 16384};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    JournalWriter w(dir_, JournalWriter::Mode::create);
    int written = 0;
    try {
      for (;; ++written) w.write({{"type", "note"}, {"n", written}, {"text", std::string(700, 'x')}});
    } catch (const JournalError& e) {
      bool named = std::string(e.what()).find(w.path()) != std::string::npos;
      bool again = false;
      try {
        w.write({{"type", "short"}});
      } catch (const JournalError&) {
        again = true;
      }
      ::_exit(w.failed() && named && again ? written : 255);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_NE(WEXITSTATUS(status), 255);
  Journal j = read_journal(dir_);
  EXPECT_FALSE(j.torn);
  EXPECT_TRUE(j.problems.empty());
  EXPECT_EQ(j.records.size(), static_cast<size_t>(WEXITSTATUS(status)));
  EXPECT_GE(j.records.size(), 15u);
  EXPECT_LE(fs::file_size(file()), 16384u);
}

TEST_F(JournalTest, UnreadableJournalsAreNamed) {
  EXPECT_THAT(message_of([&] { read_journal(dir_); }), HasSubstr(file()));
  append("");
  EXPECT_THAT(message_of([&] { read_journal(dir_); }), HasSubstr("no whole record"));
  append("{\"type\":\"run-st");
  EXPECT_THAT(message_of([&] { read_journal(file()); }), HasSubstr("no whole record"));
  EXPECT_THAT(message_of([&] { read_journal("/nonexistent/x"); }), HasSubstr("/nonexistent/x"));
}

TEST(JournalReader, PassesOverGarbageAndSaysWhere) {
  std::string text =
      "{\"type\":\"a\"}\n"
      "no json\n"
      "\n"
      "[1,2]\n"
      "{\"type\":7}\n" +
      std::string(100, '\0') + "\n{\"no\":\"type\"}\n{\"type\":\"b\"}\n";
  Journal j = parse_journal(text);
  ASSERT_EQ(j.records.size(), 2u);
  EXPECT_EQ(j.records[1]["type"], "b");
  std::vector<size_t> lines;
  for (auto& p : j.problems) lines.push_back(p.line);
  EXPECT_EQ(lines, (std::vector<size_t>{2, 4, 5, 6, 7}));
  EXPECT_FALSE(j.torn);
}

TEST(JournalReader, ALineWithoutItsEndIsTornHoweverWholeItLooks) {
  Journal j = parse_journal("{\"type\":\"a\"}\n{\"type\":\"b\"}");
  EXPECT_TRUE(j.torn);
  EXPECT_EQ(j.records.size(), 1u);
}

TEST(JournalReader, BoundsTheLengthOfALine) {
  std::string head = "{\"type\":\"a\",\"t\":\"", tail = "\"}";
  std::string exact = head + std::string(max_journal_line - head.size() - tail.size(), 'x') + tail;
  EXPECT_EQ(parse_journal(exact + "\n").records.size(), 1u);
  exact.insert(head.size(), "x");
  Journal j = parse_journal(exact + "\n{\"type\":\"b\"}\n");
  ASSERT_EQ(j.records.size(), 1u);
  EXPECT_EQ(j.records[0]["type"], "b");
  ASSERT_EQ(j.problems.size(), 1u);
  EXPECT_THAT(j.problems[0].text, HasSubstr("1048577 bytes"));
}

std::string nested(int depth) {  // `depth` levels in all
  std::string text = "{\"type\":\"a\",\"x\":";
  for (int i = 1; i < depth; ++i) text += '[';
  text += '1';
  for (int i = 1; i < depth; ++i) text += ']';
  return text + "}\n";
}

TEST(JournalReader, BoundsTheDepth) {
  EXPECT_EQ(parse_journal(nested(64)).records.size(), 1u);
  EXPECT_EQ(parse_journal(nested(65)).records.size(), 0u);
  EXPECT_EQ(parse_journal(nested(400'000)).problems.size(), 1u);
  // Brackets in texts are none.
  std::string text =
      "{\"type\":\"a\",\"x\":\"" + std::string(200, '[') + "\\\"" + std::string(200, '{') + "\"}\n";
  EXPECT_EQ(parse_journal(text).records.size(), 1u);
}

TEST(JournalReader, FieldsOfOtherTypesFallBack) {
  json r = {{"s", "x"}, {"n", 2.5}, {"o", json::object()}, {"z", nullptr}};
  EXPECT_EQ(text_of(r, "s"), "x");
  EXPECT_EQ(text_of(r, "n", "f"), "f");
  EXPECT_EQ(text_of(r, "z", "f"), "f");
  EXPECT_EQ(text_of(r, "absent"), "");
  EXPECT_EQ(number_of(r, "n"), 2.5);
  EXPECT_EQ(number_of(r, "s", 7), 7);
  EXPECT_EQ(number_of(r, "o", 7), 7);
  EXPECT_EQ(text_of(json(3), "s", "f"), "f");
  EXPECT_EQ(number_of(json::array({1}), "n", 7), 7);
}

TEST_F(JournalTest, ReadingInPiecesIsReadingAtOnce) {
  std::mt19937_64 rng(7);
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text +=
        "{\"type\":\"t\",\"i\":" + std::to_string(i) + ",\"x\":\"" + std::string(rng() % 2000, 'x') + "\"}";
    if (rng() % 10 == 0) text.insert(text.size() - rng() % 20, 1, static_cast<char>(rng()));
    text += "\n";
  }
  append(text);
  Journal whole = parse_journal(text), pieces = read_journal(dir_);
  EXPECT_EQ(whole.records, pieces.records);
  ASSERT_EQ(whole.problems.size(), pieces.problems.size());
  for (size_t i = 0; i < whole.problems.size(); ++i)
    EXPECT_EQ(whole.problems[i].line, pieces.problems[i].line);
}

TEST(JournalReader, NoBytesMakeItThrow) {
  std::mt19937_64 rng(11);
  std::string good;
  for (int i = 0; i < 20; ++i)
    good +=
        R"({"v":1,"type":"verdict","id":"a.b","verdict":"fail","seconds":1e3,"failures":[{"file":"x","line":3}]})"
        "\n";
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (uint64_t n = 1 + rng() % 8; n > 0; --n) {
      size_t at = rng() % bad.size();
      switch (rng() % 3) {
        case 0:
          bad[at] = static_cast<char>(rng());
          break;
        case 1:
          bad.erase(at, rng() % 30);
          break;
        default:
          bad.insert(at, std::string(rng() % 90, "[{\"\\,:"[rng() % 6]));
      }
      if (bad.empty()) bad.push_back('x');
    }
    Journal j;
    ASSERT_NO_THROW(j = parse_journal(bad));
    ASSERT_LE(j.records.size() + j.problems.size(), 2000u);
  }
}

}  // namespace
}  // namespace kz
