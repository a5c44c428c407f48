// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/soak/lane.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "tests/harness/diagnose.h"
#include "tests/harness/pattern.h"

namespace kz::test {

void Lane::submit(const Command& command) {
  queue_->submit(command, true);
  commands_.push_back(name_of(command.work));
  ++count_.sent;
}

void Lane::wrong(const std::string& text) {
  if (++count_.bad <= 5) ADD_FAILURE() << name() << ": " << text;
}

void Lane::collect(const std::vector<Completion>& done) {
  if (!done.empty()) last_progress_ = Clock::now();
  count_.completed += done.size();
  round_.insert(round_.end(), done.begin(), done.end());
  for (const auto& c : done)
    times_.push_back(std::chrono::duration<double, std::micro>(c.seen - c.submitted).count());
}

void Lane::end_round() {
  if (round_.empty()) return;
  std::sort(round_.begin(), round_.end(), [](const auto& a, const auto& b) { return a.ticket < b.ticket; });
  bool ok = round_.size() == commands_.size();
  if (!ok) wrong("the round's completions are not its commands");
  for (size_t i = 0; ok && i < round_.size(); ++i) {
    if (round_[i].status == Status::ok) continue;
    ok = false;
    wrong(report_status(commands_[i], Status::ok, round_[i].status));
  }
  if (ok) check_round(round_);
  round_.clear();
  commands_.clear();
}

void Lane::step() {
  collect(queue_->poll());
  if (queue_->outstanding() == 0) {
    end_round();
    submit_round();
    queue_->ring();
    last_progress_ = Clock::now();
  } else if (Clock::now() - last_progress_ > 100ms) {
    // Quiet for long: let the interrupt's absence be noticed, then the command's.
    collect(queue_->wait(Deadline(1ms)));
    if (Clock::now() - last_progress_ > 4s) queue_->give_up(4s);
  }
}

void Lane::drain() {
  collect(finish(*queue_));
  end_round();
}

namespace {

class CopyLane final : public Lane {
 public:
  CopyLane(Device& device, Context& context, uint64_t seed)
      : Lane(device, context),
        from_(device, {.size = {kMost}}),
        to_(device, {.size = {kMost}}),
        first_(context.alloc({kMost})),
        second_(context.alloc({kMost})),
        rng_(seed),
        seed_(seed),
        want_(kMost),
        before_(kMost) {}
  const char* name() const override { return "copy lane"; }

 private:
  static constexpr uint64_t kMost = 192 * 1024;

  void submit_round() override {
    std::ranges::copy(std::span(want_).first(size_), before_.begin());
    size_ = 1 + rng_() % (rng_() % 8 ? 8192 : kMost - 128);
    shift_ = rng_() % 64;
    const auto data = std::span(want_).first(size_);
    fill_payload(data, {seed_, sequence_++});
    std::ranges::copy(data, from_.bytes(shift_, size_).begin());
    to_.arm(0, size_);
    submit({cmd::Copy{from_.place(shift_), at(first_->addr()), size_}});
    submit({.work = cmd::Copy{at(first_->addr()), at(second_->addr()), size_}, .fence = true});
    if (device_.capabilities().has(Cap::crc32c))
      submit({.work = cmd::Crc32c{at(second_->addr()), size_}, .fence = true});
    submit({.work = cmd::Copy{at(second_->addr()), to_.place(), size_}, .fence = true});
  }

  void check_round(const std::vector<Completion>& done) override {
    const auto want = std::span<const std::byte>(want_).first(size_);
    auto back = [&] { run_good(*queue_, {cmd::Copy{at(second_->addr()), to_.place(), size_}}); };
    const std::string bad = check_transfer({.path = "host>hbm>hbm>host",
                                            .want = want,
                                            .got = to_.bytes(0, size_),
                                            .reread = back,
                                            .queue = queue_.get(),
                                            .cells = second_->addr(),
                                            .cells_len = size_});
    if (!bad.empty()) return wrong(bad);
    if (const std::string guard = to_.check(0, size_, "host>hbm>hbm>host"); !guard.empty())
      return wrong(guard);
    if (done.size() == 4 && done[2].result != crc32c(want)) {
      evidence(ev::compute_wrong, {{"op", "crc32c"},
                                   {"dtype", "u8"},
                                   {"shape", {1, size_, 1}},
                                   {"wrong", 1},
                                   {"where", "all"},
                                   {"what", "bits"},
                                   {"rerun", "unknown"}});
      wrong("the CRC of good bytes is wrong");
    }
  }

