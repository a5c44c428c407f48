// SPDX-License-Identifier: GPL-2.0-or-later
// The hot loop is written by hand: entries are filled in once and only what changes is written again; one
// system call hands over a batch and takes what is done; one time stamp serves a batch.
#include "shim/load/host_worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "shim/base/error.h"

namespace kz::load {
namespace {

constexpr int64_t longest_wait_ns = 20'000'000;  // how soon a stop is noticed

int64_t now_ns() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

void set_up(unsigned entries, unsigned completions, io_uring& ring) {
  int err = 0;
  for (unsigned flags :
       {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0u}) {
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CQSIZE;
    params.cq_entries = completions;
    err = -io_uring_queue_init_params(entries, &ring, &params);
    if (err != EINVAL) break;
  }
  if (err == EPERM || err == EACCES || err == ENOSYS)
    throw Error(
        {Errc::permission, "set up", "io_uring", "this kernel or container does not allow it",
         "set sysctl kernel.io_uring_disabled to 0, and let the container's seccomp profile pass io_uring",
         err});
  if (err != 0) throw_errno("set up", "io_uring", err);
}

}  // namespace

HostWorker::HostWorker(const Job& job, const WorkerId& id, Ledger& ledger, size_t index)
    : job_(job),
      ledger_(ledger),
      index_(index),
      account_(ledger.account(index)),
      book_(account_.ops[static_cast<size_t>(Op::io)]),
      due_(job, id),
      next_(due_),
      random_(job.seed * 0x9e3779b97f4a7c15u + index) {}

HostWorker::~HostWorker() {
  if (ring_is_there_) io_uring_queue_exit(&ring_);
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
}

void HostWorker::open_target() {
  if (job_.target == Target::nop) return;
  int flags = job_.target == Target::file ? O_RDONLY : O_RDWR;
  fd_ = Fd(::open(job_.path.c_str(), flags | O_CLOEXEC));
  if (!fd_) throw_errno("open", job_.path);
  if (job_.target != Target::file) return;
  struct stat st {};
  if (::fstat(fd_.get(), &st) != 0) throw_errno("look at", job_.path);
  block_bytes_ = static_cast<uint32_t>(job_.size.most);
  blocks_ = static_cast<uint64_t>(st.st_size) / block_bytes_;
  good_result_ = static_cast<int32_t>(block_bytes_);
  if (S_ISREG(st.st_mode) && blocks_ > 0 && blocks_ <= UINT32_MAX) return;
  throw Error({Errc::usage, "read", job_.path,
               fmt::format("[{}]: it is no file of at least one block of {}", job_.name,
                           kz::to_string(Bytes{block_bytes_})),
               "name a file, or lower size", 0});
}

void HostWorker::set_up_ring() {
  unsigned depth = std::max(job_.limit(), 1u);
  set_up(std::bit_ceil(std::min(depth, job_.batch)), std::bit_ceil(2 * depth), ring_);
  ring_is_there_ = true;
  registered_ring_ = io_uring_register_ring_fd(&ring_) == 1;
  if (fd_) {
    int fd = fd_.get();
    if (int err = -io_uring_register_files(&ring_, &fd, 1); err > 0) throw_errno("register", job_.path, err);
    fixed_file_ = true;
  }
  began_.resize(depth);
  for (uint32_t s = depth; s-- > 0;) idle_.push_back(s);
  if (job_.target != Target::file) return;
  memory_bytes_ = size_t{depth} * block_bytes_;
  void* p = ::mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                   -1, 0);
  if (p == MAP_FAILED) throw_errno("get", "memory for reads");
  memory_ = static_cast<std::byte*>(p);
  iovec all{memory_, memory_bytes_};
  if (int err = -io_uring_register_buffers(&ring_, &all, 1); err > 0)
    throw_errno("register", "memory for reads", err, "raise ulimit -l, or lower size or depth");
}

// Everything about an entry that never changes.
void HostWorker::write_entries() {
  for (unsigned i = 0; i < ring_.sq.ring_entries; ++i) {
    io_uring_sqe* sqe = &ring_.sq.sqes[i];
    std::memset(sqe, 0, sizeof *sqe);
    ring_.sq.array[i] = i;
    if (job_.target == Target::file) io_uring_prep_read_fixed(sqe, 0, memory_, block_bytes_, 0, 0);
    if (job_.target == Target::nop) io_uring_prep_nop(sqe);
    if (job_.target == Target::uring_cmd) {
      sqe->opcode = IORING_OP_URING_CMD;  // cmd_op 0: a NOP on the reference driver, nothing on /dev/null
    }
    if (fixed_file_) {
      sqe->fd = 0;
      sqe->flags |= IOSQE_FIXED_FILE;
    }
  }
}

