// SPDX-License-Identifier: GPL-2.0-or-later
// The address decoder, with few accesses: probes at every power of two and in every bank, whatever the size
// of HBM.
#include <fmt/format.h>

#include <cstring>
#include <set>

#include "memcheck/arena.h"
#include "tests/harness/test.h"

namespace kz::memcheck {
namespace {

using namespace test;

constexpr uint64_t line = uint64_t{1} << KZ_HBM_LINE_SHIFT;

std::string hex(uint64_t v) { return fmt::format("0x{:x}", v); }

// Lines at chosen physical addresses, each with a tag of its own in every word. Written and read by MARCH
// commands of one line, so that nothing but the memory and its decoder is on the way.
class Probes {
 public:
  Probes(Device& device, std::vector<uint64_t> addresses)
      : addresses_(std::move(addresses)),
        queue_(open_queue(device, device.root_context(), {.order = 6})),
        log_(device.dma_buffer({.size = {sizeof(kz_march_fail)}})) {}

  void write(bool complement, bool backwards) {
    for (size_t n = 0; n < addresses_.size(); ++n)
      march(addresses_[backwards ? addresses_.size() - 1 - n : n], MarchOp::w0, complement);
  }

  // Reads all of them and reports those that do not hold their tag. Returns how many.
  size_t check(bool complement) {
    size_t wrong = 0;
    for (uint64_t addr : addresses_)
      if (march(addr, MarchOp::r0, complement) > 0 && ++wrong <= 4) report(addr, complement);
    return wrong;
  }

 private:
  static uint64_t tag(uint64_t addr, bool complement) {
    uint64_t t = addr * 0x9e3779b97f4a7c15u + 0x5bd1e995u;
    return complement ? ~t : t;
  }

  uint64_t march(uint64_t addr, MarchOp op, bool complement) {
    cmd::March work{.addr = {addr},
                    .len = line,
                    .ops = {op},
                    .pattern = tag(addr, complement),
                    .log = log_->iova(),
                    .log_max = 1};
    return run_ok(*queue_, {work}).result;
  }

  void report(uint64_t addr, bool complement) {
    kz_march_fail fail;
    std::memcpy(&fail, log_->bytes().data(), sizeof fail);
    for (uint64_t other : addresses_) {
      if (other == addr || fail.read != tag(other, complement)) continue;
      evidence(ev::address_fault,
               {{"kind", "alias"}, {"addresses", {hex(addr), hex(other)}}, {"differ", hex(addr ^ other)}});
      ADD_FAILURE() << "HBM at " << hex(addr) << " holds what was written to " << hex(other);
      return;
    }
    evidence(ev::address_fault, {{"kind", "no_cell"},
                                 {"addresses", {hex(addr)}},
                                 {"read", hex(fail.read)},
                                 {"expected", hex(fail.expected)}});
    ADD_FAILURE() << "HBM at " << hex(addr) << " does not keep what was written: read " << hex(fail.read)
                  << ", expected " << hex(fail.expected);
  }

  std::vector<uint64_t> addresses_;
  std::unique_ptr<QueueGuard> queue_;
  std::shared_ptr<DmaBuffer> log_;
};

void probe(Device& device, const std::set<uint64_t>& addresses) {
  Probes probes(device, {addresses.begin(), addresses.end()});
  for (bool complement : {false, true})
    for (bool backwards : {false, true}) {
      probes.write(complement, backwards);
      if (probes.check(complement) > 0) return;
    }
}

KZ_TEST(hbm, address_lines,
        {.meaning = "no address line is stuck or ignored: probes at every power of two from several bases, "
                    "over 4 GiB too",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::march, Cap::hbm_alloc, Cap::hbm_physical},
         .limit = 30s}) {
  Arena arena(device());  // so that nobody else's memory is written
  uint64_t size = caps().limits.hbm_bytes;
  std::set<uint64_t> bases = {0, (size - line) & 0x5555555555555540, (size - line) & 0x2aaaaaaaaaaaaa80,
                              size - line};
  for (int i = 0; i < 4; ++i) bases.insert(rng()() % (size / line) * line);
  std::set<uint64_t> addresses;
  for (uint64_t base : bases)
    for (uint64_t bit = line; bit < size; bit <<= 1)
      for (uint64_t a : {base, base ^ bit})
        if (a + line <= size) addresses.insert(a);
  probe(device(), addresses);
  metric("address_probes", static_cast<double>(addresses.size()), "lines");
}

KZ_TEST(hbm, banks_apart,
        {.meaning = "every bank of every channel is a memory of its own, in a low, a middle and a high row",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::march, Cap::hbm_alloc, Cap::hbm_physical},
         .limit = 30s}) {
  if (!caps().limits.hbm_geometry) skip("the device does not tell how an address falls into banks");
  Arena arena(device());
  uint32_t geom = *caps().limits.hbm_geometry;
  uint32_t last_row = kz_hbm_split(caps().limits.hbm_bytes - 1, geom).row;
  std::set<uint64_t> addresses;
  // One column for all banks of a row: aliased banks meet only in the same row and column.
  for (uint32_t row : {0u, last_row / 2, last_row}) {
    uint32_t column = static_cast<uint32_t>(rng()()) % (1u << KZ_GEOM_COL(geom));
    for (uint32_t ch = 0; ch < 1u << KZ_GEOM_CH(geom); ++ch)
      for (uint32_t pc = 0; pc < 1u << KZ_GEOM_PC(geom); ++pc)
        for (uint32_t bank = 0; bank < 1u << KZ_GEOM_BANK(geom); ++bank)
          addresses.insert(kz_hbm_join(
              {.channel = ch, .pseudo = pc, .bank = bank, .column = column, .row = row, .byte = 0}, geom));
  }
  probe(device(), addresses);
}

}  // namespace
}  // namespace kz::memcheck
