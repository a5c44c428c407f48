// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/fault_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shim/base/error.h"
#include "shim/base/units.h"

namespace kz::softtpu {

using nlohmann::json;

struct FaultBoard::Planted {
  Fault fault;
  std::mt19937_64 rng;
  uint64_t window = 1;     // "every"
  uint64_t in_window = 0;  // opportunities of the running window
  uint64_t chosen = 0;     // the one that strikes

  bool started() const {
    switch (fault.trigger.kind) {
      case Trigger::Kind::after:
        return fault.opportunities > fault.trigger.n;
      case Trigger::Kind::time:
        return Clock::now() - fault.planted >= fault.trigger.delay;
      default:
        return true;
    }
  }
};

namespace {

[[noreturn]] void refuse_fault(const std::string& target, std::string detail, std::string remedy = {}) {
  throw Error({Errc::usage, "plant fault", target, std::move(detail), std::move(remedy)});
}

struct KindName {
  Trigger::Kind kind;
  std::string_view name;
};
constexpr KindName kinds[] = {{Trigger::Kind::now, "now"},   {Trigger::Kind::after, "after"},
                              {Trigger::Kind::once, "once"}, {Trigger::Kind::every, "every"},
                              {Trigger::Kind::time, "time"}, {Trigger::Kind::probability, "probability"}};

void check_keys(const json& object, std::initializer_list<std::string_view> known,
                const std::string& target) {
  if (!object.is_object()) refuse_fault(target, "not a JSON object");
  for (const auto& [key, unused] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      refuse_fault(target, "unknown key \"" + key + "\"");
}

uint64_t whole(const json& v, const std::string& target, const std::string& key, uint64_t max = UINT64_MAX) {
  bool natural = v.is_number_unsigned() || (v.is_number_integer() && v.get<int64_t>() >= 0);
  if (natural && v.get<uint64_t>() <= max) return v.get<uint64_t>();
  refuse_fault(target, "\"" + key + "\" must be a whole number from 0 to " + std::to_string(max));
}

Trigger parse_trigger(const json& j, const std::string& row) {
  const std::string target = row + " trigger";
  check_keys(j, {"kind", "n", "ms", "p"}, target);
  Trigger t;
  std::string name = j.contains("kind") && j["kind"].is_string() ? j["kind"].get<std::string>() : "";
  auto it =
      std::find_if(std::begin(kinds), std::end(kinds), [&](const KindName& k) { return k.name == name; });
  if (it == std::end(kinds))
    refuse_fault(target, "unknown kind \"" + name + "\"", "use now, after, once, every, time or probability");
  t.kind = it->kind;
  using K = Trigger::Kind;
  auto belongs = [&](const char* key, bool here) {
    if (j.contains(key) != here)
      refuse_fault(target, fmt::format("kind \"{}\" {} \"{}\"", name, here ? "needs" : "has no", key));
    return here;
  };
  if (belongs("n", t.kind == K::after || t.kind == K::once || t.kind == K::every))
    t.n = whole(j["n"], target, "n");
  if (t.kind == K::every && t.n == 0) refuse_fault(target, "\"n\" must be at least 1");
  if (belongs("ms", t.kind == K::time))
    t.delay = std::chrono::milliseconds(whole(j["ms"], target, "ms", uint64_t{1} << 40));
  if (belongs("p", t.kind == K::probability)) {
    if (!j["p"].is_number()) refuse_fault(target, "\"p\" must be a number");
    t.p = j["p"].get<double>();
    if (!(t.p >= 0 && t.p <= 1)) refuse_fault(target, fmt::format("\"p\" is {}, must be 0 to 1", t.p));
  }
  return t;
}

std::map<std::string, double> parse_params(const json& j, const RowSpec& row) {
  std::map<std::string, double> out;
  for (const ParamSpec& p : row.params) out[std::string(p.name)] = p.fallback;
  const std::string target(row.id);
  if (!j.is_object()) refuse_fault(target, "\"params\" is not a JSON object");
  for (const auto& [key, v] : j.items()) {
    auto it = std::find_if(row.params.begin(), row.params.end(),
                           [&k = key](const ParamSpec& p) { return p.name == k; });
    if (it == row.params.end()) refuse_fault(target, "unknown parameter \"" + key + "\"");
    if (!v.is_number()) refuse_fault(target, "parameter \"" + key + "\" must be a number");
    double d = v.get<double>();
    if (!(d >= it->low && d <= it->high))
      refuse_fault(target,
                   fmt::format("parameter \"{}\" is {}, must be {} to {}", key, d, it->low, it->high));
    if (!it->real && d != std::floor(d))
      refuse_fault(target, "parameter \"" + key + "\" must be a whole number");
    out[key] = d;
  }
  return out;
}

Fault parse_fault(const json& j) {
  check_keys(j, {"row", "trigger", "seed", "params"}, "fault");
  if (!j.contains("row") || !j["row"].is_string())
    refuse_fault("fault", "no \"row\"", "for example {\"row\": \"D04\"}");
  std::string id = j["row"];
  auto row = parse_row(id);
  if (!row) refuse_fault(id, "unknown row", "rows are M01..M28, D01..D18, Q01..Q17, C01..C15, F01..F21");
  Fault f;
  f.row = *row;
  if (j.contains("trigger")) f.trigger = parse_trigger(j["trigger"], id);
  if (j.contains("seed")) f.seed = whole(j["seed"], id, "seed");
  f.params = parse_params(j.value("params", json::object()), spec(*row));
  return f;
}

json trigger_json(const Trigger& t) {
  json j;
  for (const KindName& k : kinds)
    if (k.kind == t.kind) j["kind"] = k.name;
  using K = Trigger::Kind;
  if (t.kind == K::after || t.kind == K::once || t.kind == K::every) j["n"] = t.n;
  if (t.kind == K::time) j["ms"] = t.delay.count();
  if (t.kind == K::probability) j["p"] = t.p;
  return j;
}

}  // namespace

FaultBoard::FaultBoard() = default;
FaultBoard::~FaultBoard() = default;

int FaultBoard::inject(const json& j, bool client_connected) {
  auto p = std::make_unique<Planted>();
  p->fault = parse_fault(j);
  const RowSpec& row = spec(p->fault.row);
  if (row.before_connect && client_connected)
    throw Error({Errc::busy, "plant fault", std::string(row.id),
                 "a client already maps the memory it acts on",
                 "plant it before the client connects (--fault)"});
  p->fault.planted = Clock::now();
  p->rng.seed(p->fault.seed);
  if (auto e = p->fault.params.find("every"); e != p->fault.params.end())
    p->window = std::max<uint64_t>(1, static_cast<uint64_t>(e->second));
  int id;
  {
    std::lock_guard lock(mutex_);
    id = p->fault.id = next_id_++;
    planted_.push_back(std::move(p));
    publish();
  }
  notify();
  return id;
}

void FaultBoard::clear(int id) {
  {
    std::lock_guard lock(mutex_);
    auto keep = [id](const std::unique_ptr<Planted>& p) { return id != 0 && p->fault.id != id; };
    auto first = std::stable_partition(planted_.begin(), planted_.end(), keep);
    if (first == planted_.end() && id != 0)
      throw Error({Errc::not_found, "clear fault", std::to_string(id), "no fault has this id"});
    std::move(first, planted_.end(), std::back_inserter(retired_));
    planted_.erase(first, planted_.end());
    publish();
  }
  notify();
}

json FaultBoard::list() const {
  json out = json::array();
  std::lock_guard lock(mutex_);
  for (const auto& p : planted_) {
    const Fault& f = p->fault;
    out.push_back({{"id", f.id},
                   {"row", spec(f.row).id},
                   {"title", spec(f.row).title},
                   {"trigger", trigger_json(f.trigger)},
                   {"seed", f.seed},
                   {"params", f.params},
                   {"opportunities", f.opportunities},
                   {"strikes", f.strikes}});
  }
  return out;
}

// Counts one opportunity. Called with the lock held.
bool FaultBoard::strikes(Planted& p) {
  const Trigger& t = p.fault.trigger;
  uint64_t n = ++p.fault.opportunities;
  bool now = true;
  switch (t.kind) {
    case Trigger::Kind::now:
      break;
    case Trigger::Kind::after:
    case Trigger::Kind::time:
      now = p.started();
      break;
    case Trigger::Kind::once:
      now = n == t.n + 1;
      break;
    case Trigger::Kind::every:
      now = n % t.n == 0;
      break;
    case Trigger::Kind::probability:
      now = std::uniform_real_distribution<double>()(p.rng) < t.p;
      break;
  }
  if (!now) return false;
  if (p.window > 1 && t.kind != Trigger::Kind::once) {
    if (p.in_window == 0) p.chosen = std::uniform_int_distribution<uint64_t>(0, p.window - 1)(p.rng);
    now = p.in_window == p.chosen;
    p.in_window = (p.in_window + 1) % p.window;
  }
  p.fault.strikes += now;
  return now;
}

const Fault* FaultBoard::due_slow(Row row) {
  const Fault* hit = nullptr;
  std::lock_guard lock(mutex_);
  for (auto& p : planted_)
    if (p->fault.row == row && strikes(*p) && hit == nullptr) hit = &p->fault;
  return hit;
}

const Fault* FaultBoard::active(Row row) const {
  if ((planted_mask_[index(row) / 64].load(std::memory_order_relaxed) & bit(row)) == 0) return nullptr;
  std::lock_guard lock(mutex_);
  for (const auto& p : planted_)
    if (p->fault.row == row && p->started()) return &p->fault;
  return nullptr;
}

std::vector<const Fault*> FaultBoard::planted(Row row) const {
  std::vector<const Fault*> out;
  std::lock_guard lock(mutex_);
  for (const auto& p : planted_)
    if (p->fault.row == row) out.push_back(&p->fault);
  return out;
}

bool FaultBoard::any() const {
  for (const auto& m : planted_mask_)
    if (m.load(std::memory_order_relaxed) != 0) return true;
  return false;
}

void FaultBoard::on_change(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  callbacks_.push_back(std::move(callback));
}

void FaultBoard::publish() {
  uint64_t mask[3] = {};
  for (const auto& p : planted_) mask[index(p->fault.row) / 64] |= bit(p->fault.row);
  for (size_t i = 0; i < 3; ++i) planted_mask_[i].store(mask[i], std::memory_order_relaxed);
}

void FaultBoard::notify() {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard lock(mutex_);
    callbacks = callbacks_;
  }
  for (auto& c : callbacks) c();
}

}  // namespace kz::softtpu
