// SPDX-License-Identifier: GPL-2.0-or-later
// Logs of real builds and loads (tests/data/changes, made by tests/lab/changes.py), and what is no log at
// all.
#include "tools/changes/changes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "shim/base/sanitized.h"
#include "tools/changes/diagnostic.h"
#include "tools/changes/table.h"
#include "tools/changes/text_rule.h"
#include "tools/changes/words.h"

namespace kz::changes {
namespace {

const std::filesystem::path changes_data = std::filesystem::path(KZ_SOURCE_DIR) / "tests/data/changes";

std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_TRUE(in) << file;
  return text.str();
}

std::vector<std::string> names_of(const std::vector<Finding>& findings) {
  std::vector<std::string> out;
  for (const Finding& f : findings)
    if (!f.harmless) out.push_back(f.name);
  return out;
}

using Names = std::vector<std::string>;

TEST(ChangesTable, IsWellFormedAndLarge) {
  std::set<std::string> symbols;
  size_t both = 0;
  for (const Change& c : table()) {
    EXPECT_TRUE(symbols.insert(c.symbol).second) << c.symbol << " twice";
    EXPECT_GE(series_of("7.3"), series_of(c.since)) << c.symbol;
    EXPECT_FALSE(c.verified == "both" && (c.old_code.empty() || c.new_code.empty())) << c.symbol;
    both += c.verified == "both" ? 1 : 0;
  }
  EXPECT_GE(symbols.size(), 140u);
  EXPECT_GE(both, 80u) << "compiled on both sides";
}

TEST(ChangesTable, RefusesWhatIsNoRow) {
  EXPECT_THROW(parse_table("symbol: x\n"), std::logic_error);
  EXPECT_THROW(parse_table("nonsense\n"), std::logic_error);
  EXPECT_THROW(parse_table("  goes on with nothing\n"), std::logic_error);
  EXPECT_THROW(parse_table("symbol: x\nkind: odd\nsince: 6.1\nbefore: a\nafter: b\ncure: c\nsource: d\n"),
               std::logic_error);
  EXPECT_THROW(parse_table("symbol: x\nkind: gone\nsince: soon\nbefore: a\nafter: b\ncure: c\nsource: d\n"),
               std::logic_error);
  EXPECT_THROW(parse_table("symbol: x\nwhat: y\n"), std::logic_error);
  auto rows = parse_table(
      "symbol: s.m\nkind: member\nsince: 6.1\nbefore: a\nafter: b\ncure: c\nsource: d\nold: one\n two\n");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].old_code, "one\ntwo");
  EXPECT_EQ(rows[0].words, std::vector<Words>({{"m", "s"}}));
}

TEST(ChangesTable, ReleasesAreCompared) {
  EXPECT_EQ(series_of("6.12.117+deb13-amd64"), 6012u);
  EXPECT_LT(series_of("6.9"), series_of("6.12"));
  EXPECT_LT(series_of("6.19.3"), series_of("7.0.0-rc1"));
  for (std::string_view bad : {"", "6", "six.one", "6.", ".1", "99999999999999.1"})
    EXPECT_EQ(series_of(bad), 0u) << bad;
}

// "### name expected" and the log of one small source each.
class RefusedRows : public testing::TestWithParam<const char*> {};

TEST_P(RefusedRows, EachIsExplained) {
  std::string release = GetParam(), text = slurp(changes_data / fmt::format("rows-{}.log", release));
  size_t sections = 0;
  for (size_t at = text.find("### "); at != std::string::npos;) {
    size_t next = text.find("\n### ", at);
    std::string section = text.substr(at + 4, next - at - 4);
    size_t line = section.find('\n');
    std::string head = section.substr(0, line), expected = head.substr(head.rfind(' ') + 1);
    auto found = explain_build(section.substr(line + 1), release + ".0-amd64");
    ASSERT_FALSE(found.empty()) << release << " " << head;
    EXPECT_EQ(found[0].name, expected) << release << " " << head << ": " << found[0].what;
    EXPECT_NE(found[0].change, nullptr) << head;
    EXPECT_FALSE(found[0].cure.empty()) << head;
    EXPECT_FALSE(found[0].evidence.empty()) << head;
    ++sections;
    at = next == std::string::npos ? next : next + 1;
  }
  EXPECT_GE(sections, 90u);
}
INSTANTIATE_TEST_SUITE_P(Kernels, RefusedRows, testing::Values("6.1", "6.12", "7.2", "7.3"));

