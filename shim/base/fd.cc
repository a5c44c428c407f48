// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/base/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim/base/error.h"

namespace kz {

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Fd Fd::dup() const {
  int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) throw_errno("duplicate", "file descriptor");
  return Fd(fd);
}

Fd make_eventfd(bool nonblocking) {
  int fd = ::eventfd(0, EFD_CLOEXEC | (nonblocking ? EFD_NONBLOCK : 0));
  if (fd < 0) throw_errno("create", "eventfd");
  return Fd(fd);
}

void signal_eventfd(int fd, uint64_t n) {
  ssize_t done;
  do done = ::write(fd, &n, sizeof n);
  while (done < 0 && errno == EINTR);
  if (done < 0 && errno != EAGAIN) throw_errno("signal", "eventfd");
}

void signal_shared_eventfd(int fd) {
  pollfd p{fd, POLLOUT, 0};
  if (::poll(&p, 1, 0) != 1) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t done = ::write(fd, &one, sizeof one);
}

uint64_t drain_eventfd(int fd) {
  uint64_t n = 0;
  ssize_t done;
  do done = ::read(fd, &n, sizeof n);
  while (done < 0 && errno == EINTR);
  if (done < 0 && errno != EAGAIN) throw_errno("read", "eventfd");
  return done == static_cast<ssize_t>(sizeof n) ? n : 0;
}

Fd make_memfd(const std::string& name, Bytes size, bool fixed) {
  Fd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("create memfd", name);
  if (::ftruncate(fd.get(), static_cast<off_t>(size.value)) != 0) throw_errno("size memfd", name);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL | (fixed ? F_SEAL_GROW : 0)) != 0)
    throw_errno("seal memfd", name);
  return fd;
}

Mapping::Mapping(int fd, uint64_t offset, Bytes size, bool writable, const std::string& what) : n_(size.value) {
  void* p = ::mmap(nullptr, n_, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, static_cast<off_t>(offset));
  if (p == MAP_FAILED) throw_errno("map", what);
  p_ = static_cast<std::byte*>(p);
}

Mapping& Mapping::operator=(Mapping&& o) noexcept {
  std::swap(p_, o.p_);
  std::swap(n_, o.n_);
  return *this;
}

Mapping::~Mapping() {
  if (p_ == nullptr || ::munmap(p_, n_) == 0 || errno != EINVAL) return;
  // Memory of huge pages goes in whole ones only.
  for (size_t page : {size_t{2} << 20, size_t{1} << 30})
    if (::munmap(p_, (n_ + page - 1) / page * page) == 0) return;
}

}  // namespace kz
