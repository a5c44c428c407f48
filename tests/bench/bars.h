// SPDX-License-Identifier: GPL-2.0-or-later
// Benchmarks are judged by ratios: two benchmarks of one run, interleaved, best repetition of each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shim/device.h"

namespace kz::bench {

// value = rate(subject) / rate(reference), where rate is items or bytes per second of the best repetition.
struct Bar {
  std::string name;       // as printed
  std::string subject;    // benchmark name
  std::string reference;  // benchmark name
  char op;                // '>' : value >= limit, '<' : value <= limit
  double limit;
  bool by_time = false;  // value = time(subject) / time(reference) instead
};

// One device for all benchmarks of the program.
Device& device();

std::vector<Bar> register_roundtrip();
std::vector<Bar> register_dma();
std::vector<Bar> register_matmul();

}  // namespace kz::bench
