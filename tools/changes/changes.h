// SPDX-License-Identifier: GPL-2.0-or-later
// Why a module does not build or load: what a log says, and which change of the kernel explains it.
//
// Pure functions of text. They know the table (docs/kernel-changes.md) and the messages of gcc, clang, make,
// modpost, the module loader and insmod. Any bytes are allowed; time grows with the length of the text,
// memory does not.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kz::changes {

// What a message must hold, as whole words; the first is what the compiler names.
using Words = std::vector<std::string>;

// A row of the table: an interface that changed.
struct Change {
  std::string symbol;         // "class_create", "platform_driver.remove", "linux/pfn_t.h"
  std::string kind;           // one of kinds()
  std::string since;          // "6.4": first mainline release that refuses the old form
  std::string not_before;     // where that release is not known exactly: the first it could be
  std::string old_since;      // first release with the old form, where that matters
  std::string new_since;      // first release that takes the new form
  std::string backport;       // older series in which a distribution has the new form too
  std::string before, after;  // what a driver wrote, what it writes now
  std::string cure;           // what compiles on both sides, and what to test the headers for
  std::string source;   // subject of the commit, a page of the documentation, or the header that shows it
  std::string include;  // headers of both codes
  std::string old_code, new_code;  // the smallest source of either form; new_code is the header test
  std::string verified;     // "both": compiled on kernels of either side; "after": on the newer side; "": not
  bool unexported = false;  // modpost and the loader refuse it, the compiler does not
  std::vector<Words> words, new_words;  // messages about the old form, about the new form on an older kernel
};
// Parsed once. Throws std::logic_error where a row is not well formed.
std::span<const Change> table();
std::span<const std::string_view> kinds();

enum class Confidence : uint8_t { low, medium, high };
std::string_view to_string(Confidence c);

struct Finding {
  std::string name;                // symbol of a row, name of a rule ("version_magic"), or "not_known"
  std::string symbol;              // what the message is about, "" where it names nothing
  std::string what;                // what failed, one sentence
  std::string cause;               // why
  std::string cure;                // what to do
  const Change* change = nullptr;  // the row, in table(); null for a rule
  Confidence confidence = Confidence::low;
  std::string file;  // source file, "" where the message names none
  unsigned file_line = 0;
  std::string evidence;   // first line of the log that shows it, at most 400 characters
  size_t log_line = 0;    // its number, from 1
  size_t count = 1;       // how many lines say the same
  bool harmless = false;  // a remark that explains nothing by itself
};

// Findings in the order of the log, those not known last. `kernel_release` is uname -r of the target; where
// it is empty the log is asked. Lines of the module's Kbuild that hold EXTRA_*FLAGS may stand below the log.
// Empty only where no line of the log is one of a failure.
std::vector<Finding> explain_build(std::string_view log, std::string_view kernel_release = {});

// The same for the kernel's log and what insmod or modprobe printed. `vermagic` is what modinfo says of the
// module.
std::vector<Finding> explain_load(std::string_view log, std::string_view kernel_release = {},
                                  std::string_view vermagic = {});

nlohmann::json to_json(const Finding& finding);
nlohmann::json to_json(const Change& change);
std::string to_text(const Finding& finding);  // some lines for a terminal

}  // namespace kz::changes
