// SPDX-License-Identifier: GPL-2.0-or-later
// Commands as IORING_OP_URING_CMD in entries of 128 bytes, answers in completions of 32.
#include <fmt/format.h>
#include <liburing.h>

#include <cerrno>
#include <cstring>

#include "shim/base/error.h"
#include "shim/dev/way.h"

namespace kz::dev {
namespace {

constexpr unsigned needed = IORING_SETUP_SQE128 | IORING_SETUP_CQE32;
// Answers are picked up when we enter the kernel anyway, and the kernel shows that some wait there.
constexpr unsigned wanted = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;

// 0 or errno.
int set_up(unsigned entries, io_uring& ring) {
  int err = -io_uring_queue_init(entries, &ring, needed | wanted);
  return err == EINVAL ? -io_uring_queue_init(entries, &ring, needed) : err;
}

class UringWay final : public Way {
 public:
  UringWay(int fd, uint32_t queue, uint32_t entries) : fd_(fd), queue_(queue) {
    if (int err = set_up(entries, ring_); err != 0) throw_errno("set up", "io_uring", err);
    // The kernel keeps the node open while the ring lives; where it refuses, each entry looks it up.
    fixed_ = io_uring_register_files(&ring_, &fd_, 1) == 0;
  }
  ~UringWay() override { io_uring_queue_exit(&ring_); }
  UringWay(const UringWay&) = delete;

  void put(const kz_cmd& command, uint64_t tag) override {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {  // cannot be: the ring has an entry for each of the queue's
      submit();
      sqe = io_uring_get_sqe(&ring_);
    }
    if (sqe == nullptr)
      throw Error({Errc::busy, "queue a command", "io_uring", "the submission ring is full", "", 0});
    std::memset(sqe, 0, 2 * sizeof *sqe);
    sqe->opcode = IORING_OP_URING_CMD;
    sqe->fd = fixed_ ? 0 : fd_;
    sqe->flags = fixed_ ? IOSQE_FIXED_FILE : 0;
    sqe->cmd_op = KZ_URING_SUBMIT;
    sqe->user_data = tag;
    kz_uring_cmd body{.cmd = command, .queue = queue_, .timeout_ms = 0, .result_at = 0};
    std::memcpy(sqe->cmd, &body, sizeof body);
  }

  void flush(std::vector<Ended>& out) override {
    submit();
    collect(out);
  }

  void peek(std::vector<Ended>& out) override {
    if (io_uring_cq_ready(&ring_) == 0) {
      io_uring_cqe* ignored = nullptr;
      io_uring_peek_cqe(&ring_, &ignored);  // enters the kernel where answers wait in it
    }
    collect(out);
  }

  void wait(const Deadline& deadline, std::vector<Ended>& out) override {
    for (size_t before = out.size();;) {
      auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.left()).count();
      __kernel_timespec ts{left / 1'000'000'000, left % 1'000'000'000};
      io_uring_cqe* cqe = nullptr;
      int err = -io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &ts, nullptr);
      if (err > 0 && err != ETIME && err != EINTR && err != EAGAIN && err != EBUSY)
        throw_errno("wait on", "io_uring", err);
      collect(out);
      if (out.size() != before || deadline.passed()) return;
    }
  }

  int ready_fd() const override { return ring_.ring_fd; }

  // The kernel answers every command that it took.
  bool over() const override { return false; }

 private:
  void submit() {
    int n;
    do n = io_uring_submit(&ring_);
    while (n == -EINTR);
    // EAGAIN, EBUSY: answers have to be collected first; what is queued stays queued.
    if (n < 0 && n != -EAGAIN && n != -EBUSY) throw_errno("submit to", "io_uring", -n);
  }

  void collect(std::vector<Ended>& out) {
    unsigned head = 0, n = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      ++n;
      if (cqe->user_data == LIBURING_UDATA_TIMEOUT) continue;
      out.push_back({cqe->user_data, cqe->res, cqe->big_cqe[0]});
    }
    io_uring_cq_advance(&ring_, n);
  }

  int fd_;
  uint32_t queue_;
  bool fixed_ = false;
  io_uring ring_{};
};

}  // namespace

std::string why_no_uring() {
  io_uring ring{};
  int err = set_up(4, ring);
  if (err == 0) {
    io_uring_queue_exit(&ring);
    return {};
  }
  if (err == EPERM || err == EACCES || err == ENOSYS)
    return "this kernel or container does not allow io_uring (sysctl kernel.io_uring_disabled, seccomp)";
  if (err == EINVAL) return "this kernel's io_uring has no entries of 128 bytes (before 5.19)";
  return fmt::format("io_uring: {}", std::strerror(err));
}

std::unique_ptr<Way> make_uring_way(int fd, uint32_t queue, uint32_t entries) {
  return std::make_unique<UringWay>(fd, queue, entries);
}

}  // namespace kz::dev
