// SPDX-License-Identifier: GPL-2.0-or-later
// MARCH: one march element, run next to memory.
//
// Each word sees all operations of the element before the next word does. On pages without a defect that is
// the same as reading the page first and writing it afterwards, which runs at the speed of memory; a page
// where something does not fit is gone through word by word.
#include <algorithm>

#include "tools/softtpu/exec_core.h"

namespace kz::softtpu {
namespace {

struct Piece {
  uint64_t physical, len, address;
};  // within one page; address as the command counts

struct Element {
  const kz_march& m;
  uint64_t background(uint64_t address) const {
    return m.background == KZ_BG_ADDR ? address ^ m.pattern : m.pattern;
  }
  static bool is_read(uint8_t op) { return op == KZ_MARCH_R0 || op == KZ_MARCH_R1; }
  static uint64_t invert(uint8_t op) { return op == KZ_MARCH_R1 || op == KZ_MARCH_W1 ? ~uint64_t{0} : 0; }
  std::span<const uint8_t> ops() const { return {m.ops, m.nops}; }
  uint64_t reads() const { return static_cast<uint64_t>(std::count_if(m.ops, m.ops + m.nops, is_read)); }
};

// What the element comes down to on sound memory.
struct Digest {
  bool read0 = false, read1 = false;   // before the first write
  std::optional<uint64_t> last_write;  // inversion of the last write
  bool contradicts = false;            // reads other than what it wrote: always a mismatch

  explicit Digest(const Element& e) {
    for (uint8_t op : e.ops()) {
      if (!Element::is_read(op))
        last_write = Element::invert(op);
      else if (last_write)
        contradicts |= *last_write != Element::invert(op);
      else
        (op == KZ_MARCH_R0 ? read0 : read1) = true;
    }
  }
};

class Runner {
 public:
  Runner(Core& core, const kz_march& m, const Requester& who)
      : core_(core), who_(who), element_{m}, digest_(element_) {}

  Outcome run(const Pinned& range) {
    std::vector<Piece> pieces = split(range);
    if (element_.m.order == KZ_MARCH_DOWN) std::reverse(pieces.begin(), pieces.end());
    for (const Piece& p : pieces) {
      if (cancelled(who_)) return ended(KZ_ST_ABORTED);
      std::byte* bytes = core_.hbm.direct_for_march(p.physical, p.len, element_.reads());
      if (bytes == nullptr || !run_sound(p, reinterpret_cast<uint64_t*>(bytes))) run_exact(p, bytes);
    }
    core_.note_read(element_.reads() * element_.m.len);
    return finish();
  }

 private:
  std::vector<Piece> split(const Pinned& range) const {
    std::vector<Piece> out;
    range.pieces(0, element_.m.len, [&](uint64_t physical, uint64_t len, uint64_t done) {
      for (uint64_t at = 0; at < len;) {
        uint64_t n = std::min(len - at, Hbm::page - (physical + at) % Hbm::page);
        out.push_back({physical + at, n, element_.m.addr + done + at});
        at += n;
      }
    });
    return out;
  }

  // All words as expected? One pass without a branch, so that the compiler makes vectors of it.
  bool holds(const Piece& p, const uint64_t* words, uint64_t inversion) const {
    uint64_t diff = 0, pattern = element_.m.pattern ^ inversion, n = p.len / 8;
    if (element_.m.background == KZ_BG_ADDR)
      for (uint64_t i = 0; i < n; ++i) diff |= words[i] ^ (p.address + 8 * i) ^ pattern;
    else
      for (uint64_t i = 0; i < n; ++i) diff |= words[i] ^ pattern;
    return diff == 0;
  }

  // False, and nothing changed, where something does not fit.
  bool run_sound(const Piece& p, uint64_t* words) const {
    if (digest_.contradicts) return false;
    if (digest_.read0 && !holds(p, words, 0)) return false;
    if (digest_.read1 && !holds(p, words, ~uint64_t{0})) return false;
    if (!digest_.last_write) return true;
    uint64_t pattern = element_.m.pattern ^ *digest_.last_write, n = p.len / 8;
    if (element_.m.background == KZ_BG_ADDR)
      for (uint64_t i = 0; i < n; ++i) words[i] = (p.address + 8 * i) ^ pattern;
    else
      std::fill_n(words, n, pattern);
    return true;
  }

