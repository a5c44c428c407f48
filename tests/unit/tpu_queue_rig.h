// SPDX-License-Identifier: GPL-2.0-or-later
// A queue of the driver on a device in this process that does what a test scripts.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shim/tpu/queue.h"
#include "tests/unit/tpu_fake.h"

namespace kz::tpu {

using fake::FakeTpu;
using Ring = FakeTpu::Ring;

class TpuQueueTest : public ::testing::Test {
 protected:
  TpuQueueTest() {
    auto way = std::make_unique<FakeTpu>();
    tpu = way.get();
    core = std::make_shared<Core>(std::move(way));
  }
  std::unique_ptr<TpuQueue> open(const QueueSpec& spec = {.order = 2}, uint16_t id = 1) {
    return std::make_unique<TpuQueue>(core, id, 0, spec, nullptr);
  }
  // All that comes until nothing is outstanding, or for 400 ms.
  std::vector<Completion> collect(TpuQueue& q) {
    std::vector<Completion> all;
    for (Deadline deadline(400ms); q.outstanding() > 0 && !deadline.passed();)
      for (const auto& c : q.wait(Deadline(deadline.left()))) all.push_back(c);
    return all;
  }
  FakeTpu* tpu;
  std::shared_ptr<Core> core;
};

// Everything but the first four fields, by name, where it is not 0.
inline std::map<std::string, uint64_t> broken(const QueueAudit& a) {
  std::map<std::string, uint64_t> m{{"completion_without_interrupt", a.completion_without_interrupt},
                                    {"interrupt_without_completion", a.interrupt_without_completion},
                                    {"duplicate", a.duplicate_completion},
                                    {"unknown", a.unknown_completion},
                                    {"wrong_queue", a.wrong_queue},
                                    {"bad_sq_head", a.bad_sq_head},
                                    {"bad_phase", a.bad_phase},
                                    {"reserved", a.reserved_set}};
  std::erase_if(m, [](const auto& e) { return e.second == 0; });
  EXPECT_EQ(a.clean(), m.empty());
  return m;
}
using Broken = std::map<std::string, uint64_t>;

}  // namespace kz::tpu
