// SPDX-License-Identifier: GPL-2.0-or-later
// A plain liburing loop as anybody would write it tightly: prepare, submit and wait, count.
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "tests/bench/load/measure.h"

namespace kz::bench {
namespace {

class BareRing {
 public:
  explicit BareRing(const std::string& file) {
    io_uring_params p{};
    p.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    if (int err = -io_uring_queue_init_params(kBatch, &ring_, &p); err > 0)
      throw_errno("set up", "io_uring", err);
    io_uring_register_ring_fd(&ring_);
    if (file.empty()) return;
    fd_ = Fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd_) throw_errno("open", file);
    struct stat st {};
    ::fstat(fd_.get(), &st);
    blocks_ = static_cast<uint64_t>(st.st_size) / kBlock;
    buffers_ = static_cast<char*>(::mmap(nullptr, kBatch * kBlock, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    if (buffers_ == MAP_FAILED) throw_errno("get", "buffers");
    iovec v{buffers_, kBatch * kBlock};
    int fd = fd_.get();
    if (int err = -io_uring_register_buffers(&ring_, &v, 1); err > 0) throw_errno("register", "buffers", err);
    if (int err = -io_uring_register_files(&ring_, &fd, 1); err > 0) throw_errno("register", file, err);
  }
  ~BareRing() {
    io_uring_queue_exit(&ring_);
    if (buffers_ != nullptr) ::munmap(buffers_, kBatch * kBlock);
  }

  unsigned batch() {
    for (unsigned i = 0; i < kBatch; ++i) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      if (fd_) {
        random_ = random_ * 6364136223846793005u + 1442695040888963407u;
        uint64_t block = (random_ >> 32) * blocks_ >> 32;
        io_uring_prep_read_fixed(sqe, 0, buffers_ + i * kBlock, kBlock, block * kBlock, 0);
        sqe->flags |= IOSQE_FIXED_FILE;
      } else {
        io_uring_prep_nop(sqe);
      }
    }
    io_uring_submit_and_wait(&ring_, kBatch);
    unsigned head = 0, n = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      if (cqe->res < 0) throw_errno("read", "the file", -cqe->res);
      ++n;
    }
    io_uring_cq_advance(&ring_, n);
    return n;
  }

 private:
  io_uring ring_{};
  Fd fd_;
  uint64_t blocks_ = 0, random_ = 1;
  char* buffers_ = nullptr;
};

}  // namespace

Cost run_bare_loop(const std::string& file, double seconds) {
  BareRing ring(file);
  double before = own_cpu_ns();
  auto start = Clock::now();
  auto end =
      start + std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  uint64_t done = 0;
  do
    for (int i = 0; i < 64; ++i) done += ring.batch();
  while (Clock::now() < end);
  double wall = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  return {wall / static_cast<double>(done), (own_cpu_ns() - before) / static_cast<double>(done)};
}

}  // namespace kz::bench
