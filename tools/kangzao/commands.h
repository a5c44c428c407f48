// SPDX-License-Identifier: GPL-2.0-or-later
// One function a command: registers it and its options; when it was chosen, its exit status is left in
// `exit_status`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kz {

void add_ls(CLI::App& app, int& exit_status);
void add_list(CLI::App& app, int& exit_status);
void add_run(CLI::App& app, int& exit_status);
void add_resume(CLI::App& app, int& exit_status);
void add_report(CLI::App& app, int& exit_status);
void add_compare(CLI::App& app, int& exit_status);
void add_gauntlet(CLI::App& app, int& exit_status);
void add_load(CLI::App& app, int& exit_status);
void add_lab(CLI::App& app, int& exit_status);
void add_changes(CLI::App& app, int& exit_status);
void add_pci(CLI::App& app, int& exit_status);
void add_internal(CLI::App& app, int& exit_status);

// A run of the lab, to go on with in a lab.
bool is_lab_run(const std::string& directory);
int resume_lab(const std::string& directory, bool json);

// Writes to standard output, or to `file` (empty: none), which must not exist yet. Throws JournalError.
void write_output(const std::string& text, const std::string& file);

}  // namespace kz
