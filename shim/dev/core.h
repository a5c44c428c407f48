// SPDX-License-Identifier: GPL-2.0-or-later
// What the objects of one open node share: the file, whether the device was reset since an object was made,
// and who has what in the driver. It lives as long as the last of them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "shim/dev/node.h"
#include "shim/device.h"

namespace kz::dev {

// A queue as the driver has it. Thread-safe.
class QueueHandle {
 public:
  QueueHandle(int fd, uint32_t id) : fd_(fd), id_(id) {}
  uint32_t id() const { return id_; }
  bool open() const { return open_; }
  // Ends it in the driver, once; its books stay. Outstanding commands end as lost.
  void close() noexcept;
  kz_ioc_queue_stat books();

 private:
  const int fd_;
  const uint32_t id_;
  std::mutex mutex_;
  std::atomic<bool> open_{true};
  kz_ioc_queue_stat last_{};
};

// A context as the driver has it, 0 the privileged one. Its queues and blocks may outlive it.
struct ContextState {
  uint32_t id = 0;
  uint64_t epoch = 0;  // Core::epoch() when it was made; 0: the privileged context, which outlives resets
  std::atomic<bool> open{true};
  std::mutex mutex;
  std::vector<std::weak_ptr<QueueHandle>> queues;
};

class Buffer;

class Core {
 public:
  explicit Core(Node node);
  Core(const Core&) = delete;

  const Node& node() const { return node_; }
  int fd() const { return node_.fd.get(); }
  const std::string& why_no_uring() const { return why_no_uring_; }

  // Counts what ended all contexts and queues. What was made in an earlier epoch is dead. Looks at the
  // driver: one system call.
  uint64_t epoch();
  // Asks the driver: 0 or -errno. The driver tells of a reset until it is asked, so nobody asks but by this.
  int info(kz_info& info);
  // From here on everything that was open is dead, whatever the driver says.
  void let_go() { ++epoch_; }
  // Throws Error(gone) where the driver has given the device up. Does not wait.
  void check_there(const char* what, const std::string& target);
  // For good: a new open file takes over.
  void abandon();

  void add(const std::shared_ptr<ContextState>& context);
  // Ends queues and, unless somebody newer has its number, the context in the driver. Swallows failures.
  void close(ContextState& context) noexcept;
  // The same for all contexts of earlier epochs, whose objects still live.
  void close_dead();

  // Registered host memory, for what needs the bytes behind an address of ours.
  void add(Buffer* buffer);
  void remove(Buffer* buffer);
  std::vector<Buffer*> buffers();
  std::span<std::byte> bytes_at(Iova addr, uint64_t len);  // empty where that is not in one buffer

 private:
  Node node_;
  std::string why_no_uring_;
  std::atomic<uint64_t> epoch_{1};
  std::atomic<bool> abandoned_{false};
  std::mutex mutex_;
  uint32_t generation_ = 0;                                   // the driver's, as last seen
  std::map<uint32_t, std::weak_ptr<ContextState>> contexts_;  // by number, the newest
  std::vector<std::weak_ptr<ContextState>> replaced_;         // dead ones whose number was given again
  std::vector<Buffer*> buffers_;
};

}  // namespace kz::dev
