// SPDX-License-Identifier: GPL-2.0-or-later
// What tests against a real softtpu share.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstring>
#include <fstream>
#include <span>
#include <string>

#include "shim/device.h"

namespace kz {

// 'R', 'S', 'T', 'Z' ... or 0 where there is no such process.
inline char state_of(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  return std::getline(stat, line) ? line[line.rfind(')') + 2] : '\0';
}

inline void fill(std::span<std::byte> bytes, unsigned seed) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + (i >> 8) * 7 + seed);
}

// Host -> HBM -> host with one context and queue.
inline void round_trip(Device& device, const DmaSpec& spec) {
  auto context = device.create_context();
  auto queue = context->open_queue();
  auto hbm = context->alloc(spec.size);
  auto out = device.dma_buffer(spec),
       back = device.dma_buffer({.size = spec.size, .by_message = spec.by_message});
  fill(out->bytes(), 3);
  run_ok(*queue, {cmd::Copy{at(out->iova()), at(hbm->addr()), spec.size.value}});
  run_ok(*queue, {cmd::Copy{at(hbm->addr()), at(back->iova()), spec.size.value}});
  EXPECT_EQ(std::memcmp(out->bytes().data(), back->bytes().data(), spec.size.value), 0);
  EXPECT_TRUE(queue->audit().clean());
}

}  // namespace kz