void HostWorker::prepare() {
  open_target();
  set_up_ring();
  write_entries();
}

void HostWorker::run(Clock::time_point start) noexcept {
  ::prctl(PR_SET_TIMERSLACK, 1);
  try {
    start_ = start.time_since_epoch().count();
    end_ = start_ + job_.time.count();
    for (int64_t left; (left = start_ - now_ns()) > 0 && ledger_.stop() == 0;) {
      timespec ts{0, static_cast<long>(std::min(left, longest_wait_ns))};
      ::clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, nullptr);
    }
    ledger_.set_state(index_, WorkerAccount::running);
    account_.began_ns = static_cast<uint64_t>(start_);
    loop();
    account_.ended_ns = static_cast<uint64_t>(now_ns());
    ledger_.set_state(index_, WorkerAccount::ended);
  } catch (const Error& e) {
    bump(account_.cancelled_by[static_cast<size_t>(Cancel::stopped)], under_way_);
    bump(book_.cancelled, under_way_);
    give_up_backlog(now_ns());
    account_.ended_ns = static_cast<uint64_t>(now_ns());
    ledger_.break_off(index_, e);
  }
}

// What was due before the end is started after it, too: for as long as an operation may take.
bool HostWorker::may_send(int64_t now) const {
  if (ledger_.stop() != 0 || (job_.count != 0 && book_.sent >= job_.count)) return false;
  bool due = job_.open_loop && start_ + next_.next().count() < end_;
  return now < end_ || (due && now < end_ + job_.timeout.count());
}

void HostWorker::loop() {
  int64_t now = now_ns(), last_progress = now;
  for (;;) {
    if (!may_send(now)) give_up_backlog(now);
    unsigned fresh = sending_ ? put(now) : 0;
    if (!sending_ && under_way_ == 0) break;
    if (ledger_.stop() > 1) throw Error({Errc::usage, "wait for", "io_uring", "told to stop", "", 0});
    // Room for the next batch, or whatever comes first where an open loop has nothing due.
    unsigned depth = static_cast<unsigned>(began_.size()), batch = std::min(job_.batch, depth);
    unsigned wait_for = under_way_ + batch > depth ? under_way_ + batch - depth : 0;
    int64_t longest = longest_wait_ns;
    if (job_.open_loop && sending_) {
      // At a full ring what is due waits for room, and so do we.
      if (!idle_.empty())
        longest = std::clamp<int64_t>(start_ + next_.next().count() - now, 0, longest_wait_ns);
      wait_for = idle_.empty() || fresh == 0 ? 1 : 0;
    }
    if (!sending_) wait_for = 1;
    enter(fresh, wait_for, longest);
    now = now_ns();
    unsigned before = under_way_;
    reap(now);
    if (under_way_ != before || under_way_ == 0) last_progress = now;
    if (now - last_progress > job_.timeout.count()) {
      bump(book_.lost, std::exchange(under_way_, 0));
      throw Error({Errc::timeout, "run", fmt::format("job {}", job_.name),
                   fmt::format("no answer for {}", kz::to_string(job_.timeout)), "", 0});
    }
  }
}

// Fills entries with what is to start now; they are handed over by enter().
unsigned HostWorker::put(int64_t now) {
  unsigned room = std::min<unsigned>(
      {job_.batch, ring_.sq.ring_entries - not_taken_, static_cast<unsigned>(idle_.size())});
  if (job_.count != 0) room = static_cast<unsigned>(std::min<uint64_t>(room, job_.count - book_.sent));
  const uint32_t mask = ring_.sq.ring_entries - 1;
  uint32_t tail = ring_.sq.sqe_tail;
  unsigned n = 0;
  for (; n < room; ++n) {
    int64_t began = now;
    if (job_.open_loop) {
      began = start_ + next_.next().count();
      if (began > now || began >= end_) break;
      next_.advance();
      int64_t late = now - began;
      if (late > job_.late.count()) bump(account_.late);
      raise_to(account_.late_max_ns, static_cast<uint64_t>(late));
    }
    uint32_t slot = idle_.back();
    idle_.pop_back();
    began_[slot] = began;
    set(tail++ & mask, slot);
  }
  if (job_.open_loop) {
    if (n == room && idle_.empty() && start_ + next_.next().count() <= now) note_full();
    note_due(now);
  }
  ring_.sq.sqe_tail = tail;
  __atomic_store_n(ring_.sq.ktail, tail, __ATOMIC_RELEASE);
  under_way_ += n;
  bump(book_.sent, n);
  return n;
}

