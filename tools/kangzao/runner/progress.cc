// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "shim/base/console.h"
#include "tools/report/terminal.h"

namespace kz {

static std::string clock_text(double s) {
  auto n = static_cast<long>(s);
  return n >= 3600 ? fmt::format("{}:{:02}:{:02}", n / 3600, n / 60 % 60, n % 60)
                   : fmt::format("{}:{:02}", n / 60, n % 60);
}

Progress::Progress(size_t total, bool quiet)
    : total_(total),
      quiet_(quiet),
      terminal_(::isatty(STDERR_FILENO) == 1),
      colour_(terminal_ && std::getenv("NO_COLOR") == nullptr) {}

void Progress::clear_line() {
  if (terminal_) say("\r\x1b[K");
}

void Progress::begin(const std::string& id) {
  current_ = id;
  tick();
}

void Progress::tick() {
  if (quiet_ || !terminal_) return;
  double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string left;
  if (done_ > 0 && total_ > done_)
    left = fmt::format(", about {} left", clock_text(elapsed / static_cast<double>(done_) *
                                                     static_cast<double>(total_ - done_)));
  clear_line();
  say(fmt::format("[{}/{}] {}  ({}{})", done_ + 1, total_, current_, clock_text(elapsed), left));
}

void Progress::end(const std::string& id, Verdict v, double seconds, const std::string& reason) {
  ++done_;
  if (quiet_ || silent_) return;
  clear_line();
  std::string why = v == Verdict::pass || reason.empty()
                        ? ""
                        : "  " + printable(reason.substr(0, reason.find('\n'))).substr(0, 160);
  say(fmt::format("{:>3}/{} {} {:<44} {:>7.2f} s{}\n", done_, total_,
                  colourise(v, fmt::format("{:<11}", to_string(v)), colour_), id, seconds, why));
}

void Progress::note(const std::string& text) {
  if (quiet_) return;
  clear_line();
  say(fmt::format("        {}\n", printable(text)));
}

}  // namespace kz
