// SPDX-License-Identifier: GPL-2.0-or-later
// main() of every test program: `--kz-list`, or GoogleTest with a listener that turns results into records.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <iostream>

#include "tests/harness/registry.h"
#include "tests/harness/session.h"

namespace {

class RecordListener : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& info) override {
    kz::test::Session::get().begin(kz::test::test_id(info.test_suite_name(), info.name()));
  }
  void OnTestPartResult(const ::testing::TestPartResult& part) override {
    if (!part.failed()) return;
    std::string_view text = part.message();
    if (text.starts_with("Failed\n")) text.remove_prefix(7);  // GoogleTest's own word before what was said
    kz::test::Session::get().add_failure(
        {part.file_name() ? part.file_name() : "", part.line_number(), std::string(text)});
  }
  void OnTestEnd(const ::testing::TestInfo&) override { kz::test::Session::get().end(); }
};

std::string program_name(const char* argv0) {
  std::error_code ec;
  auto self = std::filesystem::read_symlink("/proc/self/exe", ec);
  return (ec ? std::filesystem::path(argv0) : self).filename().string();
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--kz-list") != 0) continue;
    std::cout << kz::test::list_declarations(program_name(argv[0])).dump(1) << "\n";
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) {
    std::cerr << argv[0] << ": unknown argument '" << argv[1] << "' (--kz-list, --gtest_filter=SUITE.TEST)\n";
    return 2;
  }
  ::testing::UnitTest::GetInstance()->listeners().Append(new RecordListener);  // gtest owns and deletes it
  const int failed = RUN_ALL_TESTS();
  auto& session = kz::test::Session::get();
  // A runner reads the verdict from the records; a person at a terminal wants it in the exit status.
  return session.standalone() ? (session.exit_code() ? session.exit_code() : failed) : 0;
}
