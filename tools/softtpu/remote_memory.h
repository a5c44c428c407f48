// SPDX-License-Identifier: GPL-2.0-or-later
// Client memory that was mapped without a descriptor: reached by DMA_READ and DMA_WRITE messages to the
// client. Source: QEMU docs/interop/vfio-user.rst, "VFIO_USER_DMA_READ", "VFIO_USER_DMA_WRITE".
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <thread>

#include "tools/softtpu/message.h"

namespace kz::softtpu {

// Where messages to the client go.
class Channel {
 public:
  virtual ~Channel() = default;
  // One whole message: header, then head, then data. Never waits; thread-safe; header.size is already right.
  // False when the client is gone. `fds` are copied, not taken.
  virtual bool send(const vfio_user::Header& header, std::span<const std::byte> head,
                    std::span<const std::byte> data, std::span<const int> fds) = 0;
};

// Worker threads ask and wait; the thread that reads the socket hands in the replies. A thread that serves
// the socket must never call read or write.
class RemoteMemory {
 public:
  static constexpr size_t piece = 64 << 10;  // larger ones were seen to wedge a client

  explicit RemoteMemory(std::chrono::nanoseconds timeout = std::chrono::seconds(5)) : timeout_(timeout) {}

  void attach(Channel* channel, uint32_t max_data);
  // The client is gone: everything that waits fails now.
  void detach();
  // False when the client refuses, is gone, does not answer in time, or the calling thread is cancelled.
  bool read(uint64_t address, std::span<std::byte> out);
  bool write(uint64_t address, std::span<const std::byte> in);
  // A reply to one of our requests. Late and unknown ones are dropped.
  void on_reply(Message message);
  // Waits of that thread fail, now and until it is forgiven.
  void cancel(std::thread::id thread);
  void forgive(std::thread::id thread);

 private:
  struct Pending {
    std::thread::id thread;
    uint16_t command;
    std::span<std::byte> out;  // for reads
    uint64_t count;
    bool done = false, ok = false;
  };
  bool transfer(uint16_t command, uint64_t address, std::span<std::byte> out, std::span<const std::byte> in);

  std::chrono::nanoseconds timeout_;
  std::mutex m_;
  std::condition_variable changed_;
  Channel* channel_ = nullptr;
  size_t piece_ = piece;
  uint16_t next_id_ = 0;
  std::map<uint16_t, Pending*> pending_;
  std::set<std::thread::id> cancelled_;
};

}  // namespace kz::softtpu
