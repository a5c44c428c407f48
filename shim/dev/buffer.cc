// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/buffer.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "shim/base/error.h"
#include "shim/dev/call.h"

namespace kz::dev {
namespace {

constexpr uint64_t page_size = 4096;
// How long commands that are in flight may hold a buffer that is to go; longer than the driver's time limit
// of one.
constexpr auto patience_of_unmap = 15s;
constexpr auto patience_at_the_end = 1s;

// The driver says -ENOMEM for both: no memory, and not so much for this user.
[[noreturn]] void no_memory(const std::string& what, uint64_t size) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    throw Error(
        {Errc::permission, "register", what,
         fmt::format("this user may pin {} in all (RLIMIT_MEMLOCK)", to_string(Bytes{limit.rlim_cur})),
         "raise it: ulimit -l, or memlock in limits.conf", size > limit.rlim_cur ? 0 : ENOMEM});
  throw_call("register", what, ENOMEM);
}

}  // namespace

Buffer::Buffer(std::shared_ptr<Core> core, const DmaSpec& spec)
    : core_(std::move(core)),
      size_(spec.size.value),
      mapped_(align_up(spec.size.value, page_size)),
      flags_((spec.device_reads ? KZ_BUF_DEVICE_READS : 0) |
             (spec.device_writes ? KZ_BUF_DEVICE_WRITES : 0)) {
  if (spec.at)
    throw Error({Errc::unsupported, "map host memory at", fmt::format("bus address {:#x}", spec.at->value),
                 "the driver chooses bus addresses", "", 0});
  if (size_ == 0 || size_ >> KZ_HOST_SHIFT != 0 || flags_ == 0)
    throw Error({Errc::usage, "make", "DMA buffer", "of " + to_string(spec.size), "", 0});
  // A child must not share what the device writes to. The pages are there before they are pinned: untouched
  // memory is one page of zeros for all.
  void* p = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED) throw_errno("map", "DMA buffer of " + to_string(spec.size));
  memory_ = static_cast<std::byte*>(p);
  ::madvise(p, mapped_, MADV_DONTFORK);
  try {
    enroll();
  } catch (...) {
    ::munmap(memory_, mapped_);
    throw;
  }
  core_->add(this);
}

void Buffer::enroll() {
  kz_ioc_buf a{};
  a.flags = flags_;
  a.addr = reinterpret_cast<uint64_t>(memory_);
  a.len = size_;
  int rc = call(core_->fd(), KZ_IOC_BUF_REGISTER, a);
  std::string what = fmt::format("DMA buffer of {}", to_string(Bytes{size_}));
  if (rc == -ENOMEM) no_memory(what, size_);
  if (rc < 0) throw_call("register", what, -rc);
  handle_ = a.handle;
  base_ = a.base;
}

// False: commands hold it to the end of the patience.
bool Buffer::withdraw(std::chrono::nanoseconds patience) {
  if (handle_ == 0) return true;
  for (Deadline deadline(patience);; ::poll(nullptr, 0, 1)) {
    kz_ioc_buf a{};
    a.handle = handle_;
    int rc = call(core_->fd(), KZ_IOC_BUF_UNREGISTER, a);
    if (rc == -EBUSY && !deadline.passed()) continue;
    if (rc == -EBUSY) return false;
    handle_ = 0;  // also where the file has lost everything
    return true;
  }
}

void Buffer::unmap() {
  wanted_ = false;
  if (withdraw(patience_of_unmap)) return;
  throw Error({Errc::busy, "unmap", fmt::format("DMA buffer at {:#x}", base_),
               "commands that use it have not ended", "reset the queue", EBUSY});
}

void Buffer::move_to(std::shared_ptr<Core> core) noexcept {
  core_->remove(this);
  core_ = std::move(core);
  handle_ = 0;
  core_->add(this);
}

void Buffer::enroll_again() {
  if (wanted_) enroll();
}

// What the device may still write to stays pinned by the driver; it is not ours any more.
Buffer::~Buffer() {
  withdraw(patience_at_the_end);
  core_->remove(this);
  ::munmap(memory_, mapped_);
}

}  // namespace kz::dev
