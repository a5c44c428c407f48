// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/uri.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "shim/base/error.h"
#include "shim/base/text.h"

namespace kz {
namespace {

constexpr std::string_view schemes[] = {"softtpu", "vfio-user", "pci", "dump", "vfio", "dev", "adapter"};

void parse_options(std::string_view rest, Uri& uri) {
  while (!rest.empty()) {
    auto comma = rest.find(',');
    std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    auto equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0)
      throw Error({Errc::usage, "read device", "'" + uri.text + "'",
                   fmt::format("'{}' is not name=value", item), "", 0});
    uri.options[std::string(item.substr(0, equals))] = item.substr(equals + 1);
  }
}

}  // namespace

Uri parse_uri(std::string_view text) {
  Uri uri;
  uri.text = text;
  auto colon = text.find(':');
  uri.scheme = text.substr(0, colon);
  if (colon == std::string_view::npos ||
      std::find(std::begin(schemes), std::end(schemes), uri.scheme) == std::end(schemes)) {
    auto near = *std::min_element(std::begin(schemes), std::end(schemes), [&](auto a, auto b) {
      return edit_distance(uri.scheme, a) < edit_distance(uri.scheme, b);
    });
    bool looks_like_bdf = text.find('.') != std::string_view::npos &&
                          text.find(':') != std::string_view::npos &&
                          text.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos;
    std::string remedy = looks_like_bdf
                             ? fmt::format("write pci:{}", text)
                             : fmt::format("did you mean {}:? known: {}:", near, fmt::join(schemes, ":, "));
    throw Error({Errc::usage, "read device", "'" + uri.text + "'", "no such scheme", remedy, 0});
  }
  std::string_view rest = text.substr(colon + 1);
  if (uri.scheme == "softtpu") {
    parse_options(rest, uri);
    return uri;
  }
  // A path may hold commas only before the first "name=value".
  auto comma = rest.find(',');
  while (comma != std::string_view::npos && rest.find('=', comma) == std::string_view::npos)
    comma = std::string_view::npos;
  uri.path = rest.substr(0, comma);
  if (comma != std::string_view::npos) parse_options(rest.substr(comma + 1), uri);
  if (uri.path.empty())
    throw Error({Errc::usage, "read device", "'" + uri.text + "'", "nothing stands after the scheme",
                 uri.scheme == "pci" ? "such as pci:0000:01:00.0" : "name the socket, file or node", 0});
  return uri;
}

void only_options(const Uri& uri, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : uri.options)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw Error(
          {Errc::usage, "read device", "'" + uri.text + "'", "unknown option " + name,
           known.size() == 0 ? uri.scheme + ": takes none" : fmt::format("known: {}", fmt::join(known, ", ")),
           0});
}

}  // namespace kz
