// SPDX-License-Identifier: GPL-2.0-or-later
// What to load a device with: a text profile (docs/load.md) read into jobs.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shim/command.h"

namespace kz::load {

// One kind of work. `free` is drawn where a job's mix says alloc and it holds enough; `check` reads a result
// back to verify it; neither can be named in a mix. `io` is one operation of a target that is no device.
enum class Op : uint8_t {
  nop,
  copy_in,
  copy_out,
  copy_hbm,
  matmul,
  vector,
  alloc,
  free,
  telemetry,
  check,
  io
};
inline constexpr size_t kOps = 11;
std::string_view to_string(Op op);  // "nop", "copy-in", ...

// What a job's operations go to. All but `device` are there to measure the generator and the kernel's path
// alone.
enum class Target : uint8_t {
  device,     // commands of the shim, on any backend
  nop,        // IORING_OP_NOP
  file,       // IORING_OP_READ_FIXED at random blocks of a file
  uring_cmd,  // IORING_OP_URING_CMD on a character device; a NOP of the reference driver where it is one of
              // its nodes
};

enum class Arrivals : uint8_t { constant, poisson };

struct SizeRange {
  uint64_t least = 4096, most = 4096;  // bytes; drawn evenly over the logarithm
};

struct Job {
  std::string name;
  Target target = Target::device;
  std::string path;                  // of file and uring_cmd
  std::vector<std::string> devices;  // URIs; the job runs on each
  std::array<unsigned, kOps> mix{};  // weights
  SizeRange size;                    // copies, and blocks of a file
  SizeRange alloc_size{65536, 1 << 20};
  unsigned blocks = 16;      // allocations that a thread holds at most
  uint32_t dim = 64;         // matmul of dim x dim
  uint32_t elements = 4096;  // vector
  Dtype dtype = Dtype::f32;

  bool open_loop = true;
  double rate = 1000;  // operations a second, of the whole job on one device
  Arrivals arrivals = Arrivals::constant;
  std::chrono::nanoseconds ramp{0};  // the rate rises from 0 over this time
  unsigned burst = 1;                // arrivals in groups of so many; the rate stays
  unsigned depth = 0;                // most operations outstanding of a queue; 0: as many as fit
  unsigned batch = 32;               // operations handed over at once, at most

  unsigned queue_order = 5;          // log2 of a queue's entries
  unsigned queues = 1, threads = 1;  // a job's queues are shared out to its threads
  unsigned processes = 1;
  bool interrupts = true;

  std::chrono::nanoseconds time = std::chrono::seconds(10);
  uint64_t count = 0;  // operations of a thread; 0: until the time is over
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);  // an operation without an answer is lost then
  std::chrono::nanoseconds late =
      std::chrono::milliseconds(1);  // a start this much after the intended one is late
  bool verify = true;
  uint64_t seed = 1;

  bool wants(Op op) const { return mix[static_cast<size_t>(op)] != 0; }
  bool copies() const { return wants(Op::copy_in) || wants(Op::copy_out) || wants(Op::copy_hbm); }
  // Most operations outstanding of one queue.
  unsigned limit() const { return depth != 0 ? depth : 1u << queue_order; }
};

struct Plan {
  std::string source;  // file name, for messages
  std::string text;
  std::vector<Job> jobs;

  unsigned processes() const;  // of the job that has most
};

// Throws Error(usage) that names source, line and key, and the nearest known one.
Plan parse_plan(std::string_view text, const std::string& source);
// The same from a file; "-" is standard input. Throws Error(usage) where it cannot be read.
Plan read_plan(const std::string& file);
// Replaces the devices of every job that goes to a device.
void use_devices(Plan& plan, const std::vector<std::string>& uris);

// One thread of load.
struct WorkerId {
  unsigned job = 0, process = 0, device = 0, thread = 0;
  unsigned sender = 0, senders = 1;  // among those that share the job's rate on the device
};

// "10s", "250ms", "3us", "2min". Throws Error(usage).
std::chrono::nanoseconds parse_time(std::string_view text);

}  // namespace kz::load
