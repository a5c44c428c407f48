// SPDX-License-Identifier: GPL-2.0-or-later
// One vfio-user client of the device: bytes in, messages out. It uses no socket and never waits, so that a
// test or a fuzzer can drive it in memory:
//
//   FaultBoard faults;
//   Device device({.engine = {.hbm_bytes = 64 << 20}}, faults);
//   struct Sink : Channel { bool send(...) override { return true; } } sink;   // replies and DMA requests
//   arrive here Session session(device, sink); session.receive(bytes, {});    // any bytes, in any pieces,
//   with any descriptors
//
// receive() throws Error(protocol) when the client must be dropped: a header that makes no sense, a first
// message other than VERSION, a version that we do not speak. Everything else that is wrong in a message gets
// an error reply. No input makes it wait, allocate without bound, or touch anything but the device. Valid
// messages can enable queues, whose workers then run; the destructor stops them and leaves the device as
// after power-on.
//
// Source: QEMU docs/interop/vfio-user.rst. Commands are answered in order; a DMA_UNMAP is answered when the
// last access to its window has ended, and commands behind it wait so long. Replies of the client are taken
// out of turn.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/softtpu/device.h"
#include "tools/softtpu/message.h"
#include "tools/softtpu/remote_memory.h"

namespace kz::softtpu {

class Session {
 public:
  // Both must outlive the session. One session a device at a time.
  Session(Device& device, Channel& channel);
  ~Session();
  Session(const Session&) = delete;

  void receive(std::span<const std::byte> bytes, std::vector<Fd> fds);
  // For a reader that wants no copy: where to put the next bytes, and that they are there.
  std::span<std::byte> room() { return stream_.room(); }
  void received(size_t n, std::vector<Fd> fds);
  // Goes on with commands that waited; call it after DmaTable::on_quiet fired.
  void resume();

  bool negotiated() const { return negotiated_; }
  // Commands that wait: a reader should leave more in the socket.
  bool backlogged() const { return commands_.size() >= 4096 || backlog_bytes_ >= (8u << 20); }

 private:
  struct Reply {
    int error = 0;
    std::vector<std::byte> payload = {};
    std::vector<int> fds = {};  // borrowed
  };
  static Reply failed(int error) { return {error}; }
  template <class T>
  static void append(std::vector<std::byte>& to, const T& value) {
    auto bytes = std::as_bytes(std::span(&value, 1));
    to.insert(to.end(), bytes.begin(), bytes.end());
  }

  void pump();
  void resume_unmap();
  void handle(Message message);
  void answer(const Message& message, const Reply& reply);
  std::optional<Reply> dispatch(Message& message);  // nothing: answered later

  // session.cc
  Reply on_version(Message& m);
  Reply on_device_reset(Message& m);
  // session_dma.cc
  Reply on_dma_map(Message& m);
  std::optional<Reply> on_dma_unmap(Message& m);
  // session_info.cc
  Reply on_get_info(Message& m);
  Reply on_region_info(Message& m);
  Reply on_region_io_fds(Message& m);
  Reply on_irq_info(Message& m);
  Reply on_set_irqs(Message& m);
  // session_region.cc
  Reply on_region_read(Message& m);
  Reply on_region_write(Message& m);
  Reply on_region_write_multi(Message& m);

  struct Unmapping {
    Message message;  // to answer
    DmaTable::Windows dying;
    vfio_user::DmaUnmap request;
  };

  Device& device_;
  Channel& channel_;
  MessageStream stream_;
  bool negotiated_ = false;
  uint32_t client_max_fds_ = 1;  // what the client takes with one message
  std::deque<Message> commands_;
  size_t backlog_bytes_ = 0;
  std::optional<Unmapping> unmapping_;
};

}  // namespace kz::softtpu
