// SPDX-License-Identifier: GPL-2.0-or-later
// Bytes from the host into HBM, optionally on to another place in HBM, and back, every byte and its
// surroundings checked.
#pragma once

#include <string>
#include <vector>

#include "tests/harness/host_area.h"
#include "tests/harness/test.h"

namespace kz::test {

// One way for `size` bytes. Offsets are within the areas: any alignment.
struct Route {
  uint64_t size = 0;
  uint64_t from = 0, hbm = 0, second = 0, to = 0;
  bool two_hops = false;  // through a second place in HBM
};

class RoundTrip {
 public:
  static constexpr std::byte kUntouched{0xc3};  // what every target holds before

  // `longest`: of the routes, their offsets included, below 256.
  RoundTrip(Device& device, uint64_t longest, uint64_t seed, DmaSpec host = {});
  // A sentence for every check that failed.
  std::vector<std::string> run(const Route& route);
  QueueGuard& queue() { return *queue_; }
  Context& context() { return *context_; }

 private:
  void move(const Route& route);
  void last_hop(const Route& route);
  HbmBlock& last_block(const Route& route) const { return route.two_hops ? *second_ : *first_; }
  uint64_t last_offset(const Route& route) const {
    return kHbmGuard + (route.two_hops ? route.second : route.hbm);
  }
  HbmAddr last_place(const Route& route) const { return last_block(route).addr() + last_offset(route); }
  void clear_hbm(HbmBlock& block, uint64_t offset, uint64_t size);
  std::string check_hbm_guards(HbmBlock& block, uint64_t offset, uint64_t size);
  void copy(Place from, Place to, uint64_t len);

  static constexpr uint64_t kHbmGuard = 256;
  std::unique_ptr<Context> context_;
  std::unique_ptr<QueueGuard> queue_;
  HostArea from_, to_, scratch_;
  std::unique_ptr<HbmBlock> first_, second_;
  std::vector<std::byte> untouched_;
  uint64_t seed_;
  uint32_t sequence_ = 0;
};

}  // namespace kz::test