inline void HostWorker::set(uint32_t at, uint32_t slot) {
  io_uring_sqe& sqe = ring_.sq.sqes[at];
  sqe.user_data = slot;
  if (memory_ == nullptr) return;
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  sqe.off = ((random_ >> 32) * blocks_ >> 32) * block_bytes_;
  sqe.addr = reinterpret_cast<uint64_t>(memory_) + uint64_t{slot} * block_bytes_;
}

// Once for each operation that finds no room.
void HostWorker::note_full() {
  if (std::exchange(full_at_, next_.index()) != next_.index()) bump(account_.ring_full);
}

// Hands over what was put and takes what is done, waiting for so many. What the kernel does not take now,
// because completions have to be taken first or memory is short, is handed over by the next call.
void HostWorker::enter(unsigned fresh, unsigned wait_for, int64_t longest_ns) {
  unsigned all = fresh + not_taken_;
  __kernel_timespec ts{longest_ns / 1'000'000'000, longest_ns % 1'000'000'000};
  io_uring_getevents_arg arg{0, _NSIG / 8, 0, reinterpret_cast<uint64_t>(&ts)};
  unsigned flags = IORING_ENTER_GETEVENTS | (registered_ring_ ? IORING_ENTER_REGISTERED_RING : 0);
  if (wait_for > 0) flags |= IORING_ENTER_EXT_ARG;
  long n = ::syscall(__NR_io_uring_enter, registered_ring_ ? ring_.enter_ring_fd : ring_.ring_fd, all,
                     wait_for, flags, wait_for > 0 ? &arg : nullptr, wait_for > 0 ? sizeof arg : _NSIG / 8);
  if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY && errno != ETIME)
    throw_errno("submit to", "io_uring");
  not_taken_ = all - static_cast<unsigned>(std::max(n, 0L));
}

// Operations of one batch that are done together took the same time: they are counted together.
void HostWorker::reap(int64_t now) {
  const io_uring_cqe* cqes = ring_.cq.cqes;
  const uint32_t mask = ring_.cq.ring_entries - 1;
  uint32_t head = *ring_.cq.khead;
  const uint32_t tail = __atomic_load_n(ring_.cq.ktail, __ATOMIC_ACQUIRE);
  if (head == tail) return;
  uint64_t good = 0, run = 0;
  int64_t began = 0;
  for (; head != tail; ++head) {
    const io_uring_cqe& cqe = cqes[head & mask];
    auto slot = static_cast<uint32_t>(cqe.user_data);
    idle_.push_back(slot);
    if (__builtin_expect(cqe.res != good_result_, 0)) {
      note_failure(cqe.res);
      continue;
    }
    ++good;
    if (began_[slot] != began) {
      if (run != 0) book_.latency.record(static_cast<uint64_t>(now - began), run);
      began = began_[slot];
      run = 0;
    }
    ++run;
  }
  if (run != 0) book_.latency.record(static_cast<uint64_t>(now - began), run);
  under_way_ -= static_cast<unsigned>(tail - *ring_.cq.khead);
  __atomic_store_n(ring_.cq.khead, head, __ATOMIC_RELEASE);
  bump(book_.completed, good);
  bump(book_.bytes, good * block_bytes_);
}

void HostWorker::note_failure(int32_t result) {
  bump(book_.failed);
  bump(account_.failed_by[kStatuses - 1]);
  if (account_.finding[0] != '\0') return;
  std::string what =
      result < 0 ? std::strerror(-result) : fmt::format("{} instead of {}", result, good_result_);
  what = fmt::format("{}: {}", job_.path.empty() ? "io_uring" : job_.path, what);
  what.copy(account_.finding, sizeof account_.finding - 1);
}

void HostWorker::note_due(int64_t now) {
  uint64_t most = job_.count != 0 ? job_.count : UINT64_MAX;
  for (int64_t at; due_.index() < most && (at = start_ + due_.next().count()) <= now && at < end_;)
    due_.advance();
  if (due_.index() > next_.index()) raise_to(account_.backlog_max, due_.index() - next_.index());
}

// Nothing more is sent. As DeviceWorker does it: what never started has waited until now at least.
void HostWorker::give_up_backlog(int64_t now) {
  if (!std::exchange(sending_, false) || !job_.open_loop) return;
  note_due(now);
  for (; next_.index() < due_.index(); next_.advance()) {
    bump(account_.not_started);
    book_.latency.record(static_cast<uint64_t>(now - start_ - next_.next().count()));
  }
}

}  // namespace kz::load
