// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/job_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "shim/base/error.h"
#include "shim/base/text.h"
#include "shim/load/payload.h"
#include "shim/uri.h"

namespace kz::load {
namespace {

[[noreturn]] void refuse(const std::string& detail, const std::string& remedy = {}) {
  throw Error({Errc::usage, "read", "job", detail, remedy, 0});
}

[[noreturn]] void refuse_word(std::string_view word, std::string_view kind, std::vector<std::string> known) {
  auto near = near_matches(word, known);
  refuse(fmt::format("'{}' is no {}", word, kind), near.empty()
                                                       ? fmt::format("known: {}", fmt::join(known, ", "))
                                                       : fmt::format("did you mean {}?", near.front()));
}

template <class T>
T whole(std::string_view text, uint64_t least, uint64_t most) {
  uint64_t n = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (ec != std::errc() || end != text.data() + text.size() || n < least || n > most)
    refuse(fmt::format("'{}' is no whole number from {} to {}", text, least, most));
  return static_cast<T>(n);
}

bool yes_or_no(std::string_view text) {
  if (text == "yes" || text == "1" || text == "true" || text == "on") return true;
  if (text == "no" || text == "0" || text == "false" || text == "off") return false;
  refuse(fmt::format("'{}' is neither yes nor no", text));
}

double rate_of(std::string_view text) {
  std::string_view digits = text;
  if (digits.ends_with("/s")) digits.remove_suffix(2);
  double factor = 1;
  if (!digits.empty() && (digits.back() == 'k' || digits.back() == 'K')) factor = 1e3;
  if (!digits.empty() && (digits.back() == 'm' || digits.back() == 'M')) factor = 1e6;
  if (factor > 1) digits.remove_suffix(1);
  double n = 0;
  auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  n *= factor;
  if (ec != std::errc() || end != digits.data() + digits.size() || !std::isfinite(n) || n < 0.001 || n > 1e9)
    refuse(fmt::format("'{}' is no rate", text), "write operations a second such as 500, 20k or 1.5M");
  return n;
}

constexpr uint64_t most_copied = UINT32_MAX;  // the header of a payload has 32 bits for it
constexpr uint64_t most_read = 0x7ffff000;    // by one read, on Linux
constexpr uint64_t most_allocated = 1ull << 32;

// "4K" or "512-64K"
SizeRange range_of(std::string_view text, uint64_t most) {
  auto dash = text.find('-');
  SizeRange r;
  r.least = parse_bytes(text.substr(0, dash)).value;
  r.most = dash == std::string_view::npos ? r.least : parse_bytes(text.substr(dash + 1)).value;
  if (r.least == 0 || r.least > r.most || r.most > most)
    refuse(fmt::format("'{}' is no range of sizes", text),
           fmt::format("such as 4K or 512-64K, {} 4G", most == most_allocated ? "at most" : "less than"));
  return r;
}

constexpr Op nameable[] = {Op::nop,    Op::copy_in, Op::copy_out, Op::copy_hbm,
                           Op::matmul, Op::vector,  Op::alloc,    Op::telemetry};

// "copy-in:3, copy-out:3, nop"
std::array<unsigned, kOps> mix_of(std::string_view text) {
  std::array<unsigned, kOps> mix{};
  while (!text.empty()) {
    auto comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    auto colon = item.find(':');
    std::string_view name = item.substr(0, colon);
    auto op = std::ranges::find_if(nameable, [&](Op o) { return to_string(o) == name; });
    if (op == std::end(nameable)) {
      std::vector<std::string> known;
      for (Op o : nameable) known.emplace_back(to_string(o));
      refuse_word(name, "operation", std::move(known));
    }
    mix[static_cast<size_t>(*op)] +=
        colon == std::string_view::npos ? 1 : whole<unsigned>(item.substr(colon + 1), 0, 1'000'000);
  }
  if (std::ranges::all_of(mix, [](unsigned w) { return w == 0; })) refuse("every weight is 0");
  return mix;
}

Dtype dtype_of(std::string_view text) {
  for (Dtype t : {Dtype::s8, Dtype::bf16, Dtype::f16, Dtype::f32})
    if (to_string(t) == text) return t;
  refuse_word(text, "type", {"s8", "bf16", "f16", "f32"});
}

// "device", "nop", "file:PATH", "uring-cmd:PATH"
void set_target(Job& job, std::string_view text) {
  auto colon = text.find(':');
  std::string_view kind = text.substr(0, colon);
  job.path = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  bool wants_path = true;
  if (kind == "file") {
    job.target = Target::file;
  } else if (kind == "uring-cmd") {
    job.target = Target::uring_cmd;
  } else if (kind == "device" || kind == "nop") {
    job.target = kind == "nop" ? Target::nop : Target::device;
    wants_path = false;
  } else {
    refuse_word(kind, "target", {"device", "nop", "file", "uring-cmd"});
  }
  if (wants_path == job.path.empty())
    refuse(fmt::format("'{}' {} a path", text, wants_path ? "needs" : "takes no"), "such as file:/tmp/data");
}

unsigned entries_order(std::string_view text) {
  auto n = whole<unsigned>(text, 2, 1 << 15);
  if (!std::has_single_bit(n)) refuse(fmt::format("'{}' is no power of two", text));
  return static_cast<unsigned>(std::countr_zero(n));
}

bool open_of(std::string_view text) {
  if (text == "open" || text == "closed") return text == "open";
  refuse_word(text, "loop", {"open", "closed"});
}

Arrivals arrivals_of(std::string_view text) {
  if (text == "constant" || text == "poisson")
    return text == "poisson" ? Arrivals::poisson : Arrivals::constant;
  refuse_word(text, "kind of arrivals", {"constant", "poisson"});
}

using Setter = void (*)(Job&, std::string_view);
struct Key {
  std::string_view name;
  Setter set;
};
using V = std::string_view;
constexpr Key job_keys[] = {
    {"device",
     [](Job& j, V v) {
       parse_uri(v);
       j.devices.emplace_back(v);
     }},
    {"target", set_target},
    {"mix", [](Job& j, V v) { j.mix = mix_of(v); }},
    {"size", [](Job& j, V v) { j.size = range_of(v, most_copied); }},
    {"alloc-size", [](Job& j, V v) { j.alloc_size = range_of(v, most_allocated); }},
    {"blocks", [](Job& j, V v) { j.blocks = whole<unsigned>(v, 1, 100'000); }},
    {"dim", [](Job& j, V v) { j.dim = whole<uint32_t>(v, 1, 4096); }},
    {"elements", [](Job& j, V v) { j.elements = whole<uint32_t>(v, 1, 1 << 26); }},
    {"dtype", [](Job& j, V v) { j.dtype = dtype_of(v); }},
    {"loop", [](Job& j, V v) { j.open_loop = open_of(v); }},
    {"rate", [](Job& j, V v) { j.rate = rate_of(v); }},
    {"arrivals", [](Job& j, V v) { j.arrivals = arrivals_of(v); }},
    {"ramp", [](Job& j, V v) { j.ramp = parse_time(v); }},
    {"burst", [](Job& j, V v) { j.burst = whole<unsigned>(v, 1, 1'000'000); }},
    {"depth", [](Job& j, V v) { j.depth = whole<unsigned>(v, 1, 1 << 15); }},
    {"batch", [](Job& j, V v) { j.batch = whole<unsigned>(v, 1, 4096); }},
    {"entries", [](Job& j, V v) { j.queue_order = entries_order(v); }},
    {"queues", [](Job& j, V v) { j.queues = whole<unsigned>(v, 1, 1024); }},
    {"threads", [](Job& j, V v) { j.threads = whole<unsigned>(v, 1, 256); }},
    {"processes", [](Job& j, V v) { j.processes = whole<unsigned>(v, 1, 64); }},
    {"interrupts", [](Job& j, V v) { j.interrupts = yes_or_no(v); }},
    {"time", [](Job& j, V v) { j.time = parse_time(v); }},
    {"count", [](Job& j, V v) { j.count = whole<uint64_t>(v, 1, UINT64_MAX); }},
    {"timeout", [](Job& j, V v) { j.timeout = parse_time(v); }},
    {"late", [](Job& j, V v) { j.late = parse_time(v); }},
    {"verify", [](Job& j, V v) { j.verify = yes_or_no(v); }},
    {"seed", [](Job& j, V v) { j.seed = whole<uint64_t>(v, 0, UINT64_MAX); }},
};

void check_devices(const Job& job) {
  for (size_t i = 0; i < job.devices.size(); ++i) {
    parse_uri(job.devices[i]);
    for (size_t k = 0; k < i; ++k)
      if (job.devices[i] == job.devices[k])
        refuse(fmt::format("device {} stands twice", job.devices[i]),
               "two software TPUs differ in an option, such as softtpu:serial=2");
  }
  if (std::ranges::all_of(job.mix, [](unsigned w) { return w == 0; }))
    refuse("it has no mix", "such as mix=copy-in:2,copy-out:2,nop");
}

}  // namespace

std::chrono::nanoseconds parse_time(std::string_view text) {
  double n = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  double factor = unit == "ns"    ? 1
                  : unit == "us"  ? 1e3
                  : unit == "ms"  ? 1e6
                  : unit == "s"   ? 1e9
                  : unit == "min" ? 60e9
                  : unit == "h"   ? 3600e9
                                  : 0;
  if (ec != std::errc() || factor == 0 || !(n >= 0) || n * factor > 1e18)
    refuse(fmt::format("'{}' is no time", text),
           "write a number with ns, us, ms, s, min or h, such as 250ms");
  return std::chrono::nanoseconds(static_cast<int64_t>(n * factor));
}

void set_key(Job& job, const std::string& key, std::string_view value) {
  auto found = std::ranges::find_if(job_keys, [&](const Key& k) { return k.name == key; });
  if (found != std::end(job_keys)) return found->set(job, value);
  std::vector<std::string> known;
  for (const Key& k : job_keys) known.emplace_back(k.name);
  refuse_word(key, "key", std::move(known));
}

void check_job(const Job& job) {
  if (job.target == Target::device) check_devices(job);
  if (job.target != Target::device && std::ranges::any_of(job.mix, [](unsigned w) { return w != 0; }))
    refuse("mix belongs to a device", "leave mix or target out");
  if (job.target == Target::file && job.size.most > most_read)
    refuse(fmt::format("size {} is more than one read takes", job.size.most),
           fmt::format("at most {}", most_read));
  if (job.time == std::chrono::nanoseconds(0)) refuse("time is 0");
  if (job.timeout == std::chrono::nanoseconds(0)) refuse("timeout is 0");
  if (job.depth > 1u << job.queue_order)
    refuse(fmt::format("depth {} does not fit a queue of {} entries", job.depth, 1u << job.queue_order),
           "raise entries or lower depth");
  if (job.threads > job.queues && job.queues != 1)
    refuse(fmt::format("{} threads share {} queues", job.threads, job.queues),
           "a queue belongs to one thread");
  if (job.verify && job.copies() && job.size.least < sizeof(PayloadHeader))
    refuse(fmt::format("copies of {} bytes hold no header to verify", job.size.least),
           fmt::format("raise size to {} or set verify=no", sizeof(PayloadHeader)));
}

}  // namespace kz::load
