// SPDX-License-Identifier: GPL-2.0-or-later
// How the driver ended a command, from what an io_uring completion or a kz_done says.
#pragma once

#include <cstdint>

#include "shim/command.h"

namespace kz::dev {

struct Outcome {
  enum class Kind {
    completed,  // by the device, or by the driver in its place: status is what the device says
    lost,       // the queue was reset, the driver's time limit passed, or the device is gone
    again,      // not taken: the queue is in a reset, or memory was short for a moment
    refused,    // the driver does not take such a command: `error` says why
  } kind;
  Status status = Status::ok;
  int error = 0;
};

// `res`: a status of kz_cmd.h or KZ_ST_LOST, KZ_ST_EXPIRED; or -errno.
Outcome outcome_of(int32_t res);

// A command in flight has this tag: its slot and its ticket, so that an answer to an earlier user of the slot
// shows.
constexpr unsigned slot_bits = 16;
constexpr uint64_t tag_of(Ticket ticket, uint32_t slot) { return ticket << slot_bits | slot; }
constexpr uint32_t slot_of(uint64_t tag) { return tag & ((1u << slot_bits) - 1); }
constexpr Ticket ticket_of(uint64_t tag) { return tag >> slot_bits; }

// One answer of the driver.
struct Ended {
  uint64_t tag = 0;
  int32_t res = 0;
  uint64_t result = 0;
};

}  // namespace kz::dev
