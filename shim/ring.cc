// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/ring.h"

#include <algorithm>

#include "shim/base/error.h"

namespace kz {
namespace {

// Completions are picked up when we enter the kernel anyway; older kernels do not know the flag.
int init(unsigned entries, io_uring& ring) {
  int err = -io_uring_queue_init(entries, &ring, IORING_SETUP_COOP_TASKRUN);
  return err == EINVAL ? -io_uring_queue_init(entries, &ring, 0) : err;
}

}  // namespace

Ring::Ring(unsigned entries) {
  int err = init(entries, ring_);
  if (err == EPERM || err == EACCES || err == ENOSYS)
    throw Error(
        {Errc::permission, "set up", "io_uring", "this kernel or container does not allow it",
         "set sysctl kernel.io_uring_disabled to 0, and let the container's seccomp profile pass io_uring",
         err});
  if (err == ENOMEM)
    throw Error({Errc::no_memory, "set up", "io_uring", "no memory for the ring",
                 "kernels before 5.12 count it against ulimit -l: raise that", err});
  if (err != 0) throw_errno("set up", "io_uring", err);
  quiet_success_ = (ring_.features & IORING_FEAT_CQE_SKIP) != 0;
  done_.reserve(2 * entries);
}

Ring::~Ring() { io_uring_queue_exit(&ring_); }

void Ring::register_files(std::span<const int> fds) {
  if (!files_.empty() || fds.empty()) return;
  if (io_uring_register_files(&ring_, fds.data(), static_cast<unsigned>(fds.size())) == 0)
    files_.assign(fds.begin(), fds.end());
}

io_uring_sqe* Ring::next() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) {
    submit();
    sqe = io_uring_get_sqe(&ring_);
  }
  if (sqe == nullptr)
    throw Error({Errc::busy, "queue an operation", "io_uring", "the submission ring is full",
                 "collect results first", 0});
  return sqe;
}

void Ring::target(io_uring_sqe* sqe, int fd) const {
  auto it = std::find(files_.begin(), files_.end(), fd);
  if (it == files_.end()) return;
  sqe->fd = static_cast<int>(it - files_.begin());
  sqe->flags |= IOSQE_FIXED_FILE;
}

void Ring::write_eventfd(int fd, uint64_t tag) {
  io_uring_sqe* sqe = next();
  io_uring_prep_write(sqe, fd, &one_, sizeof one_, 0);
  target(sqe, fd);
  // A result would end the wait for the interrupt that stands behind it.
  if (quiet_success_) sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
  io_uring_sqe_set_data64(sqe, tag);
}

void Ring::read_eventfd(int fd, uint64_t* count, uint64_t tag) {
  io_uring_sqe* sqe = next();
  io_uring_prep_read(sqe, fd, count, sizeof *count, 0);
  target(sqe, fd);
  io_uring_sqe_set_data64(sqe, tag);
}

void Ring::cancel(uint64_t tag, uint64_t cancel_tag) {
  io_uring_sqe* sqe = next();
  io_uring_prep_cancel64(sqe, tag, 0);
  io_uring_sqe_set_data64(sqe, cancel_tag);
}

void Ring::submit() {
  int n;
  do n = io_uring_submit(&ring_);
  while (n == -EINTR);
  // EAGAIN, EBUSY: results have to be collected first; what is queued stays queued.
  if (n < 0 && n != -EAGAIN && n != -EBUSY) throw_errno("submit to", "io_uring", -n);
}

std::span<const Ring::Done> Ring::collect() {
  done_.clear();
  unsigned head = 0, n = 0;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    ++n;
    if (cqe->user_data != LIBURING_UDATA_TIMEOUT) done_.push_back({cqe->user_data, cqe->res});
  }
  io_uring_cq_advance(&ring_, n);
  return done_;
}

std::span<const Ring::Done> Ring::peek() { return collect(); }

std::span<const Ring::Done> Ring::wait(Deadline deadline) {
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.left()).count();
    __kernel_timespec ts{left / 1'000'000'000, left % 1'000'000'000};
    io_uring_cqe* cqe = nullptr;
    int err = -io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &ts, nullptr);
    if (err > 0 && err != ETIME && err != EINTR && err != EAGAIN && err != EBUSY)
      throw_errno("wait on", "io_uring", err);
    auto got = collect();
    if (!got.empty() || deadline.passed()) return got;
  }
}

}  // namespace kz