struct Captured {
  const char* file;
  const char* kernel;
  Names names;
};

TEST(ChangesBuild, CapturedLogs) {
  const Captured cases[] = {
      {"build-undefined-6.1.log", "6.1.0", {"kallsyms_lookup_name"}},
      {"build-undefined-7.3.log", "7.3.4", {"kallsyms_lookup_name"}},
      {"build-gplonly-6.1.log", "6.1.0", {"gpl_only"}},
      {"build-gplonly-7.3.log", "7.3.4", {"gpl_only"}},
      {"build-nolicence-6.1.log", "6.1.0", {"licence_missing"}},
      {"build-nolicence-7.3.log", "7.3.4", {"licence_missing"}},
      {"build-noimport-6.1.log", "6.1.0", {"namespace_missing"}},
      {"build-noimport-7.3.log", "7.3.4", {"namespace_missing"}},
      {"build-quoted-6.1.log", "6.1.0", {"namespace_missing"}},
      {"build-missingsrc-6.1.log", "6.1.0", {"source_missing"}},
      {"build-missingsrc-7.3.log", "7.3.4", {"source_missing"}},
      {"build-extra-cflags-7.3.log", "7.3.4", {"EXTRA_CFLAGS"}},
      {"build-noheaders.log", "", {"headers_missing"}},
      {"build-nomakefile.log", "", {"no_kernel_makefile"}},
      {"build-noproc-7.3.log", "7.3.4", {"objtool_proc"}},
      {"build-compiler-7.3.log", "7.3.4", {"tool_missing"}},
      {"build-good-6.1.log", "6.1.0", {}},
      {"build-good-7.3.log", "7.3.4", {}},
  };
  for (const Captured& c : cases) {
    // What the lab puts below a log: lines of the module's Kbuild that newer kernels ignore.
    bool flags = c.names == Names{"EXTRA_CFLAGS"};
    auto found = explain_build(slurp(changes_data / c.file) + (flags ? "Kbuild: EXTRA_CFLAGS := -Iinc\n" : ""), c.kernel);
    EXPECT_EQ(names_of(found), c.names) << c.file;
    EXPECT_TRUE(explain_load(slurp(changes_data / c.file), c.kernel).empty()) << c.file;
  }
}

TEST(ChangesBuild, ClangSaysItInOtherWords) {
  const Captured cases[] = {{"clang-class_create-6.12.log", "6.12.117", {"class_create"}},
                            {"clang-eventfd_signal-6.12.log", "6.12.117", {"eventfd_signal"}},
                            {"clang-no_llseek-6.12.log", "6.12.117", {"no_llseek"}},
                            {"clang-del_timer_sync-7.3.log", "7.3.4", {"del_timer_sync"}},
                            {"clang-io_uring_cmd_done-7.3.log", "7.3.4", {"io_uring_cmd_done"}},
                            {"clang-MODULE_IMPORT_NS-7.3.log", "7.3.4", {"MODULE_IMPORT_NS"}}};
  for (const Captured& c : cases)
    EXPECT_EQ(names_of(explain_build(slurp(changes_data / c.file), c.kernel)).front(), c.names[0]) << c.file;
}

TEST(ChangesBuild, TheSixSources) {
  for (const char* name : {"class_create", "eventfd_signal", "no_llseek", "del_timer_sync",
                           "MODULE_IMPORT_NS", "io_uring_cmd_done"}) {
    std::string text = slurp(changes_data / fmt::format("source-{}-7.3.log", name));
    auto found = explain_build(text);  // the release is in the log
    ASSERT_EQ(names_of(found), Names{name});
    EXPECT_EQ(found[0].confidence, Confidence::high) << name;
    EXPECT_NE(found[0].file.find(".c"), std::string::npos) << name;
    EXPECT_GT(found[0].file_line, 0u) << name;
    EXPECT_NE(found[0].evidence.find("error:"), std::string::npos) << name;
  }
}