  HostArea from_, to_;
  std::unique_ptr<HbmBlock> first_, second_;
  std::mt19937_64 rng_;
  uint64_t seed_, size_ = 0, shift_ = 0;
  uint32_t sequence_ = 0;
  std::vector<std::byte> want_, before_;
};

class AllocLane final : public Lane {
 public:
  AllocLane(Device& device, Context& context, uint64_t seed)
      : Lane(device, context),
        to_(device, {.size = {4096}}),
        rng_(seed),
        page_(device.capabilities().limits.hbm_page) {}
  const char* name() const override { return "allocation lane"; }

 private:
  static constexpr size_t kMost = 12;

  void submit_round() override {
    if (blocks_.size() >= kMost || (!blocks_.empty() && rng_() % 3 == 0)) {
      const size_t i = rng_() % blocks_.size();
      if (const Status s = blocks_[i]->free(); s != Status::ok)
        wrong(report_status("HBM_FREE", Status::ok, s));
      blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(i));
    }
    blocks_.push_back(context_.alloc({1 + rng_() % (4 * page_)}));
    const HbmBlock& fresh = *blocks_.back();
    // The last 4 KiB before and after they are written: zero, then the pattern.
    end_ = fresh.addr() + (fresh.size() - 4096);
    written_.push_back(std::exchange(pattern_, rng_()));
    if (written_.size() > 256) written_.pop_front();
    std::ranges::fill(to_.bytes(), std::byte{0xee});
    submit({cmd::Copy{at(end_), to_.place(), 2048}});
    submit({.work = cmd::Fill{at(fresh.addr()), fresh.size(), pattern_}, .fence = true});
    submit({.work = cmd::Copy{at(end_ + 2048), to_.place(2048), 2048}, .fence = true});
  }

  void check_round(const std::vector<Completion>&) override {
    const auto old = to_.bytes(0, 2048), now = to_.bytes(2048, 2048);
    if (device_.capabilities().limits.hbm_cleared) check_fresh(old);
    std::vector<std::byte> want(2048);
    for (size_t i = 0; i < want.size(); i += 8) std::memcpy(&want[i], &pattern_, 8);
    const std::string bad = check_transfer({.path = "hbm>host",
                                            .want = want,
                                            .got = now,
                                            .queue = queue_.get(),
                                            .cells = end_ + 2048,
                                            .cells_len = 2048});
    if (!bad.empty()) wrong(bad);
  }

  // Zero, or what an earlier owner wrote, or a read that went wrong.
  void check_fresh(std::span<const std::byte> bytes) {
    const std::vector<std::byte> zeroes(bytes.size());
    if (std::ranges::equal(bytes, zeroes)) return;
    uint64_t word = 0;
    for (size_t i = 0; i < bytes.size() && word == 0; i += 8) std::memcpy(&word, &bytes[i], 8);
    if (std::ranges::find(written_, word) != written_.end()) {
      evidence(ev::hbm_not_cleared, {{"after", "free"}, {"pattern", "an earlier owner's"}});
      return wrong("fresh memory holds what its last owner wrote");
    }
    const std::string bad = check_transfer({.path = "hbm>host", .want = zeroes, .got = bytes});
    if (!bad.empty()) wrong("fresh memory: " + bad);
  }

