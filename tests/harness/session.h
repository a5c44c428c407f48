// SPDX-License-Identifier: GPL-2.0-or-later
// The test program's side of the protocol with the runner: where the device is, the seed, and the records
// that go out. Without KANGZAO_FD the program stands alone and records go to standard error, one JSON object
// a line.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/device.h"
#include "tests/harness/queue_guard.h"
#include "tools/journal/verdict.h"

namespace kz::test {

inline constexpr size_t kMaxPacket = 64 * 1024;

struct Failure {
  std::string file;
  int line = 0;
  std::string text;
};

// Thrown by block() and skip(); caught by the fixture only.
struct EndTest {
  Verdict verdict;
  std::string reason;
};

// Shortens every string in `record` (longest first) until its dump fits one packet; cut strings end in
// "…(cut)".
std::string fit_packet(nlohmann::json record, size_t limit = kMaxPacket);

class Session {
 public:
  static Session& get();

  std::string uri() const { return uri_; }
  std::string run_dir() const { return run_dir_; }
  uint64_t seed() const { return seed_; }
  double scale() const;
  bool standalone() const { return fd_ < 0; }

  void send(const nlohmann::json& record);
  // Sends and waits for "ok". Throws EndTest(blocked) when no answer comes in 30 s: the step must not be
  // taken.
  void send_and_wait(const nlohmann::json& record);
  void evidence(std::string_view kind, const nlohmann::json& detail);
  bool has_evidence(std::string_view kind) const;

  // One test after another in this process; the listener calls these.
  void begin(std::string id);
  void add_failure(Failure failure);
  void end();
  Verdict verdict() const;
  int exit_code() const { return exit_code_; }

  void set_end(const EndTest& end);
  void add_warning(const std::string& reason);
  void set_lost(const std::string& reason);
  bool lost() const { return lost_; }

  // The device of the running test; null between tests. Set by the fixture.
  Device* device = nullptr;
  // Queues that are open now.
  void enlist(QueueGuard* queue);
  void dismiss(QueueGuard* queue);
  void each_queue(const std::function<void(QueueGuard&)>& visit);
  // Books of queues that are closed already.
  struct Audited {
    uint16_t queue;
    QueueAudit audit;
  };
  void add_audit(const Audited& audited);
  std::vector<Audited> take_audits();
  void add_stall(const Stall& stall);
  std::optional<Stall> take_stall();

 private:
  Session();
  std::string reason() const;

  std::string uri_, run_dir_, profile_;
  uint64_t seed_ = 0;
  int fd_ = -1;
  int exit_code_ = 0;

  mutable std::recursive_mutex mutex_;
  std::string id_;
  std::vector<Failure> failures_;
  std::vector<std::string> warnings_;
  std::optional<EndTest> end_;
  bool lost_ = false;
  std::string lost_reason_;
  std::map<std::string, int, std::less<>> evidence_count_;
  std::vector<QueueGuard*> queues_;
  std::vector<Audited> audits_;
  std::optional<Stall> stall_;
};

}  // namespace kz::test