TEST(ChangesBuild, KnowsWhichSideTheSourceIsOn) {
  constexpr std::string_view few = "d.c:3:9: error: too few arguments to function 'eventfd_signal'\n";
  EXPECT_NE(explain_build(few, "6.1.0")[0].cause.find("for Linux 6.8 or newer"), std::string::npos);
  EXPECT_NE(explain_build(few, "6.12.1")[0].cause.find("changed in Linux 6.8"), std::string::npos);
  constexpr std::string_view gone = "d.c:3:9: error: implicit declaration of function 'strlcpy'\n";
  EXPECT_EQ(explain_build(gone, "6.12.1")[0].confidence, Confidence::high);
  auto early = explain_build(gone, "6.6.1");  // a distributor's kernel
  EXPECT_EQ(early[0].confidence, Confidence::medium);
  EXPECT_NE(early[0].cause.find("distributor took the change over, or it came between 6.2 and 6.8"), std::string::npos)
      << early[0].cause;
  early = explain_build(gone, "6.1.90");  // compiled here with the old form
  EXPECT_TRUE(early[0].cause.ends_with("its distributor took the change over")) << early[0].cause;
}

TEST(ChangesBuild, MissingHeaderIsOfLostFlagsOnlyWhereThereAreSome) {
  const std::string missing = "kz.c:2:10: fatal error: kz_hw.h: No such file or directory\n";
  EXPECT_NE(names_of(explain_build(missing, "7.3.4")), Names{"EXTRA_CFLAGS"});
  EXPECT_EQ(names_of(explain_build(missing + "Kbuild: EXTRA_CFLAGS += -I$(src)/inc\n", "7.3.4")), Names{"EXTRA_CFLAGS"});
  EXPECT_NE(names_of(explain_build(missing + "Kbuild: EXTRA_CFLAGS += -I$(src)/inc\n", "6.12.1")), Names{"EXTRA_CFLAGS"});
}

TEST(ChangesBuild, WhatIsNotKnownIsNotSilent) {
  auto found = explain_build(
      "d.c:7:1: error: 'kz_own_thing' undeclared (first use in this function)\nmake: *** [x] Error 2\n",
      "7.3.4");
  ASSERT_EQ(names_of(found), Names{"not_known"});
  EXPECT_EQ(found[0].symbol, "kz_own_thing");
  EXPECT_EQ(found[0].log_line, 1u);
  found = explain_build("make[1]: *** [Makefile:260: all] Error 2\n");
  ASSERT_EQ(names_of(found), Names{"not_known"});
  // A line of code that holds a known name is no reason to accuse it.
  found = explain_build(
      "d.c:7:1: error: expected ';' before 'return'\n    7 |   c = class_create(THIS_MODULE, n)\n", "7.3.4");
  EXPECT_EQ(names_of(found), Names{"not_known"});
  found = explain_build("d.c:7:1: error: 'foo' undeclared\n    7 |   c = class_create(foo, n);\n", "7.3.4");
  EXPECT_EQ(names_of(found), Names{"not_known"});
}

TEST(ChangesBuild, ReadsColoursAndTypographicQuotes) {
  auto found = explain_build(
      "\x1b[01m\x1b[Kd.c:3:9:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kimplicit declaration of "
      "function "
      "\xe2\x80\x98\x1b[01m\x1b[Kstrlcpy\x1b[m\x1b[K\xe2\x80\x99\r\n",
      "6.12.1");
  EXPECT_EQ(names_of(found), Names{"strlcpy"});
}

TEST(ChangesBuild, CountsRepeatsAndKeepsTheFirstPlace) {
  std::string text;
  for (int i = 1; i <= 50; ++i)
    text += fmt::format("d{}.c:{}:1: error: implicit declaration of function 'strlcpy'\n", i, i);
  auto found = explain_build(text, "6.12.1");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].count, 50u);
  EXPECT_EQ(found[0].file, "d1.c");
}

