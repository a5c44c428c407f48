// SPDX-License-Identifier: GPL-2.0-or-later
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "tools/report/formats.h"
#include "tools/report/run_summary.h"
#include "tools/report/terminal.h"

namespace kz {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

// A journal as the runner writes one, by hand.
class Book {
 public:
  explicit Book(std::map<std::string, int> tests, std::vector<int> levels = {1, 2}, int repeat = 1) {
    json list = json::array();
    for (auto& [id, level] : tests) list.push_back({{"id", id}, {"level", level}});
    add({{"type", "run-start"},
         {"device", "softtpu:"},
         {"profile", "quick"},
         {"seed", "5"},
         {"repeat", repeat},
         {"levels", levels},
         {"environment", {{"kernel", "6.1"}}},
         {"tests", list}});
  }
  Book& add(json record) {
    journal_.records.push_back(std::move(record));
    return *this;
  }
  Book& verdict(const std::string& id, const std::string& v, const std::string& reason = "",
                json more = json::object()) {
    more.update({{"type", "verdict"}, {"id", id}, {"verdict", v}, {"reason", reason}, {"seconds", 0.5}});
    return add(std::move(more));
  }
  Book& end(const std::string& how = "complete") { return add({{"type", "run-end"}, {"how", how}}); }
  RunSummary sum() const { return summarize(journal_); }
  Journal& journal() { return journal_; }

 private:
  Journal journal_;
};

const std::map<std::string, int> two = {{"a.one", 1}, {"b.two", 2}};

struct ExitCase {
  const char *first, *second;
  int code;
};

// The rules of docs/verdicts.md.
TEST(ExitCode, FollowsTheVerdicts) {
  for (ExitCase c : {ExitCase{"pass", "pass", 0},
                     {"pass", "fail", 1},
                     {"pass", "warn", 1},
                     {"pass", "crash", 1},
                     {"pass", "timeout", 1},
                     {"pass", "blocked", 125},
                     {"pass", "not-run", 125},
                     {"pass", "skip", 125},
                     {"skip", "skip", 125},
                     {"blocked", "blocked", 125},
                     {"fail", "blocked", 1},
                     {"pass", "device-lost", 3},
                     {"fail", "device-lost", 3}}) {
    Book book(two);
    book.verdict("a.one", c.first).verdict("b.two", c.second).end();
    EXPECT_EQ(exit_code(book.sum()), c.code) << c.first << " " << c.second;
  }
}

TEST(ExitCode, ALevelWithoutAPassIsNoProof) {
  Book both(two, {1, 2, 3}), selected(two, {1, 2});
  both.verdict("a.one", "pass").verdict("b.two", "pass").end();
  selected.verdict("a.one", "pass").verdict("b.two", "pass").end();
  EXPECT_EQ(exit_code(both.sum()), 125);
  EXPECT_EQ(exit_code(selected.sum()), 0);
}

TEST(ExitCode, InterruptionAndALostDeviceComeFirst) {
  Book interrupted(two), lost(two), resumed(two);
  interrupted.verdict("a.one", "fail").end("interrupted");
  EXPECT_EQ(exit_code(interrupted.sum()), 130);
  lost.verdict("a.one", "timeout")
      .add({{"type", "device-lost"}, {"id", "a.one"}, {"text", "hangs"}})
      .end("device-lost");
  EXPECT_EQ(exit_code(lost.sum()), 3);
  resumed.verdict("a.one", "pass")
      .end("interrupted")
      .add({{"type", "resume"}})
      .verdict("b.two", "pass")
      .end();
  EXPECT_EQ(exit_code(resumed.sum()), 0);
}

TEST(ExitCode, AnEmptySelectionProvesNothing) {
  Book book({}, {1, 2, 3, 4});
  EXPECT_EQ(exit_code(book.end().sum()), 125);
}

TEST(Summary, OfRepetitionsTheGravestCounts) {
  Book book({{"a.one", 1}}, {1}, 3);
  book.verdict("a.one", "pass").verdict("a.one", "fail", "broke", {{"rerun", "kangzao run --seed 6"}});
  book.verdict("a.one", "pass").end();
  RunSummary run = book.sum();
  const TestResult* t = run.find("a.one");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->verdict, Verdict::fail);
  EXPECT_EQ(t->reason, "broke");
  EXPECT_EQ(t->rerun, "kangzao run --seed 6");
  EXPECT_EQ(t->runs, 3);
  EXPECT_EQ(t->bad_runs, 1);
  EXPECT_DOUBLE_EQ(t->seconds, 1.5);
  EXPECT_THAT(run.proved, IsEmpty());
  EXPECT_EQ(run.find("b.two"), nullptr);
}

