// SPDX-License-Identifier: GPL-2.0-or-later
// Commands by KZ_IOC_SUBMIT, answers by KZ_IOC_REAP: for queues that are polled, and where io_uring is not to
// be had.
#include <poll.h>

#include <cerrno>

#include "shim/dev/call.h"
#include "shim/dev/way.h"

namespace kz::dev {
namespace {

class IoctlWay final : public Way {
 public:
  IoctlWay(int fd, uint32_t queue, uint32_t entries) : fd_(fd), queue_(queue), done_(entries) {
    batch_.reserve(entries);
  }

  void put(const kz_cmd& command, uint64_t tag) override { batch_.push_back({command, tag, 0, 0}); }

  void flush(std::vector<Ended>& out) override {
    for (size_t from = 0; from < batch_.size();) {
      kz_ioc_submit a{};
      a.queue = queue_;
      a.count = static_cast<uint32_t>(batch_.size() - from);
      a.entries = reinterpret_cast<uint64_t>(&batch_[from]);
      int rc = call(fd_, KZ_IOC_SUBMIT, a);
      from += a.done;
      if (from == batch_.size()) break;
      // The one that was refused is answered; what stands behind it is offered next, unless it may be taken
      // another time: then it must not be overtaken.
      int error = a.error != 0 ? a.error : rc;
      out.push_back({batch_[from++].user_data, error, 0});
      if (outcome_of(error).kind == Outcome::Kind::again)
        while (from < batch_.size()) out.push_back({batch_[from++].user_data, -EAGAIN, 0});
    }
    batch_.clear();
  }

  void peek(std::vector<Ended>& out) override { reap(0, 0ns, out); }

  void wait(const Deadline& deadline, std::vector<Ended>& out) override {
    flush(out);
    if (!out.empty()) return;
    do reap(1, deadline.left(), out);
    while (out.empty() && !deadline.passed());
  }

  bool over() const override { return over_; }

 private:
  void reap(uint32_t min, std::chrono::nanoseconds timeout, std::vector<Ended>& out) {
    kz_ioc_reap a{};
    a.queue = queue_;
    a.max = static_cast<uint32_t>(done_.size());
    a.min = min;
    a.timeout_ns = timeout.count();
    a.entries = reinterpret_cast<uint64_t>(done_.data());
    int rc = call(fd_, KZ_IOC_REAP, a);
    for (uint32_t i = 0; i < a.count; ++i)
      out.push_back({done_[i].user_data, done_[i].status, done_[i].result});
    over_ = rc == -ESTALE || rc == -ENODEV || rc == -ENOENT;
    if (over_ && min > 0) ::poll(nullptr, 0, 1);  // it answers at once
  }

  int fd_;
  uint32_t queue_;
  std::vector<kz_entry> batch_;
  std::vector<kz_done> done_;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Way> make_ioctl_way(int fd, uint32_t queue, uint32_t entries) {
  return std::make_unique<IoctlWay>(fd, queue, entries);
}

}  // namespace kz::dev
