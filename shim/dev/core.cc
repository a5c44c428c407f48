// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/core.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "shim/dev/buffer.h"
#include "shim/dev/call.h"
#include "shim/dev/way.h"

namespace kz::dev {
namespace {

short events_of(int fd) {
  pollfd p{fd, POLLPRI, 0};
  return ::poll(&p, 1, 0) == 1 ? p.revents : 0;
}

}  // namespace

void QueueHandle::close() noexcept {
  std::lock_guard lock(mutex_);
  if (!open_.exchange(false)) return;
  kz_ioc_queue_stat stat{};
  stat.queue = id_;
  if (call(fd_, KZ_IOC_QUEUE_STAT, stat) == 0) last_ = stat;
  kz_ioc_queue q{};
  q.queue = id_;
  call(fd_, KZ_IOC_QUEUE_DESTROY, q);
}

kz_ioc_queue_stat QueueHandle::books() {
  std::lock_guard lock(mutex_);
  kz_ioc_queue_stat stat{};
  stat.queue = id_;
  if (open_ && call(fd_, KZ_IOC_QUEUE_STAT, stat) == 0) last_ = stat;
  return last_;
}

Core::Core(Node node) : node_(std::move(node)), generation_(node_.info.generation) {
  if ((node_.info.features & KZ_DF_URING) == 0)
    why_no_uring_ = "the driver takes no io_uring commands";
  else
    why_no_uring_ = dev::why_no_uring();
}

uint64_t Core::epoch() {
  if (abandoned_ || events_of(fd()) == 0) return epoch_;
  kz_info ignored{};
  info(ignored);
  return epoch_;
}

int Core::info(kz_info& info) {
  std::lock_guard lock(mutex_);
  int rc = call(fd(), KZ_IOC_INFO, info);
  if (abandoned_) return rc;
  if (rc == -ENODEV || (rc == 0 && info.generation != generation_)) {
    if (rc == 0) generation_ = info.generation;
    ++epoch_;
  }
  return rc;
}

void Core::check_there(const char* what, const std::string& target) {
  if (abandoned_) throw_call(what, target, ESTALE);
  short events = events_of(fd());
  if ((events & POLLHUP) != 0) throw_call(what, target, ENODEV);
  if ((events & POLLERR) != 0) throw_call(what, target, EIO);
}

void Core::abandon() {
  abandoned_ = true;
  node_.lock.reset();
  ++epoch_;
}

void Core::add(const std::shared_ptr<ContextState>& context) {
  std::lock_guard lock(mutex_);
  std::weak_ptr<ContextState>& place = contexts_[context->id];
  std::erase_if(replaced_, [](const auto& c) { return c.expired(); });
  if (!place.expired()) replaced_.push_back(place);
  place = context;
}

void Core::close(ContextState& context) noexcept {
  if (!context.open.exchange(false)) return;
  std::vector<std::weak_ptr<QueueHandle>> queues;
  {
    std::lock_guard lock(context.mutex);
    queues.swap(context.queues);
  }
  for (auto& weak : queues)
    if (auto queue = weak.lock()) queue->close();
  if (context.id == KZ_CTX_ROOT) return;
  std::lock_guard lock(mutex_);
  auto it = contexts_.find(context.id);
  if (it == contexts_.end()) return;
  if (auto newest = it->second.lock(); newest != nullptr && newest.get() != &context) return;
  contexts_.erase(it);
  kz_ioc_ctx c{};
  c.ctx = context.id;
  call(fd(), KZ_IOC_CTX_DESTROY, c);
}

void Core::close_dead() {
  uint64_t now = epoch();
  std::vector<std::shared_ptr<ContextState>> dead;
  {
    std::lock_guard lock(mutex_);
    auto take = [&](const std::weak_ptr<ContextState>& weak) {
      if (auto c = weak.lock(); c != nullptr && c->epoch != 0 && c->epoch != now) dead.push_back(c);
    };
    for (auto& [id, weak] : contexts_) take(weak);
    for (auto& weak : replaced_) take(weak);
  }
  for (auto& context : dead) close(*context);
}

void Core::add(Buffer* buffer) {
  std::lock_guard lock(mutex_);
  buffers_.push_back(buffer);
}

void Core::remove(Buffer* buffer) {
  std::lock_guard lock(mutex_);
  std::erase(buffers_, buffer);
}

std::vector<Buffer*> Core::buffers() {
  std::lock_guard lock(mutex_);
  return buffers_;
}

std::span<std::byte> Core::bytes_at(Iova addr, uint64_t len) {
  std::lock_guard lock(mutex_);
  for (Buffer* b : buffers_) {
    uint64_t size = b->bytes().size();
    if (addr < b->iova() || addr - b->iova() >= size || len > size - (addr - b->iova())) continue;
    return b->bytes().subspan(addr - b->iova(), len);
  }
  return {};
}

}  // namespace kz::dev