TEST(Summary, SaysWhatEachLevelProvedAndWhatNot) {
  Book book({{"a.one", 1}, {"a.two", 1}, {"b.one", 3}, {"b.two", 3}, {"b.three", 3}}, {1, 2, 3});
  book.verdict("a.one", "pass").verdict("a.two", "pass");
  book.verdict("b.one", "pass")
      .verdict("b.two", "skip", "no reset control")
      .verdict("b.three", "skip", "no reset control");
  RunSummary run = book.end().sum();
  EXPECT_THAT(run.proved, ElementsAre("level 1: 2 of 2 tests passed", "level 3: 1 of 3 tests passed"));
  EXPECT_THAT(run.not_proved, ElementsAre("level 2: no test selected",
                                          "level 3: 1 of 3 run, 2 not passed (2 x skip: no reset control)"));
}

TEST(Summary, AnUnfinishedRunSaysWhatWasRunning) {
  Book book(two);
  book.verdict("a.one", "pass").add({{"type", "test-start"}, {"id", "b.two"}, {"seed", "5"}});
  book.add({{"type", "danger"}, {"id", "b.two"}, {"step", "pull the plug"}});
  RunSummary run = book.sum();
  EXPECT_FALSE(run.finished);
  EXPECT_EQ(run.find("b.two")->verdict, Verdict::not_run);
  EXPECT_THAT(run.find("b.two")->reason, HasSubstr("pull the plug"));
}

