// SPDX-License-Identifier: GPL-2.0-or-later
// The code of the error that a call throws; a call that throws none fails the test.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "shim/base/error.h"

namespace kz {

template <class Call>
Errc code_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& e) {
    EXPECT_STRNE(e.what(), "");
    return e.code();
  }
  ADD_FAILURE() << "no error was thrown";
  return Errc::status;
}

}  // namespace kz
