// SPDX-License-Identifier: GPL-2.0-or-later
// A DMA engine with a planted fault (D01..D14): takes the whole source first, spoils what it writes or where
// and when.
#include <algorithm>
#include <cstring>
#include <map>

#include "tools/softtpu/exec_end.h"

namespace kz::softtpu {
namespace {

constexpr uint64_t line = 64;

// What strikes this transfer. A fault that cannot act on it is not asked: it is no opportunity.
struct Strikes {
  const Fault *nothing, *beat, *twice, *page, *last, *bytes, *early, *edge, *chunk, *past, *stale, *swapped;
  bool any() const {
    return nothing || beat || twice || page || last || bytes || early || edge || chunk || past || stale ||
           swapped;
  }
};

bool unaligned(const kz_copy& c) { return c.src % line != 0 || c.dst % line != 0 || c.len % line != 0; }

bool can_go_stale(const kz_copy& c) { return c.src_space == KZ_SP_HOST; }

Strikes draw(FaultBoard& b, const kz_copy& c) {
  Strikes s{};
  s.nothing = b.due(Row::D01);
  s.beat = b.due(Row::D02);
  s.twice = b.due(Row::D03);
  s.page = b.due(Row::D04);
  s.last = b.due(Row::D05);
  if (c.len >= 8) s.bytes = b.due(Row::D06);
  s.early = b.due(Row::D07);
  if (unaligned(c)) s.edge = b.due(Row::D09);
  if (c.len > Core::chunk) s.chunk = b.due(Row::D10);
  s.past = b.due(Row::D11);
  if (can_go_stale(c)) s.stale = b.due(Row::D13);
  if (c.src_sges > 1 || c.dst_sges > 1) s.swapped = b.due(Row::D14);
  return s;
}

// Fault D13: a read buffer that is not invalidated. Lines stay in it until it is full.
class StaleLines {
 public:
  void pass(uint64_t iova, std::span<std::byte> data, uint64_t lines) {
    for (uint64_t at = (line - iova % line) % line; at + line <= data.size(); at += line) {
      auto [it, fresh] = held_.try_emplace(iova + at);
      bool differs = !fresh && std::memcmp(it->second.data(), data.data() + at, line) != 0;
      if (differs && lines > 0) {
        std::memcpy(data.data() + at, it->second.data(), line);
        --lines;
      } else {
        std::memcpy(it->second.data(), data.data() + at, line);
      }
    }
    if (held_.size() > 65536) held_.clear();
  }

 private:
  std::map<uint64_t, std::array<std::byte, line>> held_;
};

// One buffer for each planted fault, in the one engine of the process that planted it.
struct StaleBuffers {
  std::mutex mutex;
  std::map<const Fault*, StaleLines> of;
};

void swap_pieces(End& src, End& dst) {
  End& e = src.pieces() != nullptr && src.pieces()->size() > 1 ? src : dst;
  std::vector<kz_sge>& list = *e.pieces();
  std::swap(list[0], list[1]);
}

// Spoils the bytes between source and destination.
void spoil(Core& core, const Strikes& s, const kz_copy& c, std::span<std::byte> data) {
  if (s.bytes != nullptr) {
    uint64_t size = uint64_t{1} << s.bytes->uparam("word"), words = data.size() / size;
    auto word = data.subspan(core.draw() % words * size, size);
    std::reverse(word.begin(), word.end());
  }
  if (s.chunk != nullptr)  // from the second chunk on it reads one byte too early
    std::memmove(data.data() + Core::chunk, data.data() + Core::chunk - 1, data.size() - Core::chunk);
  if (s.stale != nullptr) {
    std::lock_guard lock(core.stale_mutex);
    if (core.stale == nullptr) core.stale = std::make_shared<StaleBuffers>();
    auto& buffers = *std::static_pointer_cast<StaleBuffers>(core.stale);
    buffers.of[s.stale].pass(c.src, data, s.stale->uparam("lines"));
  }
}

// The part of the destination that is written: [first, last).
struct Window {
  uint64_t first, last;
};

Window window(const Strikes& s, const kz_copy& c) {
  Window w{0, c.len};
  if (s.nothing != nullptr) w.last = 0;
  if (s.beat != nullptr) w.last -= std::min<uint64_t>(w.last, s.beat->uparam("bytes"));
  if (s.last != nullptr) w.last -= std::min<uint64_t>(w.last, line);
  if (s.edge != nullptr) {  // the byte enables of the first or last line are wrong by one
    bool tail = s.edge->uparam("tail") != 0;
    if (tail && w.last > w.first) --w.last;
    if (!tail) w.first = std::min<uint64_t>(1, w.last);
  }
  return w;
}

struct Writer {
  Strikes strikes;
  kz_copy copy;
  std::shared_ptr<End> dst;
  std::vector<std::byte> data;

  uint16_t write() {
    Window w = window(strikes, copy);
    auto part = std::span<const std::byte>(data).subspan(w.first, w.last - std::min(w.first, w.last));
    uint16_t status = KZ_ST_OK;
    if (strikes.page != nullptr)
      dst->stray_write(static_cast<int64_t>(w.first + strikes.page->uparam("pages") * 4096), part);
    else if (!part.empty())
      status = dst->write(w.first, part);
    if (strikes.past != nullptr && status == KZ_ST_OK) {
      std::vector<std::byte> more(strikes.past->uparam("bytes"), std::byte{0xee});
      dst->stray_write(static_cast<int64_t>(copy.len), more);
    }
    return status;
  }
};

std::chrono::microseconds delay(const Fault& f) { return std::chrono::microseconds(f.uparam("delay_us")); }

}  // namespace

std::optional<Outcome> move_bytes_faulty(Core& core, const kz_copy& copy, std::shared_ptr<End> src,
                                         std::shared_ptr<End> dst, const Requester& who) {
  Strikes strikes = draw(core.faults, copy);
  if (!strikes.any()) return std::nullopt;
  if (strikes.swapped != nullptr) swap_pieces(*src, *dst);
  auto writer = std::make_shared<Writer>(Writer{strikes, copy, dst, std::vector<std::byte>(copy.len)});
  for (uint64_t done = 0; done < copy.len; done += Core::chunk) {
    if (cancelled(who)) return ended(KZ_ST_ABORTED);
    uint64_t n = std::min<uint64_t>(Core::chunk, copy.len - done);
    if (uint16_t s = src->read(done, std::span(writer->data).subspan(done, n)); s != KZ_ST_OK)
      return ended(s);
  }
  spoil(core, strikes, copy, writer->data);
  Outcome outcome;
  bool late = strikes.early != nullptr, again = strikes.twice != nullptr;
  if (!late) outcome.status = writer->write();
  if (outcome.status == KZ_ST_OK && (late || again)) {
    dst->detach();
    outcome.kind = Outcome::Kind::early;
    outcome.finish = [writer] { writer->write(); };
    outcome.finish_delay = delay(late ? *strikes.early : *strikes.twice);
  }
  return outcome;
}

}  // namespace kz::softtpu
