// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>

namespace kz {

// A whole number of 64 bits, in decimal: the option parser itself takes the nearest one instead.
inline CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        uint64_t value = 0;
        auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc{} && end == text.data() + text.size()) return {};
        return "'" + text + "' is no whole number from 0 to 18446744073709551615";
      },
      "", "whole number");
}

}  // namespace kz
