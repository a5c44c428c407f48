// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tools/changes/changes.h"
#include "tools/changes/diagnostic.h"
#include "tools/changes/table.h"
#include "tools/changes/text_rule.h"
#include "tools/changes/words.h"

namespace kz::changes {
namespace {

using C = Confidence;
constexpr std::string_view not_exported =
    "the symbol is not exported, is inline or a macro on another kernel, belongs to an option that is off, "
    "or to another module "
    "whose Module.symvers was not given";
constexpr std::string_view look_in_symvers =
    "look for it in Module.symvers of the target kernel; for another module's symbol set "
    "KBUILD_EXTRA_SYMBOLS";
constexpr std::string_view namespaces =
    "symbols of a namespace need an import. MODULE_IMPORT_NS(\"X\") with quotes compiles before 6.13 too, "
    "but imports nothing there";
constexpr std::string_view gpl_only =
    "the symbol is exported with EXPORT_SYMBOL_GPL and MODULE_LICENSE says something else; more symbols "
    "become GPL-only over time";
constexpr std::string_view gpl_cure =
    "use another interface, or license the module under the GPL where that is true";

constexpr TextRule build_rules[] = {
    {"headers_missing", "*** {}: No such file or directory.  Stop.", "make did not find {0}",
     "the kernel's build folder is not there: its headers are not installed, or KDIR names another kernel",
     "install linux-headers-$(uname -r), or give KDIR=/lib/modules/RELEASE/build of a kernel whose headers "
     "are there"},
    {"dkms_headers_missing", "Your kernel headers for kernel {} cannot be found",
     "dkms found no headers of {0}", "the headers of the kernel that dkms builds for are not installed",
     "install linux-headers-{0}"},
    {"source_missing", "No rule to make target '{}', needed by '{}'", "{1} needs {0}, which is not there",
     "the Kbuild file names an object whose source is missing, or is read from the wrong folder: from 6.13 "
     "on make M= works in the "
     "module's folder, so paths made of $(PWD) or relative to the kernel's tree point elsewhere",
     "check the names in Kbuild; write $(src)/ before folders of the module"},
    {"no_kernel_makefile", "No rule to make target 'modules'", "make found no target 'modules'",
     "the folder given with -C holds no kernel build system", "give KDIR=/lib/modules/RELEASE/build"},
    {"not_configured", "Kernel configuration is invalid", "the kernel tree is not configured",
     "a source tree without include/generated/autoconf.h cannot build modules",
     "use the distribution's headers package, or run make olddefconfig modules_prepare in the tree"},
    {"tool_missing", "sh: {}: {}: not found", "the build calls {1}, which is not there",
     "the headers expect a compiler or a host tool that is not installed",
     "install {1}, or name the compiler with CC="},
    {"compiler_option", "unrecognized command-line option '{}'", "the compiler does not know {0}",
     "the kernel was configured for a newer compiler than the one that builds the module",
     "use the compiler of the kernel (first line of /proc/version) with CC="},
    {"compiler_option", "unknown argument: '{}'", "the compiler does not know {0}",
     "the kernel was built with gcc and the module with clang, or with another version of it",
     "use the compiler of the kernel (first line of /proc/version); LLVM=1 for a kernel built with clang"},
    {"compiler_plugin", "cannot load plugin {}", "the compiler cannot load {0}",
     "the kernel's gcc plugins were built for another gcc", "use the compiler of the kernel with CC="},
    {"compiler_differs", "warning: the compiler differs from the one used to build the kernel",
     "module and kernel are not built by the same compiler",
     "often without consequence; options that only one knows fail",
     "use the compiler that the next lines of the log name", C::low, true},
    {"objtool_proc", "objtool [{}]: read_stack_limit: fopen failed", "objtool could not read /proc",
     "objtool of 7.x wants /proc, which a chroot or container may lack",
     "mount proc in the root: mount -t proc proc ROOT/proc"},
    {"objtool", "objtool: {}", "objtool: {0}",
     "objtool found code that it cannot follow, most often inline assembly or a call that does not return",
     "see tools/objtool/Documentation/objtool.txt; a function that does not return needs __noreturn",
     C::medium, true},
    {"warnings_are_errors", "cc1: all warnings being treated as errors", "a warning ended the build",
     "-Werror is set by the module, by W=e, or by CONFIG_WERROR of the kernel; newer headers and compilers "
     "warn of more",
     "leave out W= and -Werror; mend the warning above", C::medium, true},
    {"btf_skipped", "Skipping BTF generation for {} due to unavailability of vmlinux", "no BTF in {0}",
     "the headers package has no vmlinux", "nothing: the module loads without", C::low, true},
    {"undefined_symbol", "modpost: \"{}\" [{}] undefined!",
     "{1} uses {0}, which no module and no kernel here exports", not_exported, look_in_symvers, C::high,
     false, 0, 1},
    {"undefined_symbol", "modpost: {}: symbol '{}' undefined!",
     "{0} uses {1}, which no module and no kernel here exports", not_exported, look_in_symvers, C::high,
     false, 1, 0},
    {"namespace_missing", "modpost: module {} uses symbol {} from namespace {}, but does not import it",
     "{0} uses {1}, which belongs to the namespace {2}", namespaces,
     "add MODULE_IMPORT_NS(\"{2}\"), before 6.13 MODULE_IMPORT_NS({2})", C::high, false, 1, 0},
    {"namespace_missing", "modpost: {}: module uses symbol '{}' from namespace '{}', but does not import it",
     "{0} uses {1}, which belongs to the namespace {2}", namespaces,
     "add MODULE_IMPORT_NS(\"{2}\"), before 6.13 MODULE_IMPORT_NS({2})", C::high, false, 1, 0},
    {"gpl_only", "modpost: GPL-incompatible module {} uses GPL-only symbol '{}'",
     "{0} uses {1}, which only GPL modules may use", gpl_only, gpl_cure, C::high, false, 1, 0},
    {"gpl_only", "modpost: {}: GPL-incompatible module uses GPL-only symbol '{}'",
     "{0} uses {1}, which only GPL modules may use", gpl_only, gpl_cure, C::high, false, 1, 0},
    {"licence_missing", "missing MODULE_LICENSE() in {}", "{0} has no licence",
     "modpost refuses it from 5.12 on", "add MODULE_LICENSE()"},
    {"licence_missing", "modpost: {}: missing MODULE_LICENSE()", "{0} has no licence",
     "modpost refuses it from 5.12 on", "add MODULE_LICENSE()"},
    {"description_missing", "missing MODULE_DESCRIPTION() in {}", "{0} has no description",
     "modpost remarks it from 6.11 on", "add MODULE_DESCRIPTION()", C::low, true},
    {"description_missing", "modpost: {}: missing MODULE_DESCRIPTION()", "{0} has no description",
     "modpost remarks it from 6.11 on", "add MODULE_DESCRIPTION()", C::low, true},
    {"assembler_export", "Error: junk at end of line, first unrecognized character is `{}",
     "the assembler stumbled over {0}", "", "", C::medium},
    {"symvers_missing", "Module.symvers{}is missing", "no Module.symvers",
     "without it symbols are neither checked nor versioned: the module may then be refused at load",
     "use headers that have Module.symvers, or build the kernel once", C::medium},
    {"section_mismatch", "ection mismatch in reference: {}",
     "a function refers to memory that is freed after start: {0}",
     "a function without __init calls one with it, or the like", "give both the same section", C::medium,
     true},
    {"no_space", "No space left on device", "the disk is full", "the build could not write", "make room"},
    {"killed", "Killed signal terminated program {}", "{0} was killed", "out of memory, most often",
     "build with fewer jobs (make -j1)"},
};

struct Collected {
  std::vector<Finding> findings;
  std::vector<size_t> positions;  // of each, in the log
  void add(Finding f, size_t at) {
    findings.push_back(std::move(f));
    positions.push_back(at);
  }
};

std::string place(const Diagnostic& d) { return d.line ? fmt::format("{}:{}", d.file, d.line) : d.file; }

// EXTRA_CFLAGS, EXTRA_AFLAGS, EXTRA_LDFLAGS in the log, or in the lines of a Kbuild beside it.
bool names_extra_flags(std::string_view log) {
  for (auto name : {"EXTRA_CFLAGS", "EXTRA_AFLAGS", "EXTRA_LDFLAGS"})
    if (log.find(name) != std::string_view::npos) return true;
  return false;
}

// Options that 6.15 and later ignore: what they should have brought is missing.
bool lost_cflags(const Diagnostic& d, unsigned release) {
  if (release != 0 && release < series_of("6.15")) return false;
  std::string_view header = d.subject();
  if (d.message.find("No such file") == std::string::npos &&
      d.message.find("file not found") == std::string::npos)
    return false;
  for (std::string_view kernel :
       {"linux/", "asm/", "uapi/", "net/", "drm/", "crypto/", "rdma/", "scsi/", "asm-generic/", "generated/"})
    if (header.starts_with(kernel)) return false;
  return true;
}

const Change* row_named(std::string_view symbol) {
  for (const Change& row : table())
    if (row.symbol == symbol) return &row;
  return nullptr;
}

Match match_of(const Diagnostic& d, unsigned release, bool extra_flags) {
  auto subjects = d.subjects();
  Match m = find_change(subjects, d.message, d.context, release);
  if (m.change == nullptr && extra_flags && lost_cflags(d, release))
    m = {row_named("EXTRA_CFLAGS"), false, 1};
  if (m.change == nullptr || !subjects.empty()) return m;
  // A message that names types only: the words in the code below it count where types are what it is about.
  constexpr std::string_view about_types[] = {"incompatible",
                                              "void value",
                                              "discards",
                                              "read-only",
                                              "undefined type",
                                              "incomplete",
                                              "const-qualified",
                                              "too many",
                                              "too few",
                                              "storage size",
                                              "aggregate",
                                              "without a cast",
                                              "drops const",
                                              "must be array",
                                              "negative width",
                                              "not assignable",
                                              "expression of type 'void'"};
  bool typed =
      std::ranges::any_of(about_types, [&](auto t) { return d.message.find(t) != std::string::npos; });
  if (!typed && m.score < 16) return {};
  return m;
}

// One finding a row: the first place, and how many there are.
void add_known(Collected& out, const Diagnostic& d, const Match& m, unsigned release,
               std::map<const Change*, size_t>& by_row) {
  auto known = by_row.find(m.change);
  if (known != by_row.end()) {
    out.findings[known->second].count += d.count;
    return;
  }
  Finding f = finding_of(m, d.subject(), release);
  f.what = fmt::format("{}: {}", place(d), d.message);
  if (m.change->kind == "make") {
    f.cause = "a header of the module is not found; " + f.cause;
    f.confidence = Confidence::medium;
  }
  if (m.score < 16 && f.confidence == Confidence::high) f.confidence = Confidence::medium;
  f.file = d.file;
  f.file_line = d.line;
  f.evidence = d.evidence;
  f.count = d.count;
  by_row[m.change] = out.findings.size();
  out.add(std::move(f), d.at);
}

Finding unknown(const Diagnostic& d, size_t more) {
  Finding f;
  f.name = "not_known";
  f.symbol = d.subject();
  f.what = fmt::format("{}: {}", place(d), d.message);
  f.cause = "no row of the table of kernel changes explains this";
  f.cure = "look for the name in the headers of both kernels; docs/kernel-changes.md says how to add a row";
  if (more) f.cause += fmt::format("; {} more like it", more);
  f.file = d.file;
  f.file_line = d.line;
  f.evidence = d.evidence;
  f.count = 1 + more;
  return f;
}

void explain_diagnostics(std::string_view log, unsigned release, Collected& out) {
  auto all = read_diagnostics(log);
  std::map<const Change*, size_t> by_row;
  std::set<std::pair<std::string, unsigned>> explained;  // places
  std::set<std::string> explained_files;
  std::vector<const Diagnostic*> rest;
  bool extra_flags = names_extra_flags(log);
  bool errors = std::ranges::any_of(all, [](const Diagnostic& d) { return d.error; });
  for (const Diagnostic& d : all) {
    if (d.consequence()) continue;
    Match m = match_of(d, release, extra_flags);
    if (m.change == nullptr) {
      if (d.error) rest.push_back(&d);
      continue;
    }
    if (!d.error && (errors || m.score < 16)) continue;  // a warning beside errors is no reason
    add_known(out, d, m, release, by_row);
    explained.insert({d.file, d.line});
    explained_files.insert(d.file);
  }
  for (const Diagnostic& d : all)
    if (d.error && d.consequence() && !explained_files.contains(d.file)) rest.push_back(&d);
  std::erase_if(rest, [&](const Diagnostic* d) { return explained.contains({d->file, d->line}); });
  if (!rest.empty()) {
    std::ranges::sort(rest, {}, &Diagnostic::at);
    out.add(unknown(*rest[0], rest.size() - 1), rest[0]->at);
  }
}

// What modpost misses may be a row of the table, too.
void explain_lines(std::string_view log, unsigned release, Collected& out) {
  for (const TextHit& hit : find_rules(log, build_rules)) {
    Finding f = finding_of(hit);
    Match m;
    if (f.name == "undefined_symbol") m = find_change({f.symbol}, f.symbol, "", release);
    if (f.name == "assembler_export")
      m = {row_named("EXPORT_SYMBOL_NS_GPL"), release != 0 && release < series_of("6.13"), 16};
    if (m.change != nullptr) {
      Finding row = finding_of(m, f.symbol, release);
      row.what = f.what;
      row.file = f.file;
      row.evidence = f.evidence;
      row.count = f.count;
      row.confidence = std::min(row.confidence, f.confidence);
      f = std::move(row);
    }
    out.add(std::move(f), hit.at);
  }
}

// A build that failed without a line that says why.
void explain_bare_failure(std::string_view log, Collected& out) {
  constexpr TextRule failures[] = {
      {"not_known", "{}: Error: {}", "the assembler refused it: {1}", "", "", C::low},
      {"not_known", "error: objtool {}", "objtool: {0}", "", "", C::low},
      {"not_known", "ERROR: modpost: {}", "modpost: {0}", "modpost refused the module", "", C::low},
      {"not_known", "collect2: error: {}", "the linker failed: {0}", "", "", C::low},
      {"not_known", "ld: {}: error: {}", "the linker failed: {1}", "", "", C::low},
      {"not_known", "make{}*** {} Error {}", "make failed at {1}",
       "no line before it says why in words known here", "", C::low},
      {"not_known", "make{}*** {}  Stop.", "make stopped: {1}", "", "", C::low},
      {"not_known", "Bad return status for module build on kernel: {}", "dkms: the build for {0} failed",
       "the reason is in make.log of the module's build folder below /var/lib/dkms", "", C::low}};
  auto hits = find_rules(log, failures);
  if (hits.empty()) return;
  Finding f = finding_of(hits.front());
  if (f.cause.empty()) f.cause = "nothing in the tables here explains this";
  f.cure = "read the lines before it; make V=1 shows the commands";
  f.count = hits.size();
  out.add(std::move(f), hits.front().at);
}

}  // namespace

std::vector<Finding> explain_build(std::string_view log, std::string_view kernel_release) {
  std::string found = kernel_release.empty() ? release_in(log) : std::string(kernel_release);
  unsigned release = series_of(found);
  Collected out;
  explain_diagnostics(log, release, out);
  explain_lines(log, release, out);
  if (std::ranges::all_of(out.findings, &Finding::harmless)) explain_bare_failure(log, out);
  return sorted_findings(log, std::move(out.findings), out.positions);
}

}  // namespace kz::changes
