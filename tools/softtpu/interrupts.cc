// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/interrupts.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "shim/uapi/kz_regs.h"

namespace kz::softtpu {

using vfio_user::SetIrqs;

namespace {

constexpr uint32_t data_bits =
    vfio_user::set_data_none | vfio_user::set_data_bool | vfio_user::set_data_eventfd;
constexpr uint32_t action_bits =
    vfio_user::set_action_mask | vfio_user::set_action_unmask | vfio_user::set_action_trigger;
constexpr uint32_t entry_bytes = 16;
constexpr uint32_t entry_control = 12;  // Vector Control; bit 0 masks

}  // namespace

bool is_eventfd(int fd) {
  char name[64];
  std::string link = "/proc/self/fd/" + std::to_string(fd);
  ssize_t n = ::readlink(link.c_str(), name, sizeof name);
  return n > 0 && std::string_view(name, static_cast<size_t>(n)) == "anon_inode:[eventfd]";
}

Interrupts::Interrupts(IrqMode mode, unsigned vectors) : mode_(mode), vectors_(vectors) { reset_entries(); }

void Interrupts::reset_entries() {
  for (Vector& v : vectors_) {
    std::memset(v.entry, 0, sizeof v.entry);
    v.entry[entry_control] = 1;  // 7.7.2.6: masked after reset
    v.written = false;
    v.pending = false;
  }
}

vfio_user::IrqInfo Interrupts::info(uint32_t index) const {
  vfio_user::IrqInfo info{sizeof info, 0, index, 0};
  uint32_t own = mode_ == IrqMode::msix ? vfio_user::irq_msix : vfio_user::irq_msi;
  if (index == own) {
    info.count = static_cast<uint32_t>(vectors_.size());
    info.flags = vfio_user::irq_eventfd | vfio_user::irq_maskable;
  } else if (index == vfio_user::irq_err || index == vfio_user::irq_req) {
    info.count = 1;
    info.flags = vfio_user::irq_eventfd;
  }
  return info;
}

int Interrupts::set_irqs(const SetIrqs& set, std::span<const std::byte> data, std::vector<Fd>& fds) {
  if (set.argsz < sizeof set || set.index >= vfio_user::irq_count) return EINVAL;
  uint32_t kind = set.flags & data_bits, action = set.flags & action_bits;
  if ((set.flags & ~(data_bits | action_bits)) != 0 || !std::has_single_bit(kind) ||
      !std::has_single_bit(action))
    return EINVAL;
  uint32_t count = info(set.index).count;
  if (set.start > count || set.count > count - set.start) return EINVAL;
  if (kind != vfio_user::set_data_eventfd && !fds.empty()) return EINVAL;
  if (kind == vfio_user::set_data_bool && data.size() < set.count) return EINVAL;
  Signals out;
  int err;
  {
    std::lock_guard lock(m_);
    err = apply(set, data, fds, out);
    collect(out);
  }
  send(out);
  return err;
}

int Interrupts::apply(const SetIrqs& set, std::span<const std::byte> data, std::vector<Fd>& fds,
                      Signals& out) {
  uint32_t kind = set.flags & data_bits, action = set.flags & action_bits;
  if (kind == vfio_user::set_data_eventfd)
    return action == vfio_user::set_action_trigger ? connect(set, fds) : ENOTSUP;
  bool notifier = set.index == vfio_user::irq_err || set.index == vfio_user::irq_req;
  auto& single = set.index == vfio_user::irq_err ? err_ : req_;
  if (kind == vfio_user::set_data_none && set.count == 0) {  // switches the whole index off
    if (action != vfio_user::set_action_trigger || set.start != 0) return EINVAL;
    if (notifier) single.reset();
    if (!notifier && info(set.index).count > 0)  // an index without vectors has nothing to switch off
      for (Vector& v : vectors_) v.event.reset();
    return 0;
  }
  if (notifier && action != vfio_user::set_action_trigger) return ENOTSUP;
  for (uint32_t i = 0; i < set.count; ++i) {
    if (kind == vfio_user::set_data_bool && data[i] == std::byte{0}) continue;
    if (notifier) {
      out.push_back(single);
    } else if (Vector& v = vectors_[set.start + i]; action == vfio_user::set_action_trigger) {
      out.push_back(v.event);
    } else {
      v.client_masked = action == vfio_user::set_action_mask;
    }
  }
  return 0;
}

int Interrupts::connect(const SetIrqs& set, std::vector<Fd>& fds) {
  if (!fds.empty() && fds.size() != set.count) return EINVAL;
  for (const Fd& fd : fds)
    if (!is_eventfd(fd.get())) return EINVAL;
  for (uint32_t i = 0; i < set.count; ++i) {
    auto event = fds.empty() ? nullptr : std::make_shared<const Fd>(std::move(fds[i]));
    if (set.index == vfio_user::irq_err) {
      err_ = std::move(event);
    } else if (set.index == vfio_user::irq_req) {
      req_ = std::move(event);
    } else {
      Vector& v = vectors_[set.start + i];
      v.event = std::move(event);
      v.client_masked = false;
    }
  }
  return 0;
}

unsigned Interrupts::connected() const {
  std::lock_guard lock(m_);
  unsigned n = 0;
  for (unsigned v = 0; v < vectors_.size(); ++v)
    if (vectors_[v].event != nullptr) n = v + 1;
  return n;
}

void Interrupts::forget_client() {
  std::lock_guard lock(m_);
  for (Vector& v : vectors_) {
    v.event.reset();
    v.client_masked = false;
  }
  err_.reset();
  req_.reset();
}

bool Interrupts::masked(unsigned v) const {
  const Vector& vec = vectors_[v];
  if (function_masked_ || vec.client_masked || (device_mask_ >> v & 1) != 0) return true;
  if (mode_ == IrqMode::msi) return (msi_mask_ >> v & 1) != 0;
  return vec.written && (vec.entry[entry_control] & 1) != 0;
}

bool Interrupts::deliverable(unsigned v) const {
  return enabled_ && reachable_ && vectors_[v].event != nullptr && !masked(v);
}

void Interrupts::raise(unsigned vector) {
  std::shared_ptr<const Fd> event;
  {
    std::lock_guard lock(m_);
    if (mode_ == IrqMode::msi) vector &= allocated_ - 1;
    if (!enabled_ || vector >= vectors_.size())
      return;  // the function must not send, and has nowhere to note it
    if (!deliverable(vector)) {
      vectors_[vector].pending = true;
      return;
    }
    event = vectors_[vector].event;
    ++raised_;
  }
  signal_shared_eventfd(event->get());
}

uint64_t Interrupts::raised() const {
  std::lock_guard lock(m_);
  return raised_;
}

void Interrupts::collect(Signals& out) {
  for (unsigned v = 0; v < vectors_.size(); ++v) {
    if (!vectors_[v].pending || !deliverable(v)) continue;
    vectors_[v].pending = false;
    ++raised_;
    out.push_back(vectors_[v].event);
  }
}

void Interrupts::send(const Signals& signals) {
  for (const auto& event : signals)
    if (event != nullptr) signal_shared_eventfd(event->get());
}

void Interrupts::set_function(bool enabled, bool masked, unsigned allocated, uint32_t msi_mask) {
  Signals out;
  {
    std::lock_guard lock(m_);
    enabled_ = enabled;
    function_masked_ = masked;
    allocated_ =
        std::min<unsigned>(std::max(allocated, 1u), std::bit_ceil(static_cast<unsigned>(vectors_.size())));
    msi_mask_ = msi_mask;
    collect(out);
  }
  send(out);
}

void Interrupts::set_reachable(bool on) {
  Signals out;
  {
    std::lock_guard lock(m_);
    reachable_ = on;
    collect(out);
  }
  send(out);
}

void Interrupts::set_device_mask(uint32_t mask) {
  Signals out;
  {
    std::lock_guard lock(m_);
    device_mask_ = mask;
    collect(out);
  }
  send(out);
}

uint32_t Interrupts::device_mask() const {
  std::lock_guard lock(m_);
  return device_mask_;
}

uint32_t Interrupts::pending() const {
  std::lock_guard lock(m_);
  uint32_t bits = 0;
  for (unsigned v = 0; v < vectors_.size(); ++v) bits |= uint32_t{vectors_[v].pending} << v;
  return bits;
}

void Interrupts::reset() {
  std::lock_guard lock(m_);
  reset_entries();
  device_mask_ = 0;
}

void Interrupts::reset_device_mask() {
  std::lock_guard lock(m_);
  device_mask_ = 0;
  for (Vector& v : vectors_) v.pending = false;
}

void Interrupts::table_read(uint32_t offset, std::span<std::byte> out) const {
  uint32_t bits = pending();
  std::lock_guard lock(m_);
  for (size_t i = 0; i < out.size(); ++i) {
    uint32_t at = offset + static_cast<uint32_t>(i);
    uint8_t b = 0;
    if (mode_ == IrqMode::msix && at < vectors_.size() * entry_bytes)
      b = vectors_[at / entry_bytes].entry[at % entry_bytes];
    else if (mode_ == IrqMode::msix && at >= KZ_MSIX_PBA_OFFSET && at < KZ_MSIX_PBA_OFFSET + sizeof bits)
      b = static_cast<uint8_t>(bits >> (8 * (at - KZ_MSIX_PBA_OFFSET)));
    out[i] = std::byte{b};
  }
}

void Interrupts::table_write(uint32_t offset, std::span<const std::byte> in) {
  Signals out;
  {
    std::lock_guard lock(m_);
    for (size_t i = 0; i < in.size(); ++i) {
      uint32_t at = offset + static_cast<uint32_t>(i);
      if (mode_ != IrqMode::msix || at >= vectors_.size() * entry_bytes) continue;  // the PBA is read-only
      Vector& v = vectors_[at / entry_bytes];
      uint32_t field = at % entry_bytes;
      auto b = static_cast<uint8_t>(in[i]);
      if (field == 0) b &= 0xfc;  // Message Address is dword aligned
      if (field >= entry_control) b &= field == entry_control ? 1 : 0;
      v.entry[field] = b;
      v.written = true;
    }
    collect(out);
  }
  send(out);
}

}  // namespace kz::softtpu