  HostArea to_;
  std::mt19937_64 rng_;
  uint64_t page_, pattern_ = 0;
  std::deque<uint64_t> written_;  // the last patterns
  HbmAddr end_;
  std::vector<std::unique_ptr<HbmBlock>> blocks_;
};

class ComputeLane final : public Lane {
 public:
  ComputeLane(Device& device, Context& context, uint64_t seed)
      : Lane(device, context),
        host_(device, {.size = {kBytes}}),
        hbm_(context.alloc({4 * align_up(kBytes, 65536)})),
        rng_(seed) {
    // Whole numbers up to 8: products and sums of 64 of them are exact in f32, whatever the order.
    std::vector<float> a(kDim * kDim), b(kDim * kDim);
    for (auto* m : {&a, &b})
      for (float& v : *m) v = static_cast<float>(static_cast<int>(rng_() % 17) - 8);
    want_.assign(kDim * kDim, 0);
    for (size_t i = 0; i < kDim; ++i)
      for (size_t k = 0; k < kDim; ++k)
        for (size_t j = 0; j < kDim; ++j) want_[i * kDim + j] += a[i * kDim + k] * b[k * kDim + j];
    load(a, place(0));
    load(b, place(1));
  }
  const char* name() const override { return "compute lane"; }

 private:
  static constexpr uint32_t kDim = 64;
  static constexpr uint64_t kBytes = kDim * kDim * sizeof(float);

  HbmAddr place(int i) const { return hbm_->addr() + i * align_up(kBytes, 65536); }
  void load(const std::vector<float>& m, HbmAddr to) {
    std::memcpy(host_.bytes().data(), m.data(), kBytes);
    run_good(*queue_, {cmd::Copy{host_.place(), at(to), kBytes}});
  }

  void submit_round() override {
    submit({cmd::Matmul{.a = place(0), .b = place(1), .c = place(2), .m = kDim, .n = kDim, .k = kDim}});
    if (device_.capabilities().has(Cap::vector))
      submit(
          {.work = cmd::Vector{place(2), place(2), place(3), kDim * kDim, 0, VectorOp::sub}, .fence = true});
    submit({.work = cmd::Copy{at(place(2)), host_.place(), kBytes}, .fence = true});
  }

  void check_round(const std::vector<Completion>&) override {
    const auto got = std::span(reinterpret_cast<const float*>(host_.bytes().data()), want_.size());
    uint64_t bad = 0;
    for (size_t i = 0; i < want_.size(); ++i) bad += std::memcmp(&got[i], &want_[i], sizeof(float)) != 0;
    if (!bad) return;
    evidence(ev::compute_wrong, {{"op", "matmul"},
                                 {"dtype", "f32"},
                                 {"shape", {kDim, kDim, kDim}},
                                 {"wrong", bad},
                                 {"where", bad == 1 ? "element" : "all"},
                                 {"what", "bits"},
                                 {"rerun", "unknown"},
                                 {"celsius", device_.telemetry().core_celsius.value_or(0)}});
    wrong(std::to_string(bad) + " elements of an exact product are wrong");
  }

  HostArea host_;
  std::unique_ptr<HbmBlock> hbm_;
  std::mt19937_64 rng_;
  std::vector<float> want_;
};

class ClockLane final : public Lane {
 public:
  using Lane::Lane;
  const char* name() const override { return "clock lane"; }

 private:
  void submit_round() override {
    for (int i = 0; i < 4; ++i) submit({.work = cmd::Timestamp{}, .fence = true});
  }
  void check_round(const std::vector<Completion>& done) override {
    for (const auto& c : done) {
      if (c.result < last_) {
        evidence(ev::telemetry,
                 {{"what", "clock_backwards"}, {"field", "TIMESTAMP"}, {"by_ns", last_ - c.result}});
        wrong("the device clock went back by " + std::to_string(last_ - c.result) + " ns");
      }
      last_ = c.result;
    }
  }
  uint64_t last_ = 0;
};

}  // namespace

std::unique_ptr<Lane> copy_lane(Device& device, Context& context, uint64_t seed) {
  return std::make_unique<CopyLane>(device, context, seed);
}
std::unique_ptr<Lane> alloc_lane(Device& device, Context& context, uint64_t seed) {
  return std::make_unique<AllocLane>(device, context, seed);
}
std::unique_ptr<Lane> compute_lane(Device& device, Context& context, uint64_t seed) {
  return std::make_unique<ComputeLane>(device, context, seed);
}
std::unique_ptr<Lane> clock_lane(Device& device, Context& context) {
  return std::make_unique<ClockLane>(device, context);
}

}  // namespace kz::test
