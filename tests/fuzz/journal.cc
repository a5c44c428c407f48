// SPDX-License-Identifier: GPL-2.0-or-later
// A journal of any bytes, read, summarised and printed in every format.
#include "tools/report/formats.h"
#include "tools/report/terminal.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kz::Journal journal = kz::parse_journal({reinterpret_cast<const char*>(data), size});
  kz::RunSummary run = kz::summarize(journal);
  (void)kz::exit_code(run);
  (void)kz::to_json(run).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  (void)kz::to_junit(run);
  (void)kz::to_ktap(run);
  (void)kz::to_terminal(run, {});
  return 0;
}
