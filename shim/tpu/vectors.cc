// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/vectors.h"

#include <sys/uio.h>

#include <cerrno>

namespace kz::tpu {
namespace {

// The count of a blocking eventfd without waiting for one; two threads may try at once.
uint64_t take(int fd) {
  uint64_t n = 0;
  iovec v{&n, sizeof n};
  if (::preadv2(fd, &v, 1, -1, RWF_NOWAIT) == sizeof n) return n;
  return 0;
}

}  // namespace

bool VectorHub::join(unsigned vector) {
  Vector& v = vectors_.at(vector);
  bool alone = ++v.users == 1;
  if (!alone) ++v.epoch;
  return alone;
}

void VectorHub::drain(unsigned vector) {
  if (uint64_t n = take(transport_.vector_fd(vector)); n > 0) add(vector, n);
}

std::vector<uint64_t> VectorHub::counts() {
  std::vector<uint64_t> out;
  for (unsigned v = 0; v < size(); ++v) {
    drain(v);
    out.push_back(count(v));
  }
  return out;
}

}  // namespace kz::tpu
