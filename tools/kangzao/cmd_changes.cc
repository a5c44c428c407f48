// SPDX-License-Identifier: GPL-2.0-or-later
// kangzao changes: why a module does not build or load on a kernel.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "tools/changes/changes.h"
#include "tools/journal/writer.h"
#include "tools/kangzao/commands.h"

namespace kz {
namespace {

using changes::Change;
using changes::Finding;
using nlohmann::json;

constexpr size_t longest_log = size_t{256} << 20;

struct ChangesArgs {
  std::vector<std::string> logs;
  std::string kernel, vermagic;
  bool list = false, json = false;
};

struct Explained {
  std::string file;
  std::vector<Finding> findings;
};

[[noreturn]] void unreadable(const std::string& name, int error, const std::string& more = "") {
  throw JournalError(fmt::format("read {}: {}{}", name, std::strerror(error), more));
}

// At most 256 MiB; what is longer is read that far, and said.
std::string read_log(const std::string& name) {
  Fd opened;
  if (name != "-") {
    opened = Fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened) unreadable(name, errno);
  }
  int fd = name == "-" ? STDIN_FILENO : opened.get();
  std::string text;
  struct stat st {};
  if (::fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
    text.reserve(std::min(static_cast<size_t>(st.st_size), longest_log) + 1);
  std::vector<char> piece(size_t{1} << 20);
  for (;;) {
    ssize_t n = ::read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) unreadable(name, errno, errno == EISDIR ? "; name the log in it" : "");
    if (n == 0) return text;
    text.append(piece.data(), std::min(static_cast<size_t>(n), longest_log - text.size()));
    if (text.size() == longest_log) {
      say(fmt::format("kangzao: {}: only the first 256 MiB are read\n", name));
      return text;
    }
  }
}

Explained explain(const std::string& name, const ChangesArgs& a) {
  std::string log = read_log(name);
  Explained out{name, changes::explain_build(log, a.kernel)};
  for (Finding& f : changes::explain_load(log, a.kernel, a.vermagic)) out.findings.push_back(std::move(f));
  return out;
}

bool found_something(const Explained& e) {
  return std::ranges::any_of(e.findings, [](const Finding& f) { return !f.harmless; });
}

int print_findings(const std::vector<Explained>& all, bool as_json) {
  bool found = std::ranges::any_of(all, found_something);
  if (as_json) {
    json out = {{"schema", 1}, {"findings", json::array()}};
    for (const Explained& e : all)
      for (const Finding& f : e.findings) {
        json one = changes::to_json(f);
        one["log"] = e.file;
        out["findings"].push_back(std::move(one));
      }
    write_output(out.dump(1, ' ', false, json::error_handler_t::replace) + "\n", "");
    return found ? 1 : 0;
  }
  std::string text;
  for (const Explained& e : all) {
    if (all.size() > 1) text += fmt::format("{}:\n", e.file);
    if (e.findings.empty()) text += fmt::format("{}: no line of a build or load that failed\n", e.file);
    for (const Finding& f : e.findings) text += changes::to_text(f) + "\n";
  }
  write_output(text, "");
  return found ? 1 : 0;
}

void print_table(bool as_json) {
  if (as_json) {
    json out = {{"schema", 1}, {"changes", json::array()}};
    for (const Change& c : changes::table()) out["changes"].push_back(changes::to_json(c));
    write_output(out.dump(1, ' ', false, json::error_handler_t::replace) + "\n", "");
    return;
  }
  std::vector<const Change*> rows;
  for (const Change& c : changes::table()) rows.push_back(&c);
  std::ranges::sort(rows, {}, [](const Change* c) { return c->symbol; });
  std::string text;
  for (const Change* c : rows)
    text += fmt::format("{:<40} {:<10} {:<9} {}\n{:<62}{}\n", c->symbol, c->kind,
                        c->not_before.empty() ? c->since : c->not_before + "-" + c->since, c->before, "",
                        c->after);
  write_output(text, "");
}

int run_changes(const ChangesArgs& a) {
  if (a.list) {
    print_table(a.json);
    return 0;
  }
  if (a.logs.empty())
    throw Error({Errc::usage, "changes", "no log", "there is nothing to explain",
                 "name a file, - for standard input, or --list", 0});
  std::vector<Explained> all;
  for (const auto& name : a.logs) all.push_back(explain(name, a));
  return print_findings(all, a.json);
}

}  // namespace

void add_changes(CLI::App& app, int& exit_status) {
  auto* sub = app.add_subcommand(
      "changes", "why a kernel module does not build or load: the kernel change and the cure");
  sub->footer(
      "Examples:\n"
      "  make -C /lib/modules/$(uname -r)/build M=$PWD 2>&1 | kangzao changes -\n"
      "  kangzao changes build.log --kernel 7.3.4\n"
      "  dmesg | kangzao changes - --kernel $(uname -r) --vermagic \"$(modinfo -F vermagic kz_accel.ko)\"\n"
      "  kangzao changes --list\n"
      "Exit: 0 nothing found, 1 something found, 2 usage, 4 unreadable");
  auto a = std::make_shared<ChangesArgs>();
  sub->add_option("log", a->logs, "build log, kernel log or insmod's output; - is standard input");
  sub->add_option("--kernel", a->kernel,
                  "release of the kernel that it was for (uname -r); else the log is asked")
      ->check([](const std::string& text) {
        return !text.empty() && isdigit(static_cast<unsigned char>(text[0])) &&
                       text.find('.') != std::string::npos
                   ? std::string{}
                   : "'" + text + "' is no kernel release such as 6.12.117+deb13-amd64";
      });
  sub->add_option("--vermagic", a->vermagic, "what modinfo -F vermagic says of the module");
  auto* list = sub->add_flag("--list", a->list, "the table of kernel changes");
  sub->get_option("log")->excludes(list);
  sub->add_flag("--json", a->json, "one JSON document");
  sub->callback([a, &exit_status] { exit_status = run_changes(*a); });
}

}  // namespace kz
