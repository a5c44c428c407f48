// SPDX-License-Identifier: GPL-2.0-or-later
// Host memory that a server reaches by DMA_READ and DMA_WRITE messages. Every access is checked against what
// is mapped and with which right, and counted. No sockets in here. Source: QEMU docs/interop/vfio-user.rst,
// "VFIO_USER_DMA_READ", "VFIO_USER_DMA_WRITE".
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "shim/vfio_user/stream.h"

namespace kz::vfio_user {

struct MessageRange {
  uint64_t address = 0;        // as the device sees it
  std::span<std::byte> bytes;  // must outlive the range's stay in the table
  bool readable = true;        // by the device
  bool writable = true;
};

struct MessageCounts {
  uint64_t reads = 0, writes = 0, bytes = 0;
  uint64_t refused = 0;  // unmapped, without the right, or malformed
};

class MessageMemory {
 public:
  void add(const MessageRange& range);
  // When it returns, no access to that memory is under way.
  void remove(uint64_t address);
  // Serves one request of the server. Returns an errno (0: done) and fills `payload` of the reply.
  struct Answer {
    int error = 0;
    std::vector<std::byte> payload;
  };
  Answer serve(const Incoming& request);
  MessageCounts counts() const;

 private:
  int access(const DmaAccess& access, bool write, std::span<const std::byte> in, std::vector<std::byte>& out);

  mutable std::mutex mutex_;
  std::map<uint64_t, MessageRange> ranges_;
  MessageCounts counts_;
};

}  // namespace kz::vfio_user
