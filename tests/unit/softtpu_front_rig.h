// SPDX-License-Identifier: GPL-2.0-or-later
// A vfio-user client in memory for the unit tests of the software TPU: messages by hand, a queue driven by
// hand.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shim/base/units.h"
#include "shim/uapi/kz_cmd.h"
#include "shim/uapi/kz_regs.h"
#include "tools/softtpu/session.h"

namespace kz::softtpu::rig {

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  auto b = std::as_bytes(std::span(&value, 1));
  return {b.begin(), b.end()};
}
inline std::vector<std::byte> bytes_of(const std::string& text, bool terminated) {
  auto b = std::as_bytes(std::span(text.c_str(), text.size() + (terminated ? 1 : 0)));
  return {b.begin(), b.end()};
}
inline std::vector<std::byte> operator+(std::vector<std::byte> a, const std::vector<std::byte>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Sent {
  vfio_user::Header header{};
  std::vector<std::byte> payload;
  std::vector<Fd> fds;
  bool ok() const { return (header.flags & vfio_user::flag_error) == 0; }
  template <class T>
  T as(size_t offset = 0) const {
    T v{};
    EXPECT_GE(payload.size(), offset + sizeof v);
    if (payload.size() >= offset + sizeof v) std::memcpy(&v, payload.data() + offset, sizeof v);
    return v;
  }
};

// Where the session's messages arrive.
class Sink final : public Channel {
 public:
  bool send(const vfio_user::Header& header, std::span<const std::byte> head, std::span<const std::byte> data,
            std::span<const int> fds) override {
    Sent s{header, {head.begin(), head.end()}, {}};
    s.payload.insert(s.payload.end(), data.begin(), data.end());
    EXPECT_EQ(header.size, sizeof header + s.payload.size());
    for (int fd : fds) s.fds.emplace_back(::dup(fd));
    std::lock_guard lock(m_);
    (((header.flags & vfio_user::flag_type_mask) == vfio_user::flag_reply) ? replies_ : requests_)
        .push_back(std::move(s));
    changed_.notify_all();
    return true;
  }
  std::optional<Sent> reply() { return take(replies_); }
  std::optional<Sent> request(std::chrono::milliseconds wait = std::chrono::milliseconds(0)) {
    {
      std::unique_lock lock(m_);
      changed_.wait_for(lock, wait, [&] { return !requests_.empty(); });
    }
    return take(requests_);
  }

 private:
  std::optional<Sent> take(std::deque<Sent>& from) {
    std::lock_guard lock(m_);
    if (from.empty()) return std::nullopt;
    Sent s = std::move(from.front());
    from.pop_front();
    return s;
  }
  std::mutex m_;
  std::condition_variable changed_;
  std::deque<Sent> replies_, requests_;
};

inline DeviceOptions small_device() {
  DeviceOptions o;
  o.engine.hbm_bytes = 64 << 20;
  return o;
}

class Client {
 public:
  explicit Client(const DeviceOptions& options = small_device()) : device(options, faults) {
    session.emplace(device, sink);
  }

  std::vector<std::byte> message(uint16_t command, const std::vector<std::byte>& payload,
                                 uint32_t flags = 0) {
    vfio_user::Header h{next_id_++, command, static_cast<uint32_t>(sizeof h + payload.size()), flags, 0};
    return bytes_of(h) + payload;
  }
  // Sends a command and takes its reply, which must be there at once.
  Sent call(uint16_t command, const std::vector<std::byte>& payload, std::vector<Fd> fds = {}) {
    session->receive(message(command, payload), std::move(fds));
    auto r = sink.reply();
    EXPECT_TRUE(r.has_value()) << "no reply to command " << command;
    if (!r) return {};
    EXPECT_EQ(r->header.command, command);
    EXPECT_EQ(r->header.id, static_cast<uint16_t>(next_id_ - 1));
    return std::move(*r);
  }
  Sent version(const std::string& json = R"({"capabilities":{"max_msg_fds":16,"write_multiple":true}})") {
    return call(vfio_user::cmd_version, bytes_of(vfio_user::Version{0, 1}) + bytes_of(json, true));
  }
  uint64_t region_read(uint32_t region, uint64_t offset, uint32_t count) {
    Sent r = call(vfio_user::cmd_region_read, bytes_of(vfio_user::RegionAccess{offset, region, count}));
    EXPECT_TRUE(r.ok());
    uint64_t v = 0;
    if (r.payload.size() == 16u + count) std::memcpy(&v, r.payload.data() + 16, std::min<size_t>(count, 8));
    return v;
  }
  void region_write(uint32_t region, uint64_t offset, uint64_t value, uint32_t count) {
    auto data = bytes_of(value);
    data.resize(count);
    Sent r =
        call(vfio_user::cmd_region_write, bytes_of(vfio_user::RegionAccess{offset, region, count}) + data);
    EXPECT_TRUE(r.ok());
  }
  uint32_t reg(uint32_t offset) { return static_cast<uint32_t>(region_read(0, offset, 4)); }
  void reg(uint32_t offset, uint32_t value) { region_write(0, offset, value, 4); }
  uint64_t config(uint32_t offset, uint32_t count) {
    return region_read(vfio_user::region_config, offset, count);
  }
  void config(uint32_t offset, uint64_t value, uint32_t count) {
    region_write(vfio_user::region_config, offset, value, count);
  }
  void turn_on() { config(cfg::command, cfg::command_memory | cfg::command_master, 2); }
  int map(uint64_t address, uint64_t size, uint32_t flags, const Fd* fd, uint64_t offset = 0) {
    std::vector<Fd> fds;
    if (fd != nullptr) fds.push_back(fd->dup());
    vfio_user::DmaMap m{sizeof m, flags, offset, address, size};
    Sent r = call(vfio_user::cmd_dma_map, bytes_of(m), std::move(fds));
    return r.ok() ? 0 : static_cast<int>(r.header.error);
  }
  int unmap(uint64_t address, uint64_t size, uint32_t flags = 0) {
    Sent r = call(vfio_user::cmd_dma_unmap, bytes_of(vfio_user::DmaUnmap{24, flags, address, size}));
    return r.ok() ? 0 : static_cast<int>(r.header.error);
  }
  int set_irqs(uint32_t index, uint32_t flags, uint32_t start, uint32_t count,
               const std::vector<int>& fds = {}, const std::vector<std::byte>& data = {}) {
    std::vector<Fd> copies;
    for (int fd : fds) copies.emplace_back(::dup(fd));
    vfio_user::SetIrqs s{static_cast<uint32_t>(sizeof s + data.size()), flags, index, start, count};
    Sent r = call(vfio_user::cmd_set_irqs, bytes_of(s) + data, std::move(copies));
    return r.ok() ? 0 : static_cast<int>(r.header.error);
  }
  // Ready to work: memory and bus master on, enabled, READY.
  void bring_up() {
    turn_on();
    reg(KZ_REG_CTRL, KZ_CTRL_ENABLE);
    EXPECT_TRUE(eventually([&] { return (reg(KZ_REG_STATUS) & KZ_STATUS_READY) != 0; })) << "never READY";
  }
  template <class F>
  static bool eventually(F&& condition, std::chrono::milliseconds budget = std::chrono::seconds(10)) {
    Deadline deadline(budget);
    while (!condition()) {
      if (deadline.passed()) return false;
      std::this_thread::yield();
    }
    return true;
  }

  FaultBoard faults;
  Device device;
  Sink sink;
  std::optional<Session> session;

 private:
  uint16_t next_id_ = 1;
};

// Client memory with the rings of one queue, and the host's side of the protocol.
class HostQueue {
 public:
  static constexpr uint64_t memory_size = 1 << 20;

  HostQueue(Client& client, uint16_t id, unsigned order, uint64_t iova = 0x100000, bool by_message = false)
      : client_(client),
        id_(id),
        order_(order),
        iova_(iova),
        memory_(make_memfd("rig", Bytes{memory_size})),
        map_(memory_.get(), 0, Bytes{memory_size}, true, "rig"),
        irq_(make_eventfd(true)) {
    uint32_t both = vfio_user::dma_read_ok | vfio_user::dma_write_ok;
    EXPECT_EQ(client.map(iova, memory_size, both, by_message ? nullptr : &memory_), 0);
    uint32_t on = vfio_user::set_data_eventfd | vfio_user::set_action_trigger;
    EXPECT_EQ(client.set_irqs(vfio_user::irq_msix, on, id, 1, {irq_.get()}), 0);
    setup();
  }
  void setup() {
    uint32_t q = KZ_REG_QUEUE(id_);
    client_.reg(q + KZ_Q_SQ_LO, static_cast<uint32_t>(iova_));
    client_.reg(q + KZ_Q_SQ_HI, static_cast<uint32_t>(iova_ >> 32));
    client_.reg(q + KZ_Q_CQ_LO, static_cast<uint32_t>(iova_ + cq_at));
    client_.reg(q + KZ_Q_CQ_HI, static_cast<uint32_t>((iova_ + cq_at) >> 32));
    client_.reg(q + KZ_Q_DBREC_LO, static_cast<uint32_t>(iova_ + db_at));
    client_.reg(q + KZ_Q_DBREC_HI, static_cast<uint32_t>((iova_ + db_at) >> 32));
    client_.reg(q + KZ_Q_ORDER, order_);
    client_.reg(q + KZ_Q_VECTOR, id_);
  }
  void enable() {
    client_.reg(KZ_REG_QUEUE(id_) + KZ_Q_CTRL, KZ_QCTRL_ENABLE | KZ_QCTRL_IRQ);
    EXPECT_TRUE(Client::eventually([&] { return state() != KZ_QSTATE_OFF; }));
  }
  uint32_t state() { return client_.reg(KZ_REG_QUEUE(id_) + KZ_Q_STATE); }
  uint32_t entries() const { return 1u << order_; }
  std::byte* data() { return map_.data() + data_at; }
  uint64_t data_iova() const { return iova_ + data_at; }

  uint16_t submit(kz_cmd cmd, bool ring = true) {
    uint32_t tail = tail_++;
    cmd.cid = next_cid_++;
    bool phase = (tail >> order_ & 1) == 0;
    cmd.flags = static_cast<uint8_t>((cmd.flags & ~KZ_CMD_PHASE) | (phase ? KZ_CMD_PHASE : 0));
    std::memcpy(map_.data() + (tail & (entries() - 1)) * sizeof cmd, &cmd, sizeof cmd);
    __atomic_store_n(reinterpret_cast<uint32_t*>(map_.data() + db_at), tail_, __ATOMIC_RELEASE);
    if (ring) this->ring();
    return cmd.cid;
  }
  uint16_t submit(uint8_t opcode, bool ring = true) {
    kz_cmd c{};
    c.opcode = opcode;
    return submit(c, ring);
  }
  void ring() { signal_eventfd(client_.device.doorbell_fds()[id_]); }
  std::optional<kz_cqe> poll() {
    std::byte* slot = map_.data() + cq_at + (head_ & (entries() - 1)) * sizeof(kz_cqe);
    uint16_t status =
        __atomic_load_n(reinterpret_cast<uint16_t*>(slot + offsetof(kz_cqe, status)), __ATOMIC_ACQUIRE);
    if (KZ_CQE_PHASE(status) != ((head_ >> order_ & 1) == 0 ? 1u : 0u)) return std::nullopt;
    kz_cqe cqe;
    std::memcpy(&cqe, slot, sizeof cqe);
    ++head_;
    return cqe;
  }
  void consume() {
    __atomic_store_n(reinterpret_cast<uint32_t*>(map_.data() + db_at + 4), head_, __ATOMIC_RELEASE);
  }
  // The next completion, consumed. Fails the test when there is none within the budget.
  kz_cqe wait(std::chrono::milliseconds budget = std::chrono::seconds(10)) {
    std::optional<kz_cqe> cqe;
    EXPECT_TRUE(Client::eventually([&] { return (cqe = poll()).has_value(); }, budget)) << "no completion";
    consume();
    return cqe.value_or(kz_cqe{});
  }
  // Interrupts since the last call.
  uint64_t interrupts() { return drain_eventfd(irq_.get()); }
  bool interrupted(std::chrono::milliseconds budget) {
    pollfd p{irq_.get(), POLLIN, 0};
    return ::poll(&p, 1, static_cast<int>(budget.count())) == 1;
  }
  void restart() {
    tail_ = head_ = 0;
    std::memset(map_.data(), 0, data_at);
  }
  Mapping& memory() { return map_; }
  const Fd& fd() const { return memory_; }
  static constexpr uint64_t cq_at = 0x80000, db_at = 0x90000, data_at = 0xa0000;

 private:
  Client& client_;
  uint16_t id_;
  unsigned order_;
  uint64_t iova_;
  Fd memory_;
  Mapping map_;
  Fd irq_;
  uint32_t tail_ = 0, head_ = 0;
  uint16_t next_cid_ = 1;
};

// A client that is up, for tests of queues. `service`: every command takes so long.
struct QueueRig : ::testing::Test {
  explicit QueueRig(std::chrono::nanoseconds service = 0ns) : client(with(service)) {
    client.version();
    client.bring_up();
  }
  static DeviceOptions with(std::chrono::nanoseconds service) {
    DeviceOptions o = small_device();
    o.service_time = service;
    return o;
  }
  void inject(const char* row, const nlohmann::json& trigger = {{"kind", "now"}},
              const nlohmann::json& params = {}) {
    nlohmann::json spec = {{"row", row}, {"trigger", trigger}};
    if (!params.is_null()) spec["params"] = params;
    client.faults.inject(spec, true);
  }
  static kz_cmd abort_of(uint16_t queue, uint16_t cid) {
    kz_cmd c{};
    c.opcode = KZ_OP_ABORT;
    c.u.abort.queue = queue;
    c.u.abort.cid = cid;
    return c;
  }
  uint32_t q(uint16_t id, uint32_t reg) { return client.reg(KZ_REG_QUEUE(id) + reg); }
  Client client;
};

}  // namespace kz::softtpu::rig
