// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/kernel_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>

namespace kz {
namespace fs = std::filesystem;
namespace {

// How the kernel begins a report about itself; such a line counts whatever device it is about.
constexpr std::string_view reports[] = {"BUG: ",
                                        "kernel BUG at",
                                        "Oops:",
                                        "general protection fault",
                                        "KASAN: ",
                                        "UBSAN: ",
                                        "KCSAN: ",
                                        "INFO: task ",
                                        "soft lockup",
                                        "hard LOCKUP",
                                        "possible circular locking",
                                        "possible recursive locking",
                                        "possible irq lock inversion",
                                        "inconsistent lock state",
                                        "inconsistent {",
                                        "bad unlock balance",
                                        "suspicious RCU usage",
                                        "trying to register non-static key",
                                        "self-detected stall",
                                        "detected stalls on",
                                        "detected expedited stalls",
                                        ": nobody cared",
                                        "Slab cache still has objects",
                                        "sysfs: cannot create duplicate filename",
                                        " with -EEXIST",
                                        "tried to init an initialized object",
                                        "Kernel panic",
                                        "refcount_t: "};
bool is_bdf(const std::string& text) {
  static const std::regex form("[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]");
  return std::regex_match(text, form);
}

constexpr int warning_level = 4;

// Trouble that some parts of the kernel tell at level info: hot-plug (pciehp_ctrl.c), AER's first line, DPC.
bool tells_of_trouble(const std::string& text) {
  for (auto word : {"Link Down", "not present", "AER:", "DPC:", "error", "Error", "fail", "Fail", "timeout",
                    "timed out", "Timeout", "not responding", "unresponsive"})
    if (text.find(word) != std::string::npos) return true;
  return false;
}

constexpr size_t most_lines = 100, most_expected = 1000;  // kept of each kind

// As a word of its own: "ast" is not in "last", "0000:01:00.0" is not in "10000:01:00.0".
bool names(const std::string& text, const std::string& word) {
  auto joins = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    bool before = at > 0 && joins(text[at - 1]);
    bool after = at + word.size() < text.size() && joins(text[at + word.size()]);
    if (!before && !after) return true;
  }
  return false;
}

// WARN() and lockdep begin a report so, in words that change from release to release. The exceptions are said
// once at boot, of the machine.
bool is_warning(const std::string& text) {
  if (text.find("WARNING: CPU") != std::string::npos) return true;
  if (!text.starts_with("WARNING: ")) return false;
  for (auto word : {"Unprivileged eBPF", "polling idle", "workqueue cpumask", "MP table"})
    if (text.find(word) != std::string::npos) return false;
  return true;
}

// "divide error: 0000 [#1] SMP": whatever the trap, the kernel counts the times that it died.
bool tells_of_death(const std::string& text) {
  auto at = text.find(" [#");
  return at != std::string::npos && at + 3 < text.size() &&
         std::isdigit(static_cast<unsigned char>(text[at + 3])) != 0;
}

// "BUG kz_req (Tainted: G B): Poison overwritten": what SLUB finds in a cache.
bool is_slab_report(const std::string& text) {
  return text.starts_with("BUG ") && text.find("ainted") != std::string::npos;
}

}  // namespace

bool is_kernel_report(const std::string& text) {
  for (auto r : reports)
    if (text.find(r) != std::string::npos) return true;
  return is_warning(text) || tells_of_death(text) || is_slab_report(text);
}

void KernelLines::add(const std::string& text, int level, const std::vector<std::string>& device,
                      const ExpectedLog& on_purpose) {
  auto holds_one = [&](const std::vector<std::string>& words) {
    return std::ranges::any_of(words,
                               [&](const std::string& word) { return text.find(word) != std::string::npos; });
  };
  const bool report = is_kernel_report(text);
  auto& kept = !counts_against(text, level, device)                         ? context
               : !holds_one(report ? on_purpose.reports : on_purpose.words) ? against
               : report                                                     ? expected
                                                                            : context;
  if (kept.size() < (&kept == &expected ? most_expected : most_lines)) kept.push_back(text);
}

bool counts_against(const std::string& text, int level, const std::vector<std::string>& device) {
  if (level <= warning_level || tells_of_trouble(text))
    for (auto& name : device)
      if (!name.empty() && names(text, name)) return true;
  return is_kernel_report(text);
}

std::vector<std::string> ports_above(const std::string& bdf, const std::string& sys) {
  std::error_code ec;
  std::vector<std::string> out;
  if (bdf.empty()) return out;
  for (auto& part : fs::canonical(sys + "/bus/pci/devices/" + bdf, ec))
    if (is_bdf(part) && part != bdf) out.push_back(part);
  return out;
}

KernelLog::KernelLog(std::vector<std::string> names, const std::string& path) : names_(std::move(names)) {
  fd_ = Fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd_ || ::lseek(fd_.get(), 0, SEEK_END) < 0) {
    unreadable_ = fmt::format("{} cannot be read: {}", path, std::strerror(errno));
    fd_.reset();
  }
}

KernelLines KernelLog::take(const ExpectedLog& expected) {
  KernelLines lines;
  char record[8192];
  while (fd_) {
    ssize_t n = ::read(fd_.get(), record, sizeof record - 1);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE) {  // overwritten before it was read
      lines.overrun = true;
      continue;
    }
    if (n <= 0) break;
    std::string text(record, static_cast<size_t>(n));
    text = text.substr(0, text.find('\n'));
    int level = warning_level;  // where a line does not say it
    if (auto semicolon = text.find(';'); semicolon != std::string::npos) {
      // Documentation/ABI/testing/dev-kmsg: the number is facility * 8 + level
      if (std::isdigit(static_cast<unsigned char>(text[0])) != 0) level = std::atoi(text.c_str()) & 7;
      text.erase(0, semicolon + 1);
    }
    lines.add(text, level, names_, expected);
  }
  return lines;
}

unsigned long kernel_taint() {
  std::ifstream in("/proc/sys/kernel/tainted");
  unsigned long taint = 0;
  in >> taint;
  return taint;
}

}  // namespace kz
