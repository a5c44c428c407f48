// SPDX-License-Identifier: GPL-2.0-or-later
// Bandwidth beside what the link and this host's memory allow.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "shim/base/host_load.h"
#include "shim/base/sanitized.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/stats.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr uint64_t kPiece = uint64_t{1} << 20;
constexpr int kBatch = 4;
// Of the limit. A software device with a sanitizer in it copies at a third of what memcpy does, which has
// none in it.
constexpr double kLeast = kSanitized ? 0.2 : 0.55;
constexpr size_t kQuietRounds = 25;

// Payload bytes per second that the link can carry, 0 where it cannot be told: rate x lanes x encoding x
// MPS/(MPS+24), less 10% for ACK, flow control and skips (PCIe r6.0, sections 2.2, 4.2 and 7.5.3.8).
double link_limit(ConfigSpace& config) {
  constexpr uint16_t kPcieCapability = 0x10;
  static constexpr double kGigatransfers[] = {0, 2.5, 5, 8, 16, 32, 64};
  for (const auto& cap : walk_capabilities(config).found) {
    if (cap.extended || cap.id != kPcieCapability) continue;
    const uint16_t status = config.read16(cap.offset + 0x12), control = config.read16(cap.offset + 0x08);
    const unsigned speed = status & 0xf, lanes = (status >> 4) & 0x3f;
    if (speed == 0 || speed > 6 || lanes == 0) return 0;
    const double encoding = speed <= 2 ? 0.8 : speed <= 5 ? 128.0 / 130 : 242.0 / 256;
    const double payload = 128u << ((control >> 5) & 7);
    return kGigatransfers[speed] * 1e9 / 8 * lanes * encoding * payload / (payload + 24) * 0.9;
  }
  return 0;
}

double timed(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

KZ_TEST(
    dma, bandwidth,
    {.meaning = "copies of 1 MiB run near the lower of the link's and the memory's limit, in both directions",
     .level = 3,
     .needs = {Cap::dma, Cap::hbm_alloc},
     .limit = 20s}) {
  auto context = device().create_context();
  auto queue = open_queue(*context);
  HostArea host(device(), {.size = {2 * kPiece}});
  auto hbm = context->alloc({kBatch * kPiece});
  // Laid out as the device's own copies are, host area and HBM: a smaller source would stay in a cache that
  // the device's copies do not fit in.
  std::vector<std::byte> a(kBatch * kPiece, std::byte{1}), b(host.bytes().size(), std::byte{1});
  std::ranges::fill(host.bytes(), std::byte{1});
  const bool stamps = caps().has(Cap::timestamp);
  // Seconds by the device's own clock where it has one: waking this process is not the device's work.
  auto batch = [&](bool up) {
    std::vector<uint64_t> device_ns;
    const double host_s = timed([&] {
      if (stamps) queue->submit({cmd::Timestamp{}}, true);
      for (int i = 0; i < kBatch; ++i) {
        const Place there = at(hbm->addr() + i * kPiece), here = host.place((i % 2) * kPiece);
        queue->submit({up ? cmd::Copy{here, there, kPiece} : cmd::Copy{there, here, kPiece}}, true);
      }
      if (stamps) queue->submit({.work = cmd::Timestamp{}, .fence = true}, true);
      queue->ring();
      for (const auto& done : finish(*queue)) {
        if (done.status != Status::ok)
          throw Error({.code = Errc::status,
                       .operation = "copy",
                       .detail = report_status("COPY", Status::ok, done.status)});
        if (done.result) device_ns.push_back(done.result);
      }
    });
    const bool told = device_ns.size() == 2 && device_ns[1] > device_ns[0];
    return told ? std::min(host_s, static_cast<double>(device_ns[1] - device_ns[0]) / 1e9) : host_s;
  };
  auto reference = [&] {
    return timed([&] {
      for (int i = 0; i < kBatch; ++i) std::memcpy(&a[i * kPiece], &b[(i % 2) * kPiece], kPiece);
      asm volatile("" ::"r"(a.data()) : "memory");
    });
  };
  const double bytes = kBatch * kPiece;
  const double link = caps().has(Cap::config_read) ? link_limit(device().config()) : 0;
  double up = 1e9, down = 1e9, copy = 1e9;
  std::vector<double> ratios, quiet_ratios, window;
  HostLoad load;
  auto ratio = [&] { return quantile(quiet_ratios, 0.8); };
  // Each round is judged by itself, since the host's own speed moves, and only if nobody had to wait for a
  // processor meanwhile. A busy host needs many rounds before some are such; a slow device stays slow however
  // often.
  const Deadline patience(4s);
  while (quiet_ratios.size() < kQuietRounds || ratio() < kLeast) {
    if (ratios.size() >= kQuietRounds && patience.passed()) break;
    const double this_up = batch(true), this_down = batch(false), this_copy = reference();
    const double limit = link > 0 ? std::min(link, bytes / this_copy) : bytes / this_copy;
    ratios.push_back(bytes / std::max(this_up, this_down) / limit);
    window.push_back(ratios.back());
    if (const auto share = load.share()) {
      if (*share < HostLoad::busy) quiet_ratios.insert(quiet_ratios.end(), window.begin(), window.end());
      window.clear();
    }
    up = std::min(up, this_up);
    down = std::min(down, this_down);
    copy = std::min(copy, this_copy);
  }
  metric("dma.host_to_hbm", bytes / up / 1e9, "GB/s");
  metric("dma.hbm_to_host", bytes / down / 1e9, "GB/s");
  metric("dma.memcpy", bytes / copy / 1e9, "GB/s");
  metric("dma.of_limit", quantile(ratios, 0.8), "ratio");
  metric("dma.quiet_rounds", static_cast<double>(quiet_ratios.size()) / static_cast<double>(ratios.size()),
         "ratio");
  metric("dma.of_limit_median", median(ratios), "ratio");
  metric("dma.of_limit_best", bytes / std::max(up, down) / (bytes / copy), "ratio");
  if (quantile(ratios, 0.8) >= kLeast || ratio() >= kLeast) return;
  if (quiet_ratios.size() < kQuietRounds)
    skip(fmt::format("the host was too busy to judge: in {} of {} rounds other work waited for a processor",
                     ratios.size() - quiet_ratios.size(), ratios.size()));
  evidence(ev::slow, {{"what", "bandwidth"},
                      {"value", std::min(bytes / up, bytes / down)},
                      {"reference", bytes / copy},
                      {"ratio", ratio()}});
  FAIL() << "DMA reaches " << ratio() << " of what link and memory allow";
}

}  // namespace kz::test
