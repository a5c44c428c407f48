// SPDX-License-Identifier: GPL-2.0-or-later
// The capability walk: PCIe r6.0, section 7.5.1.1.11 (pointer), 7.6.1 (standard chain), 7.6.3 (extended
// chain).
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include <bitset>

#include "shim/config_space.h"

namespace kz {
namespace {

constexpr uint32_t kStandardEnd = 0x100;
constexpr uint32_t kExtendedStart = 0x100;
constexpr uint32_t kExtendedEnd = 0x1000;
constexpr uint32_t kAllOnes = 0xffffffff;

class Walker {
 public:
  explicit Walker(ConfigSpace& config) : config_(config), size_(config.size()) {}

  CapabilityWalk run() {
    if (size_ < PCI_STD_HEADER_SIZEOF || header_all_ones()) {
      walk_.complete = false;
      return std::move(walk_);
    }
    standard();
    if (size_ >= kExtendedStart + 4) {
      extended();
    } else if (has_pcie_ && size_ >= kStandardEnd) {
      walk_.complete = false;  // extended space exists, but the reader does not see it
    }
    return std::move(walk_);
  }

 private:
  // A lost device. A virtual function has all-ones ids too, but not an all-ones command and class register.
  bool header_all_ones() {
    return config_.read32(PCI_VENDOR_ID) == kAllOnes && config_.read32(PCI_COMMAND) == kAllOnes &&
           config_.read32(PCI_CLASS_REVISION) == kAllOnes;
  }

  void fault(ChainFault::Kind kind, bool ext, uint32_t at, uint32_t target, std::string text) {
    if (kind == ChainFault::Kind::truncated) walk_.complete = false;
    walk_.faults.push_back(
        {kind, ext, static_cast<uint16_t>(at), static_cast<uint16_t>(target), std::move(text)});
  }

  // True when the chain may be followed from the pointer at `at` to `target`. `need` bytes must be there.
  bool follow(bool ext, uint32_t at, uint32_t target, uint32_t low, uint32_t end, uint32_t need) {
    using K = ChainFault::Kind;
    const char* what = ext ? "extended capability" : "capability";
    if ((target & 3) != 0) {
      fault(K::misaligned, ext, at, target,
            fmt::format("{} pointer at {:#x} holds {:#x}, not a multiple of 4", what, at, target));
      return false;
    }
    if (target < low || target + need > end) {
      fault(K::out_of_range, ext, at, target,
            fmt::format("{} pointer at {:#x} holds {:#x}, outside {:#x}..{:#x}", what, at, target, low,
                        end - 1));
      return false;
    }
    if (seen_[target]) {
      fault(K::loop, ext, at, target,
            fmt::format("{} pointer at {:#x} leads back to {:#x}", what, at, target));
      return false;
    }
    if (target + need > size_) {
      fault(K::truncated, ext, at, target,
            fmt::format("{} at {:#x} is beyond the {} bytes that can be read", what, target, size_));
      return false;
    }
    seen_[target] = true;
    return true;
  }

  void standard() {
    if ((config_.read16(PCI_STATUS) & PCI_STATUS_CAP_LIST) == 0) return;
    // CardBus bridges keep the pointer elsewhere (PC Card Standard; linux/pci_regs.h).
    bool cardbus = (config_.read8(PCI_HEADER_TYPE) & 0x7f) == PCI_HEADER_TYPE_CARDBUS;
    uint32_t at = cardbus ? PCI_CB_CAPABILITY_LIST : PCI_CAPABILITY_LIST;
    for (uint32_t next = config_.read8(at); next != 0; next = config_.read8(at)) {
      if (!follow(false, at, next, PCI_STD_HEADER_SIZEOF, kStandardEnd, 2)) return;
      uint8_t id = config_.read8(next);
      if (id == 0xff) {
        return fault(ChainFault::Kind::all_ones, false, at, next,
                     fmt::format("capability at {:#x} reads as all ones", next));
      }
      has_pcie_ = has_pcie_ || id == PCI_CAP_ID_EXP;
      walk_.found.push_back({id, static_cast<uint16_t>(next), 0, false});
      at = next + PCI_CAP_LIST_NEXT;
    }
  }

  void extended() {
    uint32_t at = kExtendedStart;
    uint32_t header = config_.read32(at);
    if (header == 0 || header == kAllOnes) return;
    seen_[at] = true;
    while (true) {
      walk_.found.push_back({static_cast<uint16_t>(header & 0xffff), static_cast<uint16_t>(at),
                             static_cast<uint8_t>((header >> 16) & 0xf), true});
      uint32_t next = header >> 20;
      if (next == 0 || !follow(true, at, next, kExtendedStart, kExtendedEnd, 4)) return;
      header = config_.read32(next);
      if (header == 0) return;  // an empty Null capability ends the chain (7.9.28)
      if (header == kAllOnes) {
        return fault(ChainFault::Kind::all_ones, true, at, next,
                     fmt::format("extended capability at {:#x} reads as all ones", next));
      }
      at = next;
    }
  }

  ConfigSpace& config_;
  uint32_t size_;
  bool has_pcie_ = false;
  std::bitset<kExtendedEnd> seen_;
  CapabilityWalk walk_;
};

}  // namespace

CapabilityWalk walk_capabilities(ConfigSpace& config) { return Walker(config).run(); }

}  // namespace kz