  // Word by word; through the cell model where `bytes` is null.
  void run_exact(const Piece& p, std::byte* bytes) {
    CellModel* cells = bytes == nullptr ? core_.hbm.cells() : nullptr;
    if (bytes == nullptr && cells == nullptr) return run_marked(p);
    auto guard = cells != nullptr ? cells->lock() : std::unique_lock<std::mutex>{};
    auto* words = reinterpret_cast<uint64_t*>(bytes);
    each_word(p, [&](uint64_t i, uint8_t op, uint64_t value) -> uint64_t {
      uint64_t physical = p.physical + 8 * i;
      bool poison = false;
      if (Element::is_read(op)) {
        if (!core_.hbm.ecc().on_read(physical, 8)) poison_ = true;
        uint64_t got = cells != nullptr ? cells->read_word(physical, poison) : words[i];
        poison_ |= poison;
        return got;
      }
      core_.hbm.ecc().on_write(physical, 8);
      if (cells != nullptr)
        cells->write_word(physical, value);
      else
        words[i] = value;
      return value;
    });
  }

  // Sound cells, but ECC marks on some words.
  void run_marked(const Piece& p) {
    each_word(p, [&](uint64_t i, uint8_t op, uint64_t value) -> uint64_t {
      auto bytes = std::as_writable_bytes(std::span(&value, 1));
      if (!Element::is_read(op))
        core_.hbm.write(p.physical + 8 * i, bytes);
      else if (!core_.hbm.read(p.physical + 8 * i, bytes))
        poison_ = true;
      return value;
    });
  }

  // access(index, op, value to write) returns what was read.
  template <class Access>
  void each_word(const Piece& p, Access access) {
    uint64_t n = p.len / 8;
    for (uint64_t step = 0; step < n; ++step) {
      uint64_t i = element_.m.order == KZ_MARCH_DOWN ? n - 1 - step : step;
      uint64_t background = element_.background(p.address + 8 * i);
      bool wrong = false;
      for (uint32_t k = 0; k < element_.m.nops; ++k) {
        uint64_t value = background ^ Element::invert(element_.m.ops[k]);
        uint64_t got = access(i, element_.m.ops[k], value);
        if (!Element::is_read(element_.m.ops[k]) || got == value) continue;
        wrong = true;
        if (element_.m.log != 0 && log_.size() < element_.m.log_max)
          log_.push_back({p.address + 8 * i, value, got, k, 0});
      }
      mismatches_ += wrong;
    }
  }

  Outcome finish() {
    uint16_t status = poison_ ? KZ_ST_POISON : KZ_ST_OK;
    if (!log_.empty() && !core_.bus.write(element_.m.log, std::as_bytes(std::span(log_))))
      status = KZ_ST_DMA_FAULT;
    core_.dma_bytes += log_.size() * sizeof(kz_march_fail);
    return ended(status, mismatches_);
  }

  Core& core_;
  const Requester& who_;
  Element element_;
  Digest digest_;
  std::vector<kz_march_fail> log_;
  uint64_t mismatches_ = 0;
  bool poison_ = false;
};

uint16_t check_march(const kz_march& m) {
  if (m.order > KZ_MARCH_DOWN || m.background > KZ_BG_ADDR) return KZ_ST_BAD_FIELD;
  if (m.nops < 1 || m.nops > KZ_MARCH_OPS) return KZ_ST_BAD_FIELD;
  if (std::any_of(m.ops, m.ops + m.nops, [](uint8_t op) { return op > KZ_MARCH_R1; })) return KZ_ST_BAD_FIELD;
  if (uint16_t s = check_length(m.len); s != KZ_ST_OK) return s;
  if (m.len % 8 != 0) return KZ_ST_BAD_LENGTH;
  return m.addr % 8 == 0 ? KZ_ST_OK : KZ_ST_MISALIGNED;
}

}  // namespace

Outcome exec_march(Core& core, const kz_cmd& cmd, const Requester& who) {
  const kz_march& m = cmd.u.march;
  if (uint16_t s = check_march(m); s != KZ_ST_OK) return ended(s);
  Pinned range = core.memory.pin(who.context, m.addr, m.len, true);
  if (!range) return ended(KZ_ST_HBM_FAULT);
  return Runner(core, m, who).run(range);
}

}  // namespace kz::softtpu
