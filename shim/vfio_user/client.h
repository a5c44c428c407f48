// SPDX-License-Identifier: GPL-2.0-or-later
// Client side of the vfio-user protocol (wire.h): device, regions, interrupts, DMA map, and the requests a
// server may make. A receiver thread hands replies to who waits for them and serves the server's requests, so
// that a request of ours may be outstanding while the server reads our memory by messages.
//
// A server is not trusted: any bytes, any descriptors and any silence end in an Error, in bounded time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shim/base/fd.h"
#include "shim/base/units.h"
#include "shim/vfio_user/decode.h"
#include "shim/vfio_user/message_memory.h"
#include "shim/vfio_user/stream.h"
#include "shim/vfio_user/wire.h"

namespace kz::vfio_user {

struct Region {
  uint64_t size = 0;
  uint32_t flags = 0;
  Fd fd;  // where it can be mapped
  uint64_t fd_offset = 0;
  std::vector<Area> areas;  // what may be mapped
};

struct IoDoorbell {
  uint64_t offset = 0;  // in the region
  Fd event;             // checked to be an eventfd
};

class Client {
 public:
  // Connects and negotiates. `timeout` is the budget of the connection and of every request, which is capped
  // at 5 s. Throws Error: not_found (no socket, or nobody listens), permission, busy (the server closes at
  // once: it has a client), unsupported (other version), protocol (nonsense), timeout.
  Client(const std::string& path, std::chrono::nanoseconds timeout);
  // The same over a socket that is already connected (tests, fuzzers).
  Client(Fd socket, std::string name, std::chrono::nanoseconds timeout);
  ~Client();
  Client(const Client&) = delete;

  // Requests, from any thread. Each throws Error(gone) when the peer closed, Error(timeout), Error(io) with
  // the server's errno, Error(protocol) for a reply that does not fit.
  DeviceInfo device_info();
  Region region_info(uint32_t index);
  IrqInfo irq_info(uint32_t index);
  // Doorbell eventfds of a region, in the order of their offsets. Empty where the server has none.
  std::vector<IoDoorbell> region_io_fds(uint32_t index);
  // Split where the server's limit asks for it. `budget`: for each message, default the client's own.
  void region_read(uint32_t region, uint64_t offset, std::span<std::byte> out,
                   std::optional<std::chrono::nanoseconds> budget = {});
  void region_write(uint32_t region, uint64_t offset, std::span<const std::byte> in,
                    std::optional<std::chrono::nanoseconds> budget = {});
  void set_irq_eventfds(uint32_t index, uint32_t start, std::span<const int> fds);
  void unset_irqs(uint32_t index);
  // Maps `range` for the device. With `fd` (range at `offset` in it) the server maps it too; -1: messages
  // only. The server may use messages in both cases.
  void dma_map(const MessageRange& range, int fd, uint64_t offset);
  // The memory is out of reach of messages when it returns or throws. A budget of 0 does only that and tells
  // the server nothing (for a server that does not answer).
  void dma_unmap(uint64_t address, uint64_t size, std::optional<std::chrono::nanoseconds> budget = {});
  void reset(std::chrono::nanoseconds timeout);

  bool alive() const { return !closed_.load(); }
  // Ends the connection; calls that wait throw Error(gone).
  void close();
  MessageCounts message_counts() const { return memory_.counts(); }
  const Agreement& agreement() const { return agreement_; }
  const std::string& name() const { return name_; }

 private:
  struct Pending {
    bool done = false;
    Incoming reply;
  };
  struct Request {
    uint16_t command = 0;
    const char* what = "";  // for errors: "read region"
    std::span<const std::byte> payload{}, tail{};
    std::span<const int> fds{};
    std::optional<std::chrono::nanoseconds> budget{};
  };
  void negotiate();
  Incoming call(const Request& request);
  uint16_t enlist();
  Incoming await(uint16_t id, const Request& request, Deadline deadline);
  void send(const Header& header, std::span<const std::byte> a, std::span<const std::byte> b,
            std::span<const int> fds, Deadline deadline);
  void receive_loop();
  bool receive_some(Stream& stream);
  void dispatch(Incoming message);
  void serve(const Incoming& message);
  void end(const std::string& why);
  [[noreturn]] void throw_gone(const char* what);

  std::string name_;
  std::chrono::nanoseconds timeout_;
  Fd socket_;
  Agreement agreement_;
  MessageMemory memory_;
  std::atomic<bool> closed_{false};
  std::timed_mutex send_mutex_;
  std::mutex mutex_;  // pending_, next_id_, close_reason_
  std::condition_variable changed_;
  std::map<uint16_t, Pending> pending_;
  uint16_t next_id_ = 1;
  std::string close_reason_;
  std::thread receiver_;
};

}  // namespace kz::vfio_user
