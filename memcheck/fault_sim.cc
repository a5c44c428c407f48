// SPDX-License-Identifier: GPL-2.0-or-later
#include "memcheck/fault_sim.h"

namespace kz::memcheck {
namespace {

using Kind = Stimulus::Kind;

std::string side(bool state, const Stimulus& op) {
  std::string s = state ? "1" : "0";
  if (op.kind == Kind::read) s += state ? "r1" : "r0";
  if (op.kind == Kind::write) s += op.value ? "w1" : "w0";
  return s;
}

// A memory of a few cells with one fault in it.
class Memory {
 public:
  Memory(const FaultPrimitive& fault, unsigned aggressor, unsigned victim, unsigned initial)
      : fault_(fault), aggressor_(aggressor), victim_(victim), cells_(initial) {
    settle();
  }

  bool read(unsigned cell) {
    bool value = get(cell);
    bool sensitised = cell == victim_ && fault_.victim_op.kind == Kind::read && at_states();
    bool aggressed = cell == aggressor_ && aggressor_hit(Kind::read, value);
    if (sensitised) {
      set(victim_, fault_.effect);
      value = fault_.returns.value_or(value);
    }
    if (aggressed) set(victim_, fault_.effect);
    settle();
    return value;
  }

  void write(unsigned cell, bool value) {
    bool sensitised = cell == victim_ && fault_.victim_op.kind == Kind::write &&
                      fault_.victim_op.value == value && at_states();
    bool aggressed = cell == aggressor_ && aggressor_hit(Kind::write, value);
    set(cell, sensitised ? fault_.effect : value);
    if (aggressed) set(victim_, fault_.effect);
    settle();
  }

 private:
  bool get(unsigned cell) const { return (cells_ >> cell) & 1u; }
  void set(unsigned cell, bool v) { cells_ = (cells_ & ~(1u << cell)) | (unsigned{v} << cell); }

  bool at_states() const {
    return get(victim_) == fault_.victim_state &&
           (!fault_.aggressor_state || get(aggressor_) == *fault_.aggressor_state);
  }
  bool aggressor_hit(Kind kind, bool value) const {
    return fault_.aggressor_op.kind == kind && (kind == Kind::read || fault_.aggressor_op.value == value) &&
           at_states();
  }
  // Faults that need no operation act as soon as the states are there.
  void settle() {
    if (fault_.aggressor_op.kind == Kind::none && fault_.victim_op.kind == Kind::none && at_states())
      set(victim_, fault_.effect);
  }

  const FaultPrimitive& fault_;
  unsigned aggressor_, victim_, cells_;
};

bool apply(const MarchElement& e, unsigned cell, Memory& memory) {
  for (MarchOp op : e.ops) {
    bool one = op == MarchOp::w1 || op == MarchOp::r1;
    if (op == MarchOp::w0 || op == MarchOp::w1)
      memory.write(cell, one);
    else if (memory.read(cell) != one)
      return true;
  }
  return false;
}

bool detected_at(const MarchTest& test, Memory memory, unsigned cells, Order either) {
  for (const auto& e : test.elements) {
    Order order = e.order == Order::either ? either : e.order;
    for (unsigned i = 0; i < cells; ++i)
      if (apply(e, order == Order::down ? cells - 1 - i : i, memory)) return true;
  }
  return false;
}

void add_victim_ops(std::vector<FaultPrimitive>& out, const std::string& prefix,
                    std::optional<bool> aggressor) {
  bool two = aggressor.has_value();
  for (bool s : {false, true}) {
    auto fp = [&](const char* one, const char* pair, Stimulus op, bool effect, std::optional<bool> returns) {
      out.push_back({prefix + (two ? pair : one), aggressor, {}, s, op, effect, returns});
    };
    fp("SF", "st", {}, !s, {});
    fp("TF", "tr", {Kind::write, !s}, s, {});
    fp("WDF", "wd", {Kind::write, s}, !s, {});
    fp("RDF", "rd", {Kind::read, s}, !s, !s);
    fp("DRDF", "drd", {Kind::read, s}, !s, s);
    fp("IRF", "ir", {Kind::read, s}, s, !s);
  }
}

}  // namespace

std::string FaultPrimitive::text() const {
  std::string s = "<";
  if (aggressor_state) s += side(*aggressor_state, aggressor_op) + ";";
  s += side(victim_state, victim_op) + "/" + (effect ? "1" : "0") + "/";
  return s + (returns ? (*returns ? "1" : "0") : "-") + ">";
}

std::vector<FaultPrimitive> static_faults() {
  std::vector<FaultPrimitive> all;
  add_victim_ops(all, "", std::nullopt);
  for (bool a : {false, true}) {
    add_victim_ops(all, "CF", a);
    for (bool v : {false, true})
      for (Stimulus op : {Stimulus{Kind::write, false}, {Kind::write, true}, {Kind::read, a}})
        all.push_back({"CFds", a, op, v, {}, !v, {}});
  }
  return all;
}

bool detects(const MarchTest& test, const FaultPrimitive& fault, unsigned cells, Order either) {
  for (unsigned victim = 0; victim < cells; ++victim)
    for (unsigned aggressor = 0; aggressor < cells; ++aggressor) {
      // One-cell faults have no aggressor; two-cell faults need another cell.
      if (fault.aggressor_state ? aggressor == victim : aggressor != victim) continue;
      for (unsigned initial = 0; initial < (1u << cells); ++initial) {
        unsigned a = fault.aggressor_state ? aggressor : cells;  // no such cell
        if (!detected_at(test, Memory(fault, a, victim, initial), cells, either)) return false;
      }
    }
  return true;
}

}  // namespace kz::memcheck
