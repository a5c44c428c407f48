// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/difference.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kz::test {
namespace {

using Span = std::span<const std::byte>;

unsigned wrong_bits(std::byte a, std::byte b) { return std::popcount(static_cast<unsigned>(a ^ b)); }

void count(Difference& d, Span want, Span got) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == got[i]) continue;
    if (d.bytes == 0) d.first = i;
    d.last = i;
    ++d.bytes;
    d.bits += wrong_bits(want[i], got[i]);
  }
}

// At most two wrong bits in every wrong byte, and only some bytes wrong: cells or lanes, not moved bytes.
bool single_bits(const Difference& d, Span want, Span got) {
  if (d.bits > 2 * d.bytes || d.bytes * 4 > want.size() + 16) return false;
  for (size_t i = d.first; i <= d.last; ++i)
    if (wrong_bits(want[i], got[i]) > 2) return false;
  return true;
}

// Every wrong word of some size holds the right bytes in another order.
bool swapped_in_words(const Difference& d, Span want, Span got) {
  for (size_t word : {2u, 4u, 8u}) {
    bool fits = true, any = false;
    for (size_t at = d.first / word * word; fits && at <= d.last && at + word <= want.size(); at += word) {
      if (std::equal(&want[at], &want[at] + word, &got[at])) continue;
      any = true;
      fits = std::is_permutation(&want[at], &want[at] + word, &got[at]);
    }
    if (fits && any) return true;
  }
  return false;
}

// Part of the wrong run [first, last] that equals `other` shifted by `by` (got[i] == other[i - by]).
bool equals_shifted(const Difference& d, Span want, Span got, int64_t by) {
  uint64_t compared = 0, equal = 0;
  for (size_t i = d.first; i <= d.last; ++i) {
    const int64_t from = static_cast<int64_t>(i) - by;
    if (from < 0 || from >= static_cast<int64_t>(want.size())) continue;
    ++compared;
    equal += got[i] == want[from];
  }
  return compared >= 16 && equal * 100 >= compared * 98;
}

int64_t find_shift(const Difference& d, Span want, Span got) {
  static constexpr int64_t kShifts[] = {64,  4096, 8192, 32,   16,   8,     4,     2,     1,
                                        128, 256,  512,  1024, 2048, 12288, 16384, 32768, 65536};
  for (int64_t s : kShifts)
    for (int64_t by : {s, -s})
      if (equals_shifted(d, want, got, by)) return by;
  return 0;
}

// The wrong bytes appear elsewhere in what was sent: looks for each wrong 64-byte line in the expected data.
bool pieces_from_elsewhere(const Difference& d, Span want, Span got) {
  size_t tried = 0, found = 0;
  const size_t window = 16;
  for (size_t at = d.first; at + window <= d.last + 1 && tried < 8;
       at += std::max<size_t>(window, d.bytes / 8)) {
    size_t right = 0;
    for (size_t i = 0; i < window; ++i) right += want[at + i] == got[at + i];
    if (right > window / 4) continue;  // right, or across the end of a piece
    const auto* zero = std::find_if(&got[at], &got[at] + window, [&](std::byte b) { return b != got[at]; });
    if (zero == &got[at] + window) continue;  // constant bytes are found anywhere
    ++tried;
    found += std::search(want.begin(), want.end(), &got[at], &got[at] + window) != want.end();
  }
  return tried >= 1 && found == tried;
}

template <class Match>
bool all_wrong(const Difference& d, Span want, Span got, Match match) {
  for (size_t i = d.first; i <= d.last; ++i)
    if (want[i] != got[i] && !match(i)) return false;
  return true;
}

bool touches_chunk(const Difference& d, uint64_t chunk, size_t size) {
  if (chunk == 0 || d.last - d.first + 1 > 4096) return false;
  const uint64_t edge = (d.last + 1 + chunk / 2) / chunk * chunk;  // the multiple nearest to the run
  if (edge == 0 || edge > size || (edge == size && d.last + 1 == size)) return false;
  return d.first <= edge && edge <= d.last + 1;
}

std::string shape_of(Difference& d, Span want, Span got, Span before, uint64_t chunk) {
  const bool stale =
      before.size() == got.size() && all_wrong(d, want, got, [&](size_t i) { return got[i] == before[i]; });
  const bool zeroes = all_wrong(d, want, got, [&](size_t i) { return got[i] == std::byte{0}; });
  // A run that does not cover everything, and of which (chance aside) every byte is wrong.
  const bool dense = d.bytes * 10 >= (d.last - d.first + 1) * 9;
  const bool partial = d.bytes * 10 < want.size() * 9;
  if (dense && partial && touches_chunk(d, chunk, want.size())) return "chunk_edge";
  const bool small = d.last - d.first + 1 <= 2;
  if (!(small && (stale || zeroes)) && single_bits(d, want, got)) return "bit";
  if (d.bytes >= 2 && swapped_in_words(d, want, got)) return "swapped_bytes";
  if (dense && partial && d.last + 1 == want.size()) return "tail";
  if (dense && partial && d.first == 0) return "head";
  if (!zeroes && (d.shift = find_shift(d, want, got))) return "shifted";
  if (stale) return "stale";
  if (zeroes) return "zeroes";
  if (pieces_from_elsewhere(d, want, got)) return "swapped_pieces";
  return "mixed";
}

}  // namespace

Difference compare_bytes(Span want, Span got, Span before, uint64_t chunk) {
  Difference d;
  if (want.size() == got.size() && (want.empty() || std::memcmp(want.data(), got.data(), want.size()) == 0))
    return d;
  const size_t n = std::min(want.size(), got.size());
  count(d, want.first(n), got.first(n));
  if (d.bytes) d.shape = shape_of(d, want.first(n), got.first(n), before, chunk);
  return d;
}

}  // namespace kz::test
