// SPDX-License-Identifier: GPL-2.0-or-later
// A run: tests one after another, the journal, the device between them.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shim/softtpu_process.h"
#include "shim/uri.h"
#include "tools/journal/writer.h"
#include "tools/kangzao/runner/catalog.h"
#include "tools/kangzao/runner/kernel_log.h"
#include "tools/kangzao/runner/one_test.h"
#include "tools/kangzao/runner/probe.h"
#include "tools/kangzao/runner/progress.h"
#include "tools/report/run_summary.h"

namespace kz {

struct RunOptions {
  std::string device = "softtpu:";
  Selection selection;
  int repeat = 1;
  bool until_fail = false;    // repeat for ever, stop at the first failure
  bool stop_on_fail = false;  // skip what is left after the first test that is not clean
  uint64_t seed = 1;
  int retries = 3;
  bool destructive = false;
  bool i_know = false;
  std::string module = {};        // file of the driver's module, for the tests of group kmod
  std::string load_command = {};  // what loads the device while they take it away
  nlohmann::json to_json() const;
  static RunOptions from_json(const nlohmann::json& j);
};

class Runner {
 public:
  // Creates `directory` (which must be new or empty) and its journal. Throws Error(usage) for a bad selection
  // or URI, JournalError for trouble with the folder.
  Runner(RunOptions options, std::string directory, bool quiet);
  // Goes on with a run that ended before its time: the test that was running gets verdict crash. Throws
  // JournalError for a run that another runner works on, that never began, or that this build does not fit.
  static std::unique_ptr<Runner> resume(const std::string& directory, bool quiet);

  // Starts the device and journals what the run is. Where that fails nothing of a new run is left on disk.
  // Throws Error(usage, not_found, io ...) for a device that cannot be started, JournalError.
  void begin();
  // Runs what is selected and not done. Returns what the journal says then. Throws JournalError.
  RunSummary go();

 private:
  // How the run stood when it was taken up again.
  struct Before {
    bool resumed = false;
    std::string test, danger, seed;  // the test that was running, its last dangerous step
    bool knew_device = false;        // its environment names what answers
  };
  Runner(RunOptions options, std::string directory, bool quiet, Before before);
  void take_up(const Journal& journal);
  void bury_dead_test();
  void check_after_death();
  void run_all();
  void abandon();
  void write_start(const ProbeResult& probe);
  void prepare();
  bool begin_tests(const ProbeResult& probe);
  void start_softtpu();
  void journal_device_process();
  CaptureRules rules() const;
  std::string refusal(const TestDeclaration& t) const;
  void run_one(const TestDeclaration& t, int iteration);
  // False: the device was reset or started anew, or is lost.
  bool settle(const TestDeclaration& t, TestOutcome& out);
  // Journals what it finds, after the test `id`; nothing when told to stop meanwhile.
  ProbeResult look_at_health(const std::string& id);
  bool device_died();
  bool is_out_of_reach() const;
  void revive();
  bool restore_device(const std::string& why, TestOutcome& out);
  void snapshot(const TestDeclaration& t, const char* when);
  void retry(const TestDeclaration& t, uint64_t seed);
  TestOutcome attempt(const TestDeclaration& t, uint64_t seed, bool keep_records);
  void verdict(const TestDeclaration& t, const TestOutcome& out, uint64_t seed);
  void verdict_without_run(const TestDeclaration& t, Verdict v, const std::string& reason);
  void take_kernel_context();
  void interrupted(const TestDeclaration& t, const TestOutcome& out);
  void judge_kernel_log(const TestDeclaration& t, TestOutcome& out);
  bool is_softtpu() const { return uri_.scheme == "softtpu"; }
  bool may_kill() const { return is_softtpu() || options_.destructive; }
  // A reset loses what is on the device, whoever asks for it.
  bool may_reset() const { return why_not_destructive().empty(); }
  std::string why_not_destructive() const;
  std::string device_state() const;
  std::string rerun_line(const TestDeclaration& t, uint64_t seed) const;
  void finish(const char* how);

  RunOptions options_;
  std::string directory_;
  bool quiet_;
  Uri uri_;
  std::string test_uri_;  // what the tests open
  std::vector<TestDeclaration> tests_;
  std::unique_ptr<JournalWriter> journal_;
  std::unique_ptr<SoftTpuProcess> softtpu_;
  std::unique_ptr<KernelLog> kernel_;
  std::unique_ptr<Progress> progress_;
  std::map<std::string, int> done_;  // verdicts per test so far
  std::vector<std::string> inhabitants_;
  std::string bdf_;  // of the device, where it is a PCI function
  unsigned long taint_ = 0;
  bool lost_ = false;     // the device did not come back: stop
  bool failed_ = false;   // something was not clean
  bool any_ran_ = false;  // in this round, a test that was neither skipped nor blocked
  bool ready_ = false;    // begin() found something that can run
  Before before_;
};

// Something to look at: a failure, or a warn.
bool is_unclean(Verdict v);

// Makes the folder of a run, which must be new or empty, lasting beyond a crash. Throws JournalError.
void create_run_directory(const std::string& directory);
// The last record of a run, with what its journal says, and junit.xml. Throws JournalError.
void write_run_end(JournalWriter& journal, const std::string& directory, const char* how);

// Set by SIGINT and SIGTERM after catch_signals().
bool told_to_stop();
void catch_signals();

}  // namespace kz
