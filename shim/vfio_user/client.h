// SPDX-License-Identifier: GPL-2.0-or-later
// Client side of the vfio-user protocol (wire.h): device, regions, interrupts,
// DMA map, and the requests a server may make.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shim/base/fd.h"
#include "shim/base/units.h"
#include "shim/vfio_user/stream.h"
#include "shim/vfio_user/wire.h"

namespace kz::vfio_user {

struct Region {
  uint64_t size = 0;
  uint32_t flags = 0;
  Fd fd; // where it can be mapped
  uint64_t fd_offset = 0;
  std::vector<Area>
      areas; // what may be mapped; the whole region where the server names none
};

struct Reply {
  std::vector<std::byte> payload;
  std::vector<Fd> fds;
};

// Host memory that the server reaches by messages. Every access is checked and
// counted.
struct MessageMemory {
  uint64_t address = 0;
  std::span<std::byte> bytes;
  bool readable = true;
  bool writable = true;
};

class Client {
public:
  // Connects and negotiates. Throws Error: not_found (no socket), permission,
  // busy (the server closes at once: it has a client), protocol (other version
  // or nonsense), timeout.
  Client(const std::string &path, std::chrono::nanoseconds timeout);
  // The same over a socket that is already connected (tests, fuzzers).
  Client(Fd socket, std::string name, std::chrono::nanoseconds timeout);
  ~Client();
  Client(const Client &) = delete;

  // Requests from any thread; each throws Error(gone) when the peer closed,
  // Error(timeout), Error(io) with the server's errno, Error(protocol) for a
  // reply of the wrong size.
  DeviceInfo device_info();
  Region region_info(uint32_t index);
  IrqInfo irq_info(uint32_t index);
  // Doorbell eventfds of a region, in the order of their offsets. Empty where
  // the server has none.
  std::vector<std::pair<uint64_t, Fd>> region_io_fds(uint32_t index);
  void region_read(uint32_t region, uint64_t offset, std::span<std::byte> out);
  void region_write(uint32_t region, uint64_t offset,
                    std::span<const std::byte> in);
  void set_irq_eventfds(uint32_t index, uint32_t start,
                        std::span<const int> fds);
  void unset_irqs(uint32_t index);
  // Shared memory: the server maps `fd`. Without fd: the server reaches
  // `memory` by messages.
  void dma_map(uint64_t address, uint64_t size, int fd, uint64_t offset,
               bool device_reads, bool device_writes);
  void dma_map_by_message(const MessageMemory &memory);
  void dma_unmap(uint64_t address, uint64_t size);
  void reset(std::chrono::nanoseconds timeout);

  bool alive() const { return !closed_.load(); }
  uint64_t message_reads() const { return message_reads_; }
  uint64_t message_writes() const { return message_writes_; }
  const std::string &name() const { return name_; }

private:
  struct Pending {
    bool done = false;
    Header header{};
    Reply reply;
  };
  void negotiate();
  Reply request(uint16_t command, std::span<const std::byte> payload,
                std::span<const int> fds, const char *what,
                std::chrono::nanoseconds timeout,
                std::span<const std::byte> tail = {});
  template <class T>
  Reply request(uint16_t command, const T &payload, const char *what,
                std::span<const int> fds = {},
                std::span<const std::byte> tail = {}) {
    return request(command, std::as_bytes(std::span(&payload, 1)), fds, what,
                   timeout_, tail);
  }
  void send(const Header &header, std::span<const std::byte> a,
            std::span<const std::byte> b, std::span<const int> fds,
            Deadline deadline);
  void receive_loop();
  void dispatch(Incoming message);
  void serve_dma(const Incoming &message);
  void close_all(const std::string &why);
  [[noreturn]] void throw_gone(const char *what);

  std::string name_;
  std::chrono::nanoseconds timeout_;
  Fd socket_, wake_;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> message_reads_{0}, message_writes_{0};
  uint32_t max_data_ = max_data;
  std::mutex send_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint16_t, Pending> pending_;
  uint16_t next_id_ = 1;
  std::string close_reason_;
  std::mutex memory_mutex_;
  std::map<uint64_t, MessageMemory> memory_;
  std::thread receiver_;
};

} // namespace kz::vfio_user