TEST(Summary, AFloodOfNotesIsBounded) {
  Book book(two);
  for (int i = 0; i < 5000; ++i) book.add({{"type", "note"}, {"text", std::string(10'000, 'n')}});
  RunSummary run = book.verdict("a.one", "pass").end().sum();
  EXPECT_LT(to_json(run).dump().size(), 100'000u);
  EXPECT_THAT(run.notes.back(), HasSubstr("4950 more"));
}

TEST(Summary, RecordsThatMakeNoSenseArePassedOver) {
  Book book(two);
  for (json bad :
       {json{{"type", "verdict"}}, json{{"type", "verdict"}, {"id", "a.one"}, {"verdict", 3}},
        json{{"type", "verdict"}, {"id", "nobody"}, {"verdict", "pass"}},
        json{{"type", "evidence"}, {"id", "a.one"}, {"kind", 1}, {"detail", nullptr}},
        json{{"type", "metric"}, {"id", "a.one"}, {"value", "fast"}}, json{{"type", "retries"}, {"id", 7}},
        json{{"type", "run-start"}, {"levels", "x"}, {"tests", 5}, {"environment", 3}},
        json{{"type", "verdict"},
             {"id", "a.one"},
             {"verdict", "pass"},
             {"failures", {1, "x", {{"line", "y"}}}}}})
    book.add(bad);
  book.verdict("b.two", "pass").end();
  RunSummary run = book.sum();
  EXPECT_EQ(run.find("b.two")->verdict, Verdict::pass);
  EXPECT_NO_THROW(to_json(run).dump());
  EXPECT_NO_THROW(to_junit(run));
  EXPECT_NO_THROW(to_ktap(run));
  EXPECT_NO_THROW(to_terminal(run, {}));
}

TEST(Summary, ReportsWhatTheJournalLost) {
  Book book(two);
  book.verdict("a.one", "pass").verdict("b.two", "pass").end();
  book.journal().torn = true;
  book.journal().problems.push_back({17, "not JSON"});
  EXPECT_THAT(book.sum().notes, Contains(HasSubstr("line 17")));
  EXPECT_THAT(book.sum().notes, Contains(HasSubstr("torn")));
}

TEST(Summary, NamesTheRecordsThatAreMissing) {
  Book book(two);
  book.verdict("a.one", "pass").verdict("b.two", "pass").end();
  uint64_t seq = 0;
  for (auto& record : book.journal().records) record["seq"] = seq++;
  EXPECT_THAT(book.sum().notes, IsEmpty());
  book.journal().records.back()["seq"] = seq + 2;
  EXPECT_THAT(book.sum().notes, Contains(HasSubstr("records 3 to 5 are missing")));
  book.journal().records.back()["seq"] = uint64_t{1};
  EXPECT_THAT(book.sum().notes, Contains(HasSubstr("record 1 comes after record 2")));
}

TEST(Summary, AStandInGivesWayToTheVerdictOfARun) {
  Book book({{"a.one", 1}}, {1});
  book.verdict("a.one", "blocked", "no device", {{"ran", false}}).verdict("a.one", "pass").end();
  RunSummary run = book.sum();
  EXPECT_EQ(run.find("a.one")->verdict, Verdict::pass);
  EXPECT_EQ(run.find("a.one")->runs, 1);
  EXPECT_EQ(run.find("a.one")->bad_runs, 0);
  Book other({{"a.one", 1}}, {1});
  other.verdict("a.one", "blocked", "no room").verdict("a.one", "pass").end();
  EXPECT_EQ(other.sum().find("a.one")->verdict, Verdict::blocked);
}

TEST(FailureBound, IsTheRateThatNCleanRunsExcludeAt95Percent) {
  for (int n : {1, 2, 20, 1000, 100000}) EXPECT_NEAR(std::pow(1 - failure_bound(n), n), 0.05, 1e-9) << n;
  EXPECT_NEAR(failure_bound(1000), 0.003, 0.00001);  // the rule of three
  EXPECT_EQ(failure_bound(0), 1.0);
}

TEST(FailureBound, StandsUnderProved) {
  Book book({{"a.one", 1}}, {1}, 1000);
  for (int i = 0; i < 1000; ++i) book.verdict("a.one", "pass");
  EXPECT_THAT(book.end().sum().proved, Contains("a.one: 0 of 1000 failed, failure rate < 0.3% at 95%"));
}

TEST(FailureBound, CountsOnlyRunsThatPassed) {
  Book book({{"a.one", 1}}, {1}, 1000);
  for (int i = 0; i < 1000; ++i) book.verdict("a.one", i < 20 ? "pass" : "skip");
  EXPECT_THAT(book.end().sum().proved, ElementsAre("level 1: 1 of 1 tests passed, 20 runs without failure",
                                                   "a.one: 0 of 20 failed, failure rate < 14% at 95%"));
}

TEST(FailureBound, StandsUnderARunUntilAFailureToo) {
  Book book({{"a.one", 1}}, {1}, 1);
  for (int i = 0; i < 100; ++i) book.verdict("a.one", "pass");
  EXPECT_THAT(book.end().sum().proved, Contains(HasSubstr("a.one: 0 of 100 failed")));
}

// A run with everything that is awkward to write down.
RunSummary awkward() {
  Book book({{"a.pass", 1},
             {"a.fail", 1},
             {"a.warn", 1},
             {"b.skip", 2},
             {"b.blocked", 2},
             {"b.crash", 2},
             {"b.timeout", 2},
             {"c.lost", 3},
             {"c.left", 3}},
            {1, 2, 3});
  std::string nasty =
      "<&>\"' \x01\x1b[31m \xef\xbf\xbf \xef\xbf\xbe \xe2\x82\xac ]]> # SKIP\nok 99 forged\tx";
  book.verdict("a.pass", "pass").verdict("a.warn", "warn", nasty).verdict("b.skip", "skip", nasty);
  book.verdict("a.fail", "fail", nasty,
               {{"rerun", "kangzao run --filter 'a<b>'"},
                {"failures", {{{"file", "x<y>.cc"}, {"line", 3}, {"text", nasty}}}}});
  book.verdict("b.blocked", "blocked", "no permission").verdict("b.crash", "crash", "it died");
  book.verdict("b.timeout", "timeout", "no end within 1 s").verdict("c.lost", "device-lost", nasty);
  book.verdict("c.left", "not-run", "the device was lost before").end("device-lost");
  return book.sum();
}

TEST(Junit, IsValidWhateverATestSays) {
  std::string file = ::testing::TempDir() + "kz-junit-" + std::to_string(::getpid()) + ".xml";
  std::ofstream(file) << to_junit(awkward());
  std::string command =
      "xmllint --noout --schema " KZ_SOURCE_DIR "/tests/e2e/junit.xsd " + file + " 2>&1";
  std::FILE* out = ::popen(command.c_str(), "r");
  ASSERT_NE(out, nullptr);
  std::string said;
  std::array<char, 512> piece;
  while (std::fgets(piece.data(), piece.size(), out) != nullptr) said += piece.data();
  EXPECT_EQ(::pclose(out), 0) << said;
  std::filesystem::remove(file);
}

TEST(Junit, CountsAddUp) {
  std::string xml = to_junit(awkward());
  EXPECT_THAT(xml, HasSubstr("name=\"a\" tests=\"3\" failures=\"2\" errors=\"0\" skipped=\"0\""));
  EXPECT_THAT(xml, HasSubstr("name=\"b\" tests=\"4\" failures=\"0\" errors=\"2\" skipped=\"2\""));
  EXPECT_THAT(xml, HasSubstr("name=\"c\" tests=\"2\" failures=\"0\" errors=\"1\" skipped=\"1\""));
}

// A small reader of KTAP version 1, by the kernel's Documentation/dev-tools/ktap.rst.
struct Ktap {
  std::vector<std::string> faults;
  std::map<std::string, std::string> results;  // "ok", "not ok", "skip"
};

Ktap read_ktap(const std::string& text) {
  Ktap k;
  std::istringstream in(text);
  std::string line;
  if (!std::getline(in, line) || line != "KTAP version 1") k.faults.push_back("no version line");
  std::regex plan("1\\.\\.([0-9]+)"), result("(ok|not ok) ([0-9]+) (?:- )?([^ #]+)(?: # ?(.*))?");
  std::smatch m;
  long planned = -1, next = 1;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (std::regex_match(line, m, plan)) {
      if (planned >= 0) k.faults.push_back("two plans");
      planned = std::stol(m[1]);
    } else if (std::regex_match(line, m, result)) {
      if (std::stol(m[2]) != next++) k.faults.push_back("numbered out of order: " + line);
      std::string directive = m[4].matched ? m[4].str() : "";
      k.results[m[3]] = directive.starts_with("SKIP") ? "skip" : m[1].str();
    } else {
      k.faults.push_back("not KTAP: " + line);
    }
  }
  if (planned != next - 1) k.faults.push_back("the plan does not fit");
  return k;
}

TEST(KtapFormat, ReadsBackByItsSpecification) {
  Ktap k = read_ktap(to_ktap(awkward()));
  EXPECT_THAT(k.faults, IsEmpty());
  EXPECT_EQ(k.results, (std::map<std::string, std::string>{{"a.pass", "ok"},
                                                           {"a.fail", "not ok"},
                                                           {"a.warn", "not ok"},
                                                           {"b.skip", "skip"},
                                                           {"b.blocked", "skip"},
                                                           {"b.crash", "not ok"},
                                                           {"b.timeout", "not ok"},
                                                           {"c.lost", "not ok"},
                                                           {"c.left", "skip"}}));
}

TEST(KtapFormat, NoNameBreaksALine) {
  RunSummary run;
  run.results = {{.id = "a.x\nok 99 forged", .level = 1, .verdict = Verdict::fail}};
  Ktap k = read_ktap(to_ktap(run));
  EXPECT_THAT(k.faults, IsEmpty());
  EXPECT_EQ(k.results.size(), 1u);
  EXPECT_EQ(to_terminal({.device = "d\x1b[2J", .profile = "p\x1b[2J", .seed = "s\x1b[2J", .results = run.results}, {}).find('\x1b'),
            std::string::npos);
}

TEST(JsonFormat, HasTheInterfacesFields) {
  json j = to_json(awkward());
  for (const char* key : {"schema", "device", "results", "counts", "proved", "not_proved"})
    EXPECT_TRUE(j.contains(key)) << key;
  int total = 0;
  for (auto& [name, n] : j["counts"].items()) total += n.get<int>();
  EXPECT_EQ(total, 9);
  EXPECT_EQ(j["counts"].size(), 9u);
  for (auto& r : j["results"])
    for (const char* key : {"id", "verdict", "seconds", "reason"}) EXPECT_TRUE(r.contains(key)) << key;
  EXPECT_EQ(j["exit"], 3);
}

TEST(TerminalFormat, LetsNoDeviceWriteToTheTerminal) {
  std::string text = to_terminal(awkward(), {.colour = false});
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\x01")));
  EXPECT_THAT(text, HasSubstr("\\x1b[31m"));
  EXPECT_THAT(text, HasSubstr("again: kangzao run --filter 'a<b>'"));
  EXPECT_THAT(text, HasSubstr("no permission"));
}

}  // namespace
}  // namespace kz
