// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/vfio_user/message_memory.h"

#include <cerrno>

namespace kz::vfio_user {

void MessageMemory::add(const MessageRange& range) {
  std::lock_guard lock(mutex_);
  ranges_[range.address] = range;
}

void MessageMemory::remove(uint64_t address) {
  std::lock_guard lock(mutex_);
  ranges_.erase(address);
}

MessageCounts MessageMemory::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

// An access lies in one range: the device model splits at the ranges that it was given.
int MessageMemory::access(const DmaAccess& a, bool write, std::span<const std::byte> in,
                          std::vector<std::byte>& out) {
  if (a.count == 0 || a.count > max_data || (write && in.size() != a.count)) return EINVAL;
  auto it = ranges_.upper_bound(a.address);
  if (it == ranges_.begin()) return EFAULT;
  const MessageRange& r = std::prev(it)->second;
  uint64_t offset = a.address - r.address;
  if (offset >= r.bytes.size() || a.count > r.bytes.size() - offset) return EFAULT;
  if (!(write ? r.writable : r.readable)) return EACCES;
  if (write) {
    std::memcpy(r.bytes.data() + offset, in.data(), a.count);
  } else {
    out.resize(sizeof a + a.count);
    std::memcpy(out.data() + sizeof a, r.bytes.data() + offset, a.count);
  }
  return 0;
}

MessageMemory::Answer MessageMemory::serve(const Incoming& request) {
  Answer answer;
  bool write = request.header.command == cmd_dma_write;
  std::lock_guard lock(mutex_);
  if (!write && request.header.command != cmd_dma_read) {
    answer.error = ENOTSUP;
  } else if (request.payload.size() < sizeof(DmaAccess) ||
             (!write && request.payload.size() != sizeof(DmaAccess))) {
    answer.error = EINVAL;
  } else {
    auto a = request.as<DmaAccess>("DMA request");
    answer.payload.resize(sizeof a);
    answer.error = access(a, write, std::span(request.payload).subspan(sizeof a), answer.payload);
    std::memcpy(answer.payload.data(), &a, sizeof a);
    if (answer.error == 0) {
      ++(write ? counts_.writes : counts_.reads);
      counts_.bytes += a.count;
      return answer;
    }
  }
  ++counts_.refused;
  answer.payload.clear();
  return answer;
}

}  // namespace kz::vfio_user
