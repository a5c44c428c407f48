// SPDX-License-Identifier: GPL-2.0-or-later
// Physical HBM through the driver's mapping of BAR4. CAP_SYS_ADMIN.
#pragma once

#include <memory>

#include "shim/base/fd.h"
#include "shim/dev/core.h"

namespace kz::dev {

class DevAperture final : public Aperture {
 public:
  // Maps as much of HBM as the BAR shows. Throws Error(permission), Error(unsupported), Error(gone).
  explicit DevAperture(std::shared_ptr<Core> core);
  uint64_t size() const override { return map_.size(); }
  const std::vector<Piece>& mapped() const override { return pieces_; }
  // Also through the mapping: the driver offers no other way. Throws Error(usage) beyond the end, Error(gone)
  // after a reset, which ends the mapping.
  void read(uint64_t offset, std::span<std::byte> out) override;
  void write(uint64_t offset, std::span<const std::byte> in) override;
  bool dead() const { return epoch_ != core_->epoch(); }

 private:
  void check(uint64_t offset, uint64_t len) const;

  std::shared_ptr<Core> core_;
  uint64_t epoch_;
  Mapping map_;
  std::vector<Piece> pieces_;
};

}  // namespace kz::dev
