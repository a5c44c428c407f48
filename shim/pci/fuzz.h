// SPDX-License-Identifier: GPL-2.0-or-later
// Entry points for fuzzers and property tests of the two readers of foreign bytes in this folder.
//
// Each takes any input, returns when all invariants held and throws std::logic_error naming the one that did
// not. Nothing else is thrown, nothing is opened and nothing printed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kz {

// `input` is configuration space (at most 4096 bytes are used; size() is its length). Invariants: the walk
// ends after at most 48 standard and 960 extended capabilities, every one lies inside the space, aligned and
// once; nothing outside size() is read; every rule check returns.
void fuzz_config_walk(std::span<const uint8_t> input);

// `input` is the text of a dump. Invariants: functions or Error(bad_data) that names file and line; a
// function that is printed again as lspci does reads back the same. Its bytes go through fuzz_config_walk.
void fuzz_dump_parser(std::span<const uint8_t> input);

}  // namespace kz
