// SPDX-License-Identifier: GPL-2.0-or-later
// Everything that is compared does the same: blocks of 4 KiB at random places of a cached file, or NOPs, 32
// at a time, with a registered file and registered buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kz::bench {

inline constexpr unsigned kBatch = 32;
inline constexpr unsigned kBlock = 4096;

// Of one round. All loops are bound by the processor alone, so on an idle machine both are the same; on a
// shared one `cpu_ns` leaves out the time that others had the processor.
struct Cost {
  double wall_ns = 0;  // an operation
  double cpu_ns = 0;   // an operation, of processor time, user and system
  uint64_t io_workers = 0;
};

// An empty file: NOPs. Throws Error.
Cost run_generator(const std::string& file, double seconds);  // kz::load, with histogram and books
Cost run_bare_loop(const std::string& file, double seconds);  // the least that liburing allows, no statistics
Cost run_fio(const std::string& program, const std::string& file, int seconds);
Cost run_t_io_uring(const std::string& program, const std::string& file, int seconds);

// Processor time of this process so far, ns.
double own_cpu_ns();

}  // namespace kz::bench
