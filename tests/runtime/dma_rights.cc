// SPDX-License-Identifier: GPL-2.0-or-later
// Which host memory the device may reach: whole addresses, mapped ranges, their permissions, and the
// bus-master switch.
#include <algorithm>
#include <thread>

#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/pattern.h"
#include "tests/harness/read_back.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr uint64_t kWindowLen = 8192;
constexpr std::byte kOwn{0x3c};

struct Rig {
  explicit Rig(Device& device)
      : context(device.create_context()), queue(open_queue(device, *context)), hbm(context->alloc({65536})) {}
  std::unique_ptr<Context> context;
  std::unique_ptr<QueueGuard> queue;
  std::unique_ptr<HbmBlock> hbm;
};

bool touched(std::span<const std::byte> bytes) {
  return std::ranges::any_of(bytes, [](std::byte b) { return b != kOwn; });
}

// A copy that the device must refuse; `memory`, where given, must stay as it is.
void must_fault(Rig& rig, const std::string& how, Place from, Place to, std::span<const std::byte> memory) {
  const Completion done = run_one(*rig.queue, {cmd::Copy{from, to, kWindowLen}});
  // A write that comes after the refusal counts too.
  bool wrote = touched(memory);
  for (Deadline watch(2ms); !wrote && !memory.empty() && !watch.passed(); std::this_thread::yield())
    wrote = touched(memory);
  if (done.status == Status::dma_fault && !wrote) return;
  evidence(
      ev::dma_illegal,
      {{"how", how}, {"status", to_string(done.status)}, {"touched", wrote}, {"to_host", !memory.empty()}});
  ADD_FAILURE() << how << ": the copy ended with " << to_string(done.status)
                << (wrote ? " and wrote the memory" : "");
}

}  // namespace

KZ_TEST(dma, high_address,
        {.meaning =
             "bus addresses above 4 GiB reach the device whole: nothing lands at the address cut to 32 bits",
         .level = 2,
         .needs = {Cap::dma, Cap::dma_at, Cap::hbm_alloc}}) {
  if (caps().limits.iova_bits <= 32) skip("the device emits 32-bit bus addresses only");
  constexpr uint64_t kLow = 0x5a000000;
  Rig rig(device());
  for (unsigned bits : {32u, 33u, 38u, 47u}) {
    if (bits + 1 > caps().limits.iova_bits) continue;
    const uint64_t high = (uint64_t{1} << bits) | kLow;
    auto decoy = device().dma_buffer({.size = {kWindowLen}, .at = Iova{kLow}});
    auto real = device().dma_buffer({.size = {kWindowLen}, .at = Iova{high}});
    auto wrong_address = [&](const char* way) {
      evidence(ev::dma_address, {{"given", high}, {"seen", kLow}, {"bits", 32}});
      ADD_FAILURE() << way << ": the device used the low half of " << std::hex << high;
    };
    // Out of the device: the data must come to the high address.
    run_good(*rig.queue, {cmd::Fill{at(rig.hbm->addr()), kWindowLen, 0x1111111111111111}});
    std::ranges::fill(decoy->bytes(), kOwn);
    std::ranges::fill(real->bytes(), kOwn);
    run_good(*rig.queue, {cmd::Copy{at(rig.hbm->addr()), at(Iova{high}), kWindowLen}});
    const std::vector<std::byte> ones(kWindowLen, std::byte{0x11}), twos(kWindowLen, std::byte{0x22});
    if (touched(decoy->bytes()))
      wrong_address("write");
    else if (const std::string bad = check_transfer({.path = "hbm>host", .want = ones, .got = real->bytes()});
             !bad.empty())
      ADD_FAILURE() << "to " << std::hex << high << ": " << bad;
    // Into the device: it must read the high address.
    std::ranges::fill(real->bytes(), std::byte{0x22});
    std::ranges::fill(decoy->bytes(), std::byte{0x33});
    run_good(*rig.queue, {cmd::Copy{at(Iova{high}), at(rig.hbm->addr()), kWindowLen}});
    HostArea back(device(), {.size = {kWindowLen}});
    read_into(*rig.queue, rig.hbm->addr(), back, kWindowLen);
    if (back.bytes()[kWindowLen / 2] == std::byte{0x33})
      wrong_address("read");
    else if (const std::string bad = read_and_check(*rig.queue, rig.hbm->addr(), back, twos); !bad.empty())
      ADD_FAILURE() << "from " << std::hex << high << ": " << bad;
  }
}

KZ_TEST(dma, unmapped_address,
        {.meaning =
             "a copy from or to an address that is not mapped is refused, also where only its end is outside",
         .level = 4,
         .needs = {Cap::dma, Cap::hbm_alloc}}) {
  Rig rig(device());
  if (!copies_arrive(device(), *rig.context, *rig.queue, rng()())) return;
  // Alone in its surroundings; where the driver chooses addresses, it is the only one that we have.
  std::optional<Iova> chosen;
  if (caps().has(Cap::dma_at)) chosen = Iova{0x6b000000};
  auto buffer = device().dma_buffer({.size = {kWindowLen}, .at = chosen});
  const uint64_t base = buffer->iova().value;
  std::ranges::fill(buffer->bytes(), kOwn);
  const HbmAddr hbm = rig.hbm->addr();
  for (uint64_t nowhere : {uint64_t{0x7000000000}, base - kWindowLen, base + kWindowLen}) {
    if (const auto bits = caps().limits.iova_bits; chosen && bits < 64 && nowhere >> bits != 0) continue;
    must_fault(rig, "unmapped", at(hbm), at(Iova{nowhere}), {});
    must_fault(rig, "unmapped", at(Iova{nowhere}), at(hbm), {});
  }
  must_fault(rig, "unmapped", at(hbm), at(Iova{base + kWindowLen / 2}), {});
  must_fault(rig, "unmapped", at(Iova{base + kWindowLen / 2}), at(hbm), {});
  run_good(*rig.queue, {cmd::Copy{at(hbm), at(buffer->iova()), kWindowLen}});  // and the queue still works
}

