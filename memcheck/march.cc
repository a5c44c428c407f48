// SPDX-License-Identifier: GPL-2.0-or-later
#include "memcheck/march.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "shim/base/error.h"

namespace kz::memcheck {
namespace {

constexpr std::array<NamedMarch, 7> table = {{
    {"MATS+", "⇕w0;⇑r0w1;⇓r1w0", "Abadir and Reghbati 1983"},
    {"C-", "⇕w0;⇑r0w1;⇑r1w0;⇓r0w1;⇓r1w0;⇕r0", "van de Goor 1991"},
    {"PMOVI", "⇓w0;⇑r0w1r1;⇑r1w0r0;⇓r0w1r1;⇓r1w0r0", "de Jonge and Smeulders 1976"},
    {"LR", "⇕w0;⇓r0w1;⇑r1w0r0w1;⇑r1w0;⇑r0w1r1w0;⇑r0", "van de Goor et al. 1996"},
    {"SS", "⇕w0;⇑r0r0w0r0w1;⇑r1r1w1r1w0;⇓r0r0w0r0w1;⇓r1r1w1r1w0;⇕r0", "Hamdioui et al. 2002"},
    {"SL", "⇕w0;⇑r0r0w1w1r1r1w0w0r0w1;⇑r1r1w0w0r0r0w1w1r1w0;⇓r0r0w1w1r1r1w0w0r0w1;⇓r1r1w0w0r0r0w1w1r1w0",
     "Hamdioui et al. 2003"},
    {"retention", "⇕w0;Del;⇕r0w1;Del;⇕r1", "Dekker et al. 1990"},
}};

constexpr std::array<uint64_t, 7> stripes = {
    0,
    0x5555555555555555,
    0x3333333333333333,
    0x0f0f0f0f0f0f0f0f,
    0x00ff00ff00ff00ff,
    0x0000ffff0000ffff,
    0x00000000ffffffff,
};

// Takes one sign off the front of the text, with its UTF-8 or ASCII spelling.
std::optional<Order> take_order(std::string_view& text) {
  static constexpr std::array<std::pair<std::string_view, Order>, 6> signs = {{{"⇑", Order::up},
                                                                               {"⇓", Order::down},
                                                                               {"⇕", Order::either},
                                                                               {"^", Order::up},
                                                                               {"v", Order::down},
                                                                               {"*", Order::either}}};
  for (auto [sign, order] : signs) {
    if (!text.starts_with(sign)) continue;
    text.remove_prefix(sign.size());
    return order;
  }
  return std::nullopt;
}

std::optional<MarchOp> take_op(std::string_view& text) {
  static constexpr std::array<std::pair<std::string_view, MarchOp>, 4> words = {
      {{"w0", MarchOp::w0}, {"w1", MarchOp::w1}, {"r0", MarchOp::r0}, {"r1", MarchOp::r1}}};
  for (auto [word, op] : words) {
    if (!text.starts_with(word)) continue;
    text.remove_prefix(2);
    return op;
  }
  return std::nullopt;
}

class Parser {
 public:
  Parser(std::string_view name, std::string_view text) : whole_(text), rest_(text) { test_.name = name; }

  MarchTest parse() {
    while (skip_decoration(), !rest_.empty()) {
      if (rest_.starts_with("Del")) {
        rest_.remove_prefix(3);
        test_.elements.push_back({.order = Order::either, .ops = {}, .pause = true});
      } else {
        element();
      }
    }
    if (test_.elements.empty()) fail("has no elements");
    return std::move(test_);
  }

 private:
  void element() {
    auto order = take_order(rest_);
    if (!order) fail("expects an order sign (⇑ ⇓ ⇕, or ^ v *)");
    MarchElement e{.order = *order, .ops = {}};
    while (skip_decoration(), true) {
      auto op = take_op(rest_);
      if (!op) break;
      check_state(*op);
      e.ops.push_back(*op);
    }
    if (e.ops.empty()) fail("has an element without operations");
    if (e.ops.size() > KZ_MARCH_OPS) fail("has an element with too many operations");
    test_.elements.push_back(std::move(e));
  }

  // Every cell ends an element in one known state, so a read that cannot succeed is a typing error.
  void check_state(MarchOp op) {
    int value = op == MarchOp::w1 || op == MarchOp::r1;
    bool write = op == MarchOp::w0 || op == MarchOp::w1;
    if (!write && state_ != value) fail("reads what was not written there");
    state_ = value;
  }

  void skip_decoration() {
    while (!rest_.empty() && std::string_view(" ,;(){}\t\n").find(rest_.front()) != std::string_view::npos)
      rest_.remove_prefix(1);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error({.code = Errc::usage,
                 .operation = "parse march test",
                 .target = test_.name,
                 .detail = fmt::format("byte {} of \"{}\" {}", whole_.size() - rest_.size(), whole_, what)});
  }

  std::string_view whole_, rest_;
  MarchTest test_;
  int state_ = -1;
};

}  // namespace

unsigned MarchTest::ops_per_cell() const {
  size_t n = 0;
  for (const auto& e : elements) n += e.ops.size();
  return static_cast<unsigned>(n);
}

MarchTest parse_march(std::string_view name, std::string_view notation) {
  return Parser(name, notation).parse();
}

std::string to_string(const MarchElement& element) {
  if (element.pause) return "Del";
  static constexpr std::array<std::string_view, 4> words = {"w0", "w1", "r0", "r1"};
  std::string s = element.order == Order::up ? "⇑" : element.order == Order::down ? "⇓" : "⇕";
  for (MarchOp op : element.ops) s += words.at(static_cast<size_t>(op));
  return s;
}

std::string to_string(const MarchTest& test) {
  std::string s;
  for (const auto& e : test.elements) {
    if (!s.empty()) s += ';';
    s += to_string(e);
  }
  return s;
}

std::span<const NamedMarch> march_table() { return table; }

MarchTest march(std::string_view name) {
  for (const auto& row : table)
    if (row.name == name) return parse_march(row.name, row.notation);
  throw Error({.code = Errc::usage,
               .operation = "look up march test",
               .target = std::string(name),
               .detail = "no such test"});
}

std::span<const uint64_t> word_backgrounds() { return stripes; }

}  // namespace kz::memcheck
