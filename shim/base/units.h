// SPDX-License-Identifier: GPL-2.0-or-later
// Strong types for addresses, sizes and deadlines: an IOVA never becomes an HBM address by accident.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace kz {

namespace detail {
template <class Tag>
struct Address {
  uint64_t value = 0;
  constexpr auto operator<=>(const Address&) const = default;
  constexpr Address operator+(uint64_t n) const { return {value + n}; }
  constexpr uint64_t operator-(Address o) const { return value - o.value; }
};
}  // namespace detail

using Iova = detail::Address<struct IovaTag>;        // bus address as the device emits it
using HbmAddr = detail::Address<struct HbmTag>;      // device memory, in a context (physical in the root context)

// A size in bytes. 64-bit, never negative.
struct Bytes {
  uint64_t value = 0;
  constexpr auto operator<=>(const Bytes&) const = default;
};
constexpr Bytes operator""_B(unsigned long long n) { return {n}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return {n << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return {n << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return {n << 30}; }

// "64M", "1GiB", "4096", "0x1000"; powers of 1024. Throws Error(usage).
Bytes parse_bytes(std::string_view text);
// "64 MiB", "4097 B": exact, in the largest unit that divides the value, else one decimal.
std::string to_string(Bytes size);

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Every wait has one. A deadline carries its budget, so that the error can name it.
class Deadline {
 public:
  explicit Deadline(std::chrono::nanoseconds budget) : start_(Clock::now()), budget_(budget) {}
  std::chrono::nanoseconds budget() const { return budget_; }
  std::chrono::nanoseconds elapsed() const { return Clock::now() - start_; }
  std::chrono::nanoseconds left() const { return std::max(budget_ - elapsed(), std::chrono::nanoseconds(0)); }
  bool passed() const { return elapsed() >= budget_; }

 private:
  Clock::time_point start_;
  std::chrono::nanoseconds budget_;
};

// "1.5 s", "250 ms", "12 us"
std::string to_string(std::chrono::nanoseconds t);

constexpr uint64_t align_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace kz