KZ_TEST(dma, read_only_mapping,
        {.meaning = "memory mapped for reading is not written, memory mapped for writing is not read",
         .level = 4,
         .needs = {Cap::dma, Cap::hbm_alloc}}) {
  Rig rig(device());
  if (!copies_arrive(device(), *rig.context, *rig.queue, rng()())) return;
  for (bool by_message : {false, true}) {
    auto source =
        device().dma_buffer({.size = {kWindowLen}, .device_writes = false, .by_message = by_message});
    std::ranges::fill(source->bytes(), kOwn);
    run_good(*rig.queue, {cmd::Copy{at(source->iova()), at(rig.hbm->addr()), kWindowLen}});
    // It has read this memory, and not what was in its place when it was mapped.
    HostArea seen(device(), {.size = {kWindowLen}});
    if (auto wrong = read_and_check(*rig.queue, rig.hbm->addr(), seen, source->bytes()); !wrong.empty())
      ADD_FAILURE() << "read_only: " << wrong;
    run_good(*rig.queue, {cmd::Fill{at(rig.hbm->addr()), kWindowLen, 0x4444444444444444}});
    must_fault(rig, "read_only", at(rig.hbm->addr()), at(source->iova()), source->bytes());
    auto target =
        device().dma_buffer({.size = {kWindowLen}, .device_reads = false, .by_message = by_message});
    run_good(*rig.queue, {cmd::Copy{at(rig.hbm->addr()), at(target->iova()), kWindowLen}});
    must_fault(rig, "write_only", at(target->iova()), at(rig.hbm->addr()), {});
  }
}

KZ_TEST(dma, after_unmap,
        {.meaning = "memory is out of the device's reach once it is unmapped, although the host keeps it",
         .level = 4,
         .needs = {Cap::dma, Cap::hbm_alloc}}) {
  Rig rig(device());
  if (!copies_arrive(device(), *rig.context, *rig.queue, rng()())) return;
  run_good(*rig.queue, {cmd::Fill{at(rig.hbm->addr()), kWindowLen, 0x4444444444444444}});
  for (int round = 0; round < 6; ++round) {
    auto buffer = device().dma_buffer({.size = {kWindowLen}, .by_message = round % 3 == 2});
    run_good(*rig.queue, {cmd::Copy{at(rig.hbm->addr()), at(buffer->iova()), kWindowLen}});
    const Iova was = buffer->iova();
    buffer->unmap();
    std::ranges::fill(buffer->bytes(), kOwn);
    must_fault(rig, "after_unmap", at(rig.hbm->addr()), at(was), buffer->bytes());
    must_fault(rig, "after_unmap", at(was), at(rig.hbm->addr()), {});
  }
}

KZ_TEST(
    dma, bus_master_off,
    {.meaning =
         "with the bus-master bit clear the device reaches no host memory, and works again when it is set",
     .level = 4,
     .labels = {"destructive"},
     .needs = {Cap::config_write, Cap::dma, Cap::hbm_alloc, Cap::reset_queue}}) {
  constexpr uint32_t kCommand = 4;  // PCI Local Bus 3.0, section 6.2.2
  constexpr uint16_t kBusMaster = 1u << 2;
  Rig rig(device());
  if (!copies_arrive(device(), *rig.context, *rig.queue, rng()())) return;
  auto polled = open_queue(*rig.context, {.interrupts = false}, false);
  auto buffer = device().dma_buffer({.size = {kWindowLen}});
  std::ranges::fill(buffer->bytes(), kOwn);
  run_good(*rig.queue, {cmd::Fill{at(rig.hbm->addr()), kWindowLen, 0x4444444444444444}});
  auto& config = device().config();
  const uint16_t command = config.read16(kCommand);
  ASSERT_TRUE(command & kBusMaster) << "the driver left bus mastering off";

  before_danger("clear the bus-master bit and submit a copy");
  config.write16(kCommand, command & ~kBusMaster);
  polled->submit({cmd::Copy{at(rig.hbm->addr()), at(buffer->iova()), kWindowLen}});
  std::vector<Completion> done;
  for (Deadline watch(60ms); done.empty() && !watch.passed(); std::this_thread::yield())
    done = polled->poll();
  const bool wrote = touched(buffer->bytes());
  config.write16(kCommand, command);
  if (wrote || !done.empty()) {
    evidence(ev::dma_illegal, {{"how", "bus_master_off"},
                               {"touched", wrote},
                               {"status", done.empty() ? "none" : to_string(done.front().status)}});
    ADD_FAILURE() << "the device reached host memory with bus mastering off"
                  << (wrote ? ": it wrote the target" : ": it wrote a completion");
  }
  polled->reset(Deadline(2s));
  run_good(*polled, {cmd::Copy{at(rig.hbm->addr()), at(buffer->iova()), kWindowLen}});
  const std::vector<std::byte> want(kWindowLen, std::byte{0x44});
  EXPECT_EQ(check_transfer({.path = "hbm>host", .want = want, .got = buffer->bytes()}), "")
      << "after the bit was set again";
}

}  // namespace kz::test
