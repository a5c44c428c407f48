// SPDX-License-Identifier: GPL-2.0-or-later
// The kernel log between two points of a run, and which of its lines count against a test.
#pragma once

#include <string>
#include <vector>

#include "shim/base/fd.h"

namespace kz {

// What a test brings about on purpose.
struct ExpectedLog {
  std::vector<std::string> words;    // in lines about the device or its driver
  std::vector<std::string> reports;  // in the kernel's reports about itself
};

struct KernelLines {
  std::vector<std::string>
      against;  // of trouble with the device or its path, or a BUG or oops; at most 100
  std::vector<std::string> expected;  // reports of the kernel that a test brought about; at most 1000
  std::vector<std::string> context;   // the rest, at most 100
  bool overrun = false;               // the ring buffer wrapped: lines were lost
  // A line with its level goes where it belongs, for a test of a device with these names.
  void add(const std::string& text, int level, const std::vector<std::string>& device,
           const ExpectedLog& on_purpose);
};

// Does the kernel tell of itself: BUG, oops, WARNING, KASAN, lockdep, a stall?
bool is_kernel_report(const std::string& text);

class KernelLog {
 public:
  // `names`: strings that mean the device (BDF, driver, socket). Opens /dev/kmsg at its end.
  explicit KernelLog(std::vector<std::string> names, const std::string& path = "/dev/kmsg");
  // Empty when it can be read, else why not.
  const std::string& unreadable() const { return unreadable_; }
  // Everything since the last call.
  KernelLines take(const ExpectedLog& expected = {});

 private:
  std::vector<std::string> names_;
  std::string unreadable_;
  Fd fd_;
};

// A line as /dev/kmsg gives it without its prefix, and its level (0 emergency to 7 debug): does it count against a
// test of a device with these names? A report of the kernel about itself does at any level; a line that names the
// device from warning (4) up, and below that where it tells of trouble (a link that went, an error, a time-out): what
// a driver says of a reset that was asked for is none.
bool counts_against(const std::string& text, int level, const std::vector<std::string>& device);

// The ports and bridges between the host and a function, from the root: they report its link's errors.
std::vector<std::string> ports_above(const std::string& bdf, const std::string& sys = "/sys");

// Documentation/admin-guide/tainted-kernels.rst: bit 9, the kernel warned.
inline constexpr unsigned long taint_of_warning = 1u << 9;

// /proc/sys/kernel/tainted, 0 where it cannot be read.
unsigned long kernel_taint();

}  // namespace kz
