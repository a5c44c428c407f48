// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>

#include <algorithm>

#include "tools/changes/changes.h"
#include "tools/changes/table.h"
#include "tools/changes/text_rule.h"
#include "tools/changes/words.h"

namespace kz::changes {
namespace {

using C = Confidence;
constexpr std::string_view rebuild =
    "build the module against the headers of the kernel that runs (linux-headers-$(uname -r))";

constexpr TextRule load_rules[] = {
    {"version_magic", "{}: version magic '{}' should be '{}'",
     "{0} was built for '{1}', this kernel is '{2}'",
     "the loader refuses a module of another release or configuration", rebuild},
    {"symbol_version", "{}: disagrees about version of symbol {}",
     "{0} was built against another form of {1}",
     "types that the symbol uses differ between the headers the module was built with and this kernel "
     "(CONFIG_MODVERSIONS); with "
     "module_layout the whole configuration differs",
     rebuild, C::high, false, 1, 0},
    {"no_symbol_version", "{}: no symbol version for {}", "{0} carries no version of {1}",
     "it was built without the Module.symvers of this kernel, or of the other module that exports the symbol",
     "build with the kernel's Module.symvers; for another module's symbols set KBUILD_EXTRA_SYMBOLS", C::high,
     false, 1, 0},
    {"unknown_symbol", "{}: Unknown symbol {} (err {})", "{0} needs {1}, which this kernel does not offer it",
     "", ""},
    {"namespace_missing", "{}: module uses symbol ({}) from namespace {}, but does not import it",
     "{0} uses {1} of the namespace {2}",
     "symbols of a namespace need an import. MODULE_IMPORT_NS(\"X\") with quotes compiles before 6.13 too, "
     "but imports nothing there",
     "add MODULE_IMPORT_NS(\"{2}\"), before 6.13 MODULE_IMPORT_NS({2})", C::high, false, 1, 0},
    {"gpl_only", "module using GPL-only symbols uses symbols {} from proprietary module {}",
     "symbols {0} of {1} are not to be had",
     "a module that uses symbols of a proprietary module may use no GPL-only symbol",
     "license the module under the GPL", C::high, false, 0, 1},
    {"symbol_get", "failing symbol_get of non-GPLONLY symbol {}", "symbol_get of {0} was refused",
     "from 6.6 on only symbols exported with EXPORT_SYMBOL_GPL can be had that way",
     "link against the symbol, or have its owner export it GPL", C::high, false, 0},
    {"duplicate_symbol", "{}: exports duplicate symbol {} (owned by {})", "{0} exports {1}, and so does {2}",
     "two copies of one driver: an in-tree one and this one, or an old one still loaded", "unload {2} first",
     C::high, false, 1, 0},
    {"unsigned", "Loading of unsigned module is rejected", "the kernel refuses modules without a signature",
     "module.sig_enforce=1, CONFIG_MODULE_SIG_FORCE or Secure Boot",
     "sign the module with a key the kernel trusts (kmodsign, mokutil --import), or turn Secure Boot off"},
    {"unsigned", "Loading of module with unavailable key is rejected",
     "the module is signed with a key this kernel does not have", "the key is neither built in nor enrolled",
     "enrol the key (mokutil --import), or sign with one that is"},
    {"unsigned", "Loading of module with unsupported crypto is rejected",
     "the module's signature uses an algorithm this kernel does not have", "signature and kernel do not fit",
     "sign with the scripts/sign-file of this kernel"},
    {"unsigned", "Lockdown: {}: unsigned module loading is restricted",
     "lockdown keeps {0} from loading an unsigned module", "Secure Boot turned lockdown on",
     "sign the module with an enrolled key, or turn Secure Boot off"},
    {"unsigned", "Key was rejected by service", "the signature's key was refused",
     "the key is not one the kernel trusts",
     "enrol the key (mokutil --import) and boot once through the MOK manager"},
    {"unsigned", "Required key not available", "the key of the signature is not there",
     "Secure Boot wants modules signed by an enrolled key",
     "enrol the key (mokutil --import), or sign with one that is"},
    {"taint_unsigned",
     "{}: module verification failed: signature and/or required key missing - tainting kernel",
     "{0} is not signed", "this kernel only remarks it (taint E)", "nothing, or sign it", C::low, true},
    {"taint_out_of_tree", "{}: loading out-of-tree module taints kernel", "{0} is not of the kernel's tree",
     "taint O", "nothing", C::low, true},
    {"taint_licence", "{}: module license taints kernel", "{0} has a licence that is not the GPL",
     "taint P: GPL-only symbols are refused to it", "set MODULE_LICENSE(\"GPL\") where that is true", C::low,
     true},
    {"taint_licence", "{}: module license '{}' taints kernel", "{0} says licence '{1}'",
     "taint P: GPL-only symbols are refused to it", "set MODULE_LICENSE(\"GPL\") where that is true", C::low,
     true},
    {"btf", "failed to validate module [{}] BTF: {}", "the type information of {0} does not fit this kernel",
     "the module's BTF was made from the vmlinux of another build",
     "build on this kernel, or take the section out: objcopy --remove-section .BTF {0}.ko; "
     "CONFIG_MODULE_ALLOW_BTF_MISMATCH lets it pass"},
    {"unknown_parameter", "{}: unknown parameter '{}' ignored", "{0} has no parameter {1}",
     "it was renamed or belongs to another version of the module",
     "modinfo -p {0} lists what there is; see /etc/modprobe.d", C::medium, true},
    {"bad_parameter", "invalid for parameter `{}'", "the value for {0} was refused",
     "it cannot be read as the parameter's type, or is out of its range", "modinfo -p lists the types"},
    {"module_struct", "{}: .gnu.linkonce.this_module section size must match",
     "struct module of {0} has another size than the kernel's",
     "the module was built with another configuration of the kernel", rebuild},
    {"relocation", "overflow in relocation type {}", "a relocation of type {0} does not fit",
     "the module was built with another code model than the kernel wants",
     "build with the kernel's own flags: through its Kbuild, with its compiler"},
    {"relocation", "Unknown rela relocation: {}", "the loader does not know relocation {0}",
     "the module was linked or built by a toolchain newer than this kernel",
     "build with the compiler and binutils of the kernel"},
    {"relocation", "kipping invalid relocation target, existing value is nonzero{}",
     "a relocation was applied already", "the file was linked twice, or stripped wrongly",
     "rebuild it; never strip more than debug sections (strip -g)"},
    {"elf", "Invalid ELF header magic", "the file is no ELF object",
     "an empty, compressed or cut file: insmod of busybox reads no .ko.xz",
     "decompress the module, or use kmod's modprobe"},
    {"elf", "Invalid ELF section header overflow", "the file ends before its sections do",
     "cut off while it was copied", "copy it again"},
    {"elf", "{}: module has invalid ELF structures", "the file is broken",
     "cut off while it was copied, or stripped wrongly", "copy it again"},
    {"elf", "Invalid architecture in ELF header: {}", "the module is for another architecture ({0})",
     "cross-built", "build with the right ARCH= and CROSS_COMPILE="},
    {"not_found", "FATAL: Module {} not found in directory {}", "{1} has no module {0}",
     "it is built for another kernel, or depmod was not run",
     "install it for this kernel (dkms install), then depmod -a"},
    {"duplicate_name", "cannot create duplicate filename '{}'", "{0} is there already",
     "two drivers, or two instances of one, take one name; or remove did not clean up",
     "unload the other driver", C::medium},
    {"init_value", "'{}'->init suspiciously returned {}", "{0}: init returned {1}",
     "init must return 0 or a negative errno", "return an errno"},
    {"init_value", "{}: init suspiciously returned {}", "{0}: init returned {1}",
     "init must return 0 or a negative errno", "return an errno"},
    {"probe_failed", "probe with driver {} failed with error {}", "the probe of {0} failed with error {1}",
     "the module is in; the device was refused by the driver", "the driver's own lines before it say why",
     C::medium},
    {"probe_failed", "{}: probe of {} failed with error {}", "the probe of {1} failed with error {2}",
     "the module is in; the device was refused by the driver", "the driver's own lines before it say why",
     C::medium},
    {"retpoline", "loading module not compiled with retpoline compiler", "the module has no retpolines",
     "an old compiler, or flags of its own", "build with the kernel's own flags", C::low, true},
};

// What insmod and modprobe print when the kernel's own lines are not in the text.
struct Errno {
  std::string_view text, name, cause, cure;
};
constexpr Errno errnos[] = {
    {"Invalid module format", "module_format",
     "the module was built for another kernel, compiler or configuration; the kernel's log has the reason",
     "look into dmesg; compare modinfo -F vermagic with uname -r"},
    {"Exec format error", "module_format",
     "the module was built for another kernel or machine; the kernel's log has the reason",
     "look into dmesg; compare modinfo -F vermagic with uname -r"},
    {"unknown symbol in module", "module_symbols",
     "a symbol is missing or has another version, and the kernel's log names it; where it names none, the "
     "module's init returned -ENOENT (a firmware that is not there, say)",
     "look into dmesg; load what the module depends on first (modprobe does)"},
    {"File exists", "already_loaded", "a module of that name is loaded", "rmmod it first"},
    {"Operation not permitted", "not_permitted", "no CAP_SYS_MODULE, kernel.modules_disabled=1, or lockdown",
     "be root; look into dmesg for Lockdown"},
    {"No such device", "no_device", "the module's init found no device and gave up",
     "see whether the device is there (lspci) and has another driver"},
    {"Device or resource busy", "busy", "a device number, an address range or a name is taken",
     "unload what holds it; see /proc/devices and /proc/iomem"},
    {"Cannot allocate memory", "no_memory", "the kernel had no memory for the module", "look into dmesg"},
    {"Invalid argument", "bad_argument", "a parameter was refused, or init returned -EINVAL",
     "look into dmesg; modinfo -p lists parameters"},
    {"Invalid parameters", "bad_argument", "a parameter was refused, or init returned -EINVAL",
     "look into dmesg; modinfo -p lists parameters"},
    {"Bad message", "elf", "the kernel could not read the file's structure", "copy the file again"},
    {"No such file or directory", "not_found",
     "there is no such file, or a symbol it needs is not there (err -2)",
     "look at the path; look into dmesg"},
};

constexpr TextRule insmod_lines[] = {
    {"insmod", "could not insert module {}: {}", "{0} was not loaded: {1}", "", "", C::medium},
    {"insmod", "could not insert '{}': {}", "{0} was not loaded: {1}", "", "", C::medium},
    {"insmod", "can't insert '{}': {}", "{0} was not loaded: {1}", "", "", C::medium},
};

std::vector<std::string_view> words_of(std::string_view text) {
  auto all = split(text, ' ');
  std::erase_if(all, [](auto w) { return w.empty(); });
  return all;
}

// "release differs (6.1.0 against 7.3.4)", "preempt is not in this kernel".
std::string compare_magic(std::string_view module, std::string_view kernel) {
  auto a = words_of(module), b = words_of(kernel);
  if (a.empty() || b.empty()) return "one of them is empty";
  std::string out;
  auto add = [&](std::string text) { out += (out.empty() ? "" : "; ") + text; };
  if (a[0] != b[0]) add(fmt::format("built for {}, this kernel is {}", a[0], b[0]));
  for (auto w : std::span(a).subspan(1))
    if (std::ranges::find(b, w) == b.end()) add(fmt::format("the module has {}, this kernel does not", w));
  for (auto w : std::span(b).subspan(1))
    if (std::ranges::find(a, w) == a.end()) add(fmt::format("this kernel has {}, the module does not", w));
  return out.empty() ? "they differ in blanks only" : out;
}

void fill_unknown_symbol(Finding& f, const TextHit& hit, unsigned release) {
  f.symbol = hit.parts[1];
  Match m = find_change({f.symbol}, f.symbol, "", release);
  if (m.change != nullptr) {
    Finding row = finding_of(m, f.symbol, release);
    row.what = f.what;
    row.evidence = f.evidence;
    row.count = f.count;
    f = std::move(row);
    return;
  }
  if (hit.parts[2].starts_with("-22")) {
    f.cause =
        "it is there, but this module may not have it: another version (CRC), a namespace not imported, or "
        "GPL-only";
    f.cure = "the line before it in the kernel's log says which; " + std::string(rebuild);
  } else {
    f.cause =
        "this kernel does not export it, the module that does is not loaded, or it is GPL-only and the "
        "module is not";
    f.cure =
        "modprobe loads what a module depends on, insmod does not; otherwise look for the symbol in "
        "/proc/kallsyms and "
        "Module.symvers of this kernel";
    f.confidence = Confidence::medium;
  }
}

// Whatever the case: busybox writes some of them small.
bool holds(std::string_view text, std::string_view part) {
  auto same = [](char a, char b) {
    return tolower(static_cast<unsigned char>(a)) == tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

void explain_insmod(std::string_view log, std::vector<Finding>& findings, std::vector<size_t>& positions) {
  for (const TextHit& hit : find_rules(log, insmod_lines)) {
    Finding f = finding_of(hit);
    f.name = "not_known";
    f.symbol = hit.parts[0];
    f.cause = "nothing in the tables here explains this";
    f.cure = "look into dmesg";
    f.confidence = Confidence::low;
    for (const Errno& e : errnos) {
      if (!holds(hit.parts[1], e.text)) continue;
      f.name = e.name;
      f.cause = e.cause;
      f.cure = e.cure;
      f.confidence = Confidence::medium;
      break;
    }
    findings.push_back(std::move(f));
    positions.push_back(hit.at);
  }
}

// A symbol that is refused for a reason given before is reported as unknown too; a proprietary module sees no
// GPL-only ones.
void drop_repeats(std::vector<Finding>& findings, std::vector<size_t>& positions) {
  auto named = [&](std::string_view name, std::string_view symbol) {
    return std::ranges::any_of(
        findings, [&](const Finding& f) { return f.name == name && (symbol.empty() || f.symbol == symbol); });
  };
  for (size_t i = findings.size(); i-- > 0;) {
    Finding& f = findings[i];
    if (f.name != "unknown_symbol") continue;
    if (named("symbol_version", f.symbol) || named("namespace_missing", f.symbol) ||
        named("no_symbol_version", f.symbol)) {
      findings.erase(findings.begin() + static_cast<std::ptrdiff_t>(i));
      positions.erase(positions.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (named("taint_licence", "")) {
      f.cause += "; the module's licence is not the GPL, so GPL-only symbols do not exist for it";
    }
  }
}

}  // namespace

std::vector<Finding> explain_load(std::string_view log, std::string_view kernel_release,
                                  std::string_view vermagic) {
  std::string found = kernel_release.empty() ? release_in(log) : std::string(kernel_release);
  unsigned release = series_of(found);
  std::vector<Finding> findings;
  std::vector<size_t> positions;
  for (const TextHit& hit : find_rules(log, load_rules)) {
    if (hit.line.find("modpost: ") != std::string::npos) continue;  // the build's
    Finding f = finding_of(hit);
    if (f.name == "version_magic") {
      f.cause += ": " + compare_magic(hit.parts[1], hit.parts[2]);
    } else if (f.name == "unknown_symbol") {
      fill_unknown_symbol(f, hit, release);
    }
    findings.push_back(std::move(f));
    positions.push_back(hit.at);
  }
  drop_repeats(findings, positions);
  if (std::ranges::all_of(findings, &Finding::harmless)) explain_insmod(log, findings, positions);
  std::string_view built_for = vermagic.substr(0, vermagic.find(' '));
  bool told = std::ranges::any_of(findings, [](const Finding& f) { return f.name == "version_magic"; });
  if (!built_for.empty() && !kernel_release.empty() && built_for != kernel_release && !told) {
    Finding f;
    f.name = "version_magic";
    f.what = fmt::format("the module is built for {}, the kernel is {}", built_for, kernel_release);
    f.cause = "the loader refuses a module of another release or configuration";
    f.cure = rebuild;
    f.confidence = Confidence::high;
    f.evidence = fmt::format("vermagic: {}", cut_to(vermagic, 300));
    findings.insert(findings.begin(), std::move(f));
    positions.insert(positions.begin(), 0);
  }
  return sorted_findings(log, std::move(findings), positions);
}

}  // namespace kz::changes
