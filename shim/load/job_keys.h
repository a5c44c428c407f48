// SPDX-License-Identifier: GPL-2.0-or-later
// The keys of a job: how each is read, and what must hold between them.
#pragma once

#include <string>
#include <string_view>

#include "shim/load/job.h"

namespace kz::load {

// Throws Error(usage) for an unknown key (naming the nearest) and for a value that is none.
void set_key(Job& job, const std::string& key, std::string_view value);
// Throws Error(usage) where the job's keys do not fit together.
void check_job(const Job& job);

}  // namespace kz::load
