// SPDX-License-Identifier: GPL-2.0-or-later
// A user of the reference driver's node, call by call, with errno as the kernel gives it; and one in a
// process of his own, who holds the device in a certain way while something is done to it.
#pragma once

#include <liburing.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/base/fd.h"
#include "shim/dev/call.h"
#include "shim/uapi/kz_ioctl.h"

namespace kz::test {

struct Target;

using dev::call;
using dev::raw_call;

kz_cmd copy_command(uint64_t dst, uint8_t dst_space, uint64_t src, uint8_t src_space, uint64_t len);

// Reading it raises SIGBUS or SIGSEGV.
bool faults(const volatile char* p);

class User {
 public:
  static constexpr uint64_t buffer_bytes = 1 << 20, hbm_bytes = 4 << 20;
  static constexpr uint32_t order = 6;  // of the queue

  // With context, queue, registered buffer and HBM. Throws Error of the first call that fails.
  explicit User(const std::string& node);
  // Only the file.
  static int open_node(const std::string& node);
  ~User();
  User(const User&) = delete;

  int fd() const { return fd_.get(); }
  // Gives the descriptor up; the rest stays.
  void close() { fd_.reset(); }
  void take(Fd fd) { fd_ = std::move(fd); }
  const kz_info& info() const { return info_; }
  uint32_t ctx = 0, queue = 0;
  uint64_t host = 0, hbm = 0, map_at = 0;
  char* bytes() { return buffer_; }

  // Taken, or -errno where not even the first was.
  int submit(const std::vector<kz_cmd>& commands, uint32_t timeout_ms = 0);
  // -errno, or completions into `out` (cleared before).
  int reap(std::vector<kz_done>& out, uint32_t max, uint32_t min, int64_t timeout_ns = 20'000'000'000);
  // Status of one command, or -errno; -ETIME when it did not end in 20 s.
  int run(const kz_cmd& command, uint64_t* result = nullptr);
  std::vector<kz_cmd> copies(size_t n, uint64_t bytes = buffer_bytes) const;
  // nullptr: refused, `error` says why.
  char* map(size_t length, int* error = nullptr);
  int telemetry(kz_telemetry& t);

 private:
  Fd fd_;
  kz_info info_{};
  char* buffer_ = nullptr;
  std::vector<std::pair<char*, size_t>> maps_;
};

// The device does what it should for this user, and where it is the reference device for a new one. `when` is
// said where it does not.
void expect_works(User& user, const std::string& when = "", const char* file = __builtin_FILE(),
                  int line = __builtin_LINE());
void expect_works(const Target& target, const std::string& when = "", const char* file = __builtin_FILE(),
                  int line = __builtin_LINE());

// An io_uring with entries of 128 and completions of 32 bytes.
class Ring {
 public:
  explicit Ring(unsigned entries, unsigned flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32);
  ~Ring();
  Ring(const Ring&) = delete;
  io_uring& raw() { return ring_; }
  // Queues one; `user_data` names it. Not submitted yet.
  io_uring_sqe* add(int fd, uint32_t op, const kz_uring_cmd& body, uint64_t user_data, uint8_t flags = 0);
  int submit() { return io_uring_submit(&ring_); }
  struct Answer {
    uint64_t user_data;
    int res;
    uint64_t result;
  };
  // Waits for up to `n` answers, at most `seconds`.
  std::vector<Answer> answers(size_t n, double seconds = 20);
  static bool allowed();

 private:
  io_uring ring_{};
  bool big_;
};

// What a user in another process saw until his device went or he was told to end.
struct Seen {
  uint64_t submitted = 0, ended_well = 0, ended_lost = 0, twice = 0, never = 0;
  int last_error = 0;  // that ended it, positive; 0: he was told to
  char text[160] = {};
};

// A process that runs `work` and tells when it is where it should be. It dies with us.
class OtherUser {
 public:
  class Link {
   public:
    Link(int say, int hear, volatile Seen* seen) : say_(say), hear_(hear), seen_(seen) {}
    void ready() const;
    bool told_to_end() const;        // does not wait
    void wait_for_end() const;       // until told
    void wait_for(char word) const;  // until that was said, or the parent is gone
    Seen* seen() const { return const_cast<Seen*>(seen_); }

   private:
    int say_, hear_;
    volatile Seen* seen_;
  };
  explicit OtherUser(std::function<void(const Link&)> work);
  ~OtherUser();
  OtherUser(const OtherUser&) = delete;

  // False: it ended, or was not there in time.
  bool wait_ready(double seconds = 15);
  void tell(char word);
  // Tells it to end and waits. False: it hangs; where() says where.
  bool end(double seconds = 15);
  bool wait_ended(double seconds);
  void kill();
  pid_t pid() const { return pid_; }
  int status() const { return status_; }
  const Seen& seen() const { return *seen_; }
  const std::string& where() const { return where_; }

 private:
  pid_t pid_ = -1;
  int status_ = -1;
  Fd say_, hear_;
  Seen* seen_ = nullptr;
  std::string where_;
};

// Copies without end, checking that each command ends exactly once, until told to end or the device goes.
void keep_busy(const std::string& node, const OtherUser::Link& link, bool by_uring);

}  // namespace kz::test