TEST(ChangesLoad, CapturedLogs) {
  const Captured cases[] = {
      {"load-mixed-6.1.log",
       "6.1.0-50-amd64",
       {"symbol_version", "namespace_missing", "kallsyms_lookup_name", "unknown_symbol", "elf", "elf",
        "bad_parameter", "init_value"}},
      {"load-mixed-7.3.log",
       "7.3.4+deb13-amd64",
       {"module_struct", "namespace_missing", "kallsyms_lookup_name", "unknown_symbol", "elf", "elf",
        "bad_parameter", "init_value"}},
      {"load-vermagic-7.3.log", "7.3.4+deb13-amd64", {"version_magic"}},
      {"load-6.1-on-newest.log", "7.3.4+deb13-amd64", {"module_struct"}},
  };
  for (const Captured& c : cases) {
    auto found = explain_load(slurp(changes_data / c.file), c.kernel);
    EXPECT_EQ(names_of(found), c.names) << c.file;
    EXPECT_TRUE(explain_build(slurp(changes_data / c.file), c.kernel).empty()) << c.file;
  }
}

// Messages of kernel/module and kmod that no guest here was made to print.
TEST(ChangesLoad, OtherMessages) {
  const std::pair<const char*, const char*> cases[] = {
      {"[1.0] kz: version magic '6.1.0 SMP mod_unload ' should be '6.12.0 SMP preempt mod_unload '",
       "version_magic"},
      {"kz: no symbol version for module_layout", "no_symbol_version"},
      {"kz: exports duplicate symbol kz_run (owned by kz_old)", "duplicate_symbol"},
      {"Loading of unsigned module is rejected", "unsigned"},
      {"Lockdown: insmod: unsigned module loading is restricted; see man kernel_lockdown.7", "unsigned"},
      {"modprobe: ERROR: could not insert 'kz': Key was rejected by service", "unsigned"},
      {"modprobe: ERROR: could not insert 'kz': Required key not available", "unsigned"},
      {"failed to validate module [kz] BTF: -22", "btf"},
      {"module: overflow in relocation type 10 val ffffffffc0000000", "relocation"},
      {"module: x86/modules: Skipping invalid relocation target, existing value is nonzero for type 1",
       "relocation"},
      {"modprobe: FATAL: Module kz not found in directory /lib/modules/7.3.4", "not_found"},
      {"insmod: ERROR: could not insert module kz.ko: Invalid module format", "module_format"},
      {"insmod: ERROR: could not insert module kz.ko: Unknown symbol in module", "module_symbols"},
      {"insmod: ERROR: could not insert module kz.ko: Operation not permitted", "not_permitted"},
      {"insmod: ERROR: could not insert module kz.ko: Wrong phase of the moon", "not_known"},
      {"kz 0000:01:00.0: probe with driver kz failed with error -12", "probe_failed"},
      {"kz: probe of 0000:01:00.0 failed with error -12", "probe_failed"},
      {"failing symbol_get of non-GPLONLY symbol kz_run.", "symbol_get"},
      {"sysfs: cannot create duplicate filename '/class/kz'", "duplicate_name"}};
  for (auto [line, name] : cases) {
    auto found = explain_load(std::string("[0.1] before\n") + line + "\n", "7.3.4");
    ASSERT_EQ(names_of(found), Names{name}) << line;
    EXPECT_EQ(found[0].log_line, 2u) << line;
    EXPECT_FALSE(found[0].cure.empty()) << line;
  }
}

TEST(ChangesLoad, VersionMagicIsCompared) {
  auto found =
      explain_load("kz: version magic '6.1.0 SMP mod_unload ' should be '6.12.0 SMP preempt mod_unload '\n");
  EXPECT_NE(found[0].cause.find("built for 6.1.0, this kernel is 6.12.0"), std::string::npos);
  EXPECT_NE(found[0].cause.find("this kernel has preempt"), std::string::npos);
  found = explain_load("insmod: can't insert 'kz.ko': invalid module format\n", "7.3.4",
                       "6.1.0-50-amd64 SMP preempt mod_unload modversions");
  EXPECT_EQ(names_of(found), (Names{"version_magic", "module_format"}));
  EXPECT_TRUE(explain_load("all is well\n", "6.1.0-50-amd64", "6.1.0-50-amd64 SMP").empty());
}

