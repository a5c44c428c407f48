// SPDX-License-Identifier: GPL-2.0-or-later
// One end of a transfer: host memory, a scatter-gather list of it, or HBM.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tools/softtpu/exec_core.h"

namespace kz::softtpu {

class End {
 public:
  virtual ~End() = default;
  // Bytes [offset, offset + size) of the end. KZ_ST_OK, KZ_ST_DMA_FAULT or KZ_ST_POISON.
  virtual uint16_t read(uint64_t offset, std::span<std::byte> out) = 0;
  virtual uint16_t write(uint64_t offset, std::span<const std::byte> in) = 0;
  // The bytes themselves, or null; `done` after use where it was not null.
  virtual std::byte* direct(uint64_t offset, uint64_t len, bool for_write) = 0;
  virtual void done() {}
  // A write where the command never pointed (faults D04, D11): outside the end too, as far as there is
  // memory.
  virtual void stray_write(int64_t offset, std::span<const std::byte> in) = 0;
  // Gives up the hold on memory: what is done from now on is done by a broken engine (faults D03, D07).
  virtual void detach() {}
  // Pieces of a scatter-gather list; else null.
  virtual std::vector<kz_sge>* pieces() { return nullptr; }
  // Bytes crossed the bus.
  virtual bool on_bus() const { return true; }
};

// One end as a COPY, FILL or CRC32C names it. Null where it is refused, with the reason in `status`.
std::unique_ptr<End> make_end(Core& core, const Requester& who, uint8_t space, uint64_t addr, uint64_t len,
                              uint16_t sges, bool for_write, uint16_t& status);

// Moves `len` bytes in chunks, through shared memory where both ends have it. Overlapping ranges of HBM come
// out as if the source had been read before the first write.
uint16_t move_bytes(Core& core, End& src, End& dst, uint64_t len, bool from_top, const Requester& who);
// The same by an engine with a planted fault; nullopt when none strikes.
std::optional<Outcome> move_bytes_faulty(Core& core, const kz_copy& copy, std::shared_ptr<End> src,
                                         std::shared_ptr<End> dst, const Requester& who);

}  // namespace kz::softtpu