TEST(ChangesLoad, ASymbolThatWasRefusedForAReasonIsSaidOnce) {
  auto found = explain_load(
      "kz: disagrees about version of symbol a\nkz: Unknown symbol a (err -22)\nkz: Unknown symbol b (err "
      "-2)\n");
  EXPECT_EQ(names_of(found), (Names{"symbol_version", "unknown_symbol"}));
  EXPECT_EQ(found[1].symbol, "b");
}

TEST(Changes, QuietLogsGiveNothing) {
  for (std::string_view text : {"", "\n\n", "hello\n", "[    0.1] Linux version 6.1.0\n",
                                "warning: something\n", "no error: fine\n"}) {
    EXPECT_TRUE(explain_build(text).empty()) << text;
    EXPECT_TRUE(explain_load(text).empty()) << text;
  }
}

TEST(Changes, AnyBytes) {
  std::mt19937 rng(20);
  std::vector<std::string> pieces = {"error: ",
                                     ": fatal error: ",
                                     "'",
                                     "\xe2\x80\x98",
                                     "\x1b[",
                                     "make: *** ",
                                     " Error 2",
                                     "\n",
                                     ":",
                                     "7",
                                     "ERROR: modpost: \"",
                                     "\" [",
                                     "] undefined!",
                                     ": Unknown symbol ",
                                     " (err -2",
                                     "class_create",
                                     ": version magic '",
                                     "' should be '",
                                     "note: in expansion of macro '",
                                     std::string(1, '\0')};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 200; ++i)
      text += rng() % 3 ? pieces[rng() % pieces.size()] : std::string(rng() % 5, static_cast<char>(rng()));
    for (const auto& f : explain_build(text, round % 2 ? "7.3" : "")) (void)to_text(f);
    for (const auto& f : explain_load(text, round % 2 ? "7.3" : "", "6.1 SMP")) (void)to_text(f);
  }
}

// 100 MiB in seconds, whatever is in them, and findings that do not grow with them. A build with a sanitizer reads
// less: what it looks for does not hide in the length.
TEST(Changes, LongTexts) {
  auto limited = [](const char* what, const std::string& text) {
    auto start = std::chrono::steady_clock::now();
    auto found = explain_build(text, "7.3.4");
    auto more = explain_load(text, "7.3.4");
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds, 60) << what;
    EXPECT_LT(found.size() + more.size(), 5000u) << what;
    RecordProperty(what, fmt::format("{:.2f}", seconds));
  };
  constexpr size_t size = size_t{kSanitized ? 12 : 100} << 20;
  std::string text;
  text.reserve(size + 200);
  while (text.size() < size)
    text += "  CC [M]  drivers/kz/some_file_with_a_name.o\n[    1.234567] usb 1-1: new high-speed device\n";
  limited("plain", text);
  text.clear();
  for (size_t i = 0; text.size() < size; ++i)
    text += fmt::format("d{}.c:{}:1: error: 'kz_{}' undeclared\n  1 | x{};\n", i, i, i, i);
  limited("errors", text);
  text.clear();
  for (size_t i = 0; text.size() < size; ++i)
    text += fmt::format("[ 1.0] kz: Unknown symbol kz_{} (err -2)\n", i);
  limited("symbols", text);
  text.assign(size, ':');
  limited("one line", text);
  std::mt19937_64 rng(7);
  for (size_t i = 0; i + 8 <= text.size(); i += 8) {
    uint64_t v = rng();
    std::memcpy(text.data() + i, &v, 8);
  }
  limited("random", text);
}

TEST(ChangesPattern, TakesAsLittleAsItNeeds) {
  std::vector<std::string> parts;
  ASSERT_TRUE(match_pattern("[ 1.0] kz: version magic 'a b' should be 'c'",
                            "{}: version magic '{}' should be '{}'", parts));
  EXPECT_EQ(parts, (Names{"kz", "a b", "c"}));
  ASSERT_TRUE(match_pattern("x *** y", "*** {}", parts));
  EXPECT_EQ(parts, Names{"y"});
  EXPECT_FALSE(match_pattern("kz: version magic 'a", "{}: version magic '{}' should be '{}'", parts));
}

}  // namespace
}  // namespace kz::changes
