// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "shim/base/error.h"

namespace kz::softtpu {

using vfio_user::Header;

Session::Session(Device& device, Channel& channel) : device_(device), channel_(channel) {
  device_.dma().remote().attach(&channel_, vfio_user::max_data);
}

Session::~Session() {
  unmapping_.reset();
  device_.dma().remote().detach();
  if (negotiated_) device_.client_left();  // else it has touched nothing
}

void Session::receive(std::span<const std::byte> bytes, std::vector<Fd> fds) {
  while (!bytes.empty()) {
    auto space = room();
    size_t n = std::min(space.size(), bytes.size());
    std::copy_n(bytes.begin(), n, space.begin());
    bytes = bytes.subspan(n);
    received(n, std::exchange(fds, {}));
  }
}

void Session::received(size_t n, std::vector<Fd> fds) {
  auto message = stream_.took(n, std::move(fds));
  if (!message) return;
  if (message->is_reply()) {
    device_.dma().remote().on_reply(std::move(*message));
    return;
  }
  backlog_bytes_ += message->payload.size();
  commands_.push_back(std::move(*message));
  pump();
}

void Session::resume() {
  resume_unmap();
  pump();
}

void Session::resume_unmap() {
  if (!unmapping_ || !device_.dma().quiet(unmapping_->dying)) return;
  Unmapping done = std::move(*unmapping_);
  unmapping_.reset();
  done.dying.clear();  // gone from our address space before the client hears of it
  Reply reply;
  append(reply.payload, done.request);
  answer(done.message, reply);
}

void Session::pump() {
  while (!unmapping_ && !commands_.empty()) {
    Message message = std::move(commands_.front());
    commands_.pop_front();
    backlog_bytes_ -= message.payload.size();
    handle(std::move(message));
  }
}

void Session::handle(Message message) {
  if (!negotiated_ && message.header.command != vfio_user::cmd_version)
    throw Error({Errc::protocol,
                 "negotiate",
                 "vfio-user client",
                 fmt::format("command {} before VERSION", message.header.command),
                 {}});
  std::optional<Reply> reply;
  try {
    reply = dispatch(message);
  } catch (const std::bad_alloc&) {
    reply = failed(ENOMEM);
  }
  if (!reply) return;
  answer(message, *reply);
  if (!negotiated_)
    throw Error({Errc::protocol, "negotiate", "vfio-user client", "no version in common", {}});
}

void Session::answer(const Message& message, const Reply& reply) {
  if (!message.wants_reply()) return;
  Header header = message.header;
  header.flags = vfio_user::flag_reply;
  header.error = 0;
  if (reply.error != 0) {
    header.flags |= vfio_user::flag_error;
    header.error = static_cast<uint32_t>(reply.error);
    header.size = sizeof header;
    channel_.send(header, {}, {}, {});
    return;
  }
  header.size = static_cast<uint32_t>(sizeof header + reply.payload.size());
  channel_.send(header, reply.payload, {}, reply.fds);
}

std::optional<Session::Reply> Session::dispatch(Message& m) {
  // A descriptor where none belongs is a client that is out of step.
  bool takes_fds = m.header.command == vfio_user::cmd_dma_map || m.header.command == vfio_user::cmd_set_irqs;
  if (!takes_fds && !m.fds.empty()) return failed(EINVAL);
  switch (m.header.command) {
    case vfio_user::cmd_version:
      return on_version(m);
    case vfio_user::cmd_dma_map:
      return on_dma_map(m);
    case vfio_user::cmd_dma_unmap:
      return on_dma_unmap(m);
    case vfio_user::cmd_get_info:
      return on_get_info(m);
    case vfio_user::cmd_get_region_info:
      return on_region_info(m);
    case vfio_user::cmd_get_region_io_fds:
      return on_region_io_fds(m);
    case vfio_user::cmd_get_irq_info:
      return on_irq_info(m);
    case vfio_user::cmd_set_irqs:
      return on_set_irqs(m);
    case vfio_user::cmd_region_read:
      return on_region_read(m);
    case vfio_user::cmd_region_write:
      return on_region_write(m);
    case vfio_user::cmd_region_write_multi:
      return on_region_write_multi(m);
    case vfio_user::cmd_device_reset:
      return on_device_reset(m);
    default:
      return failed(ENOTSUP);
  }
}

namespace {

// The text behind the version numbers as a JSON object with its "capabilities" checked to be an object.
// Nothing: malformed.
std::optional<nlohmann::json> parse_capabilities(std::span<const std::byte> text) {
  std::string_view view(reinterpret_cast<const char*>(text.data()), text.size());
  if (view.empty()) return nlohmann::json::object();
  if (view.back() != '\0') return std::nullopt;
  view = view.substr(0, view.find('\0'));
  if (view.empty()) return nlohmann::json::object();
  if (std::count_if(view.begin(), view.end(), [](char c) { return c == '[' || c == '{'; }) > 64)
    return std::nullopt;
  auto all = nlohmann::json::parse(view, nullptr, false);
  if (!all.is_object()) return std::nullopt;
  auto caps = all.value("capabilities", nlohmann::json::object());
  return caps.is_object() ? std::optional(caps) : std::nullopt;
}

// A number of a capability, or the default. Nothing: not a sane number.
std::optional<uint64_t> number(const nlohmann::json& caps, const char* name, uint64_t fallback) {
  auto it = caps.find(name);
  if (it == caps.end()) return fallback;
  if (!it->is_number_unsigned()) return std::nullopt;
  return it->get<uint64_t>();
}

}  // namespace

Session::Reply Session::on_version(Message& m) {
  auto version = m.as<vfio_user::Version>();
  if (!version || negotiated_) return failed(EINVAL);
  auto caps = parse_capabilities(std::span(m.payload).subspan(sizeof *version));
  if (!caps) return failed(EINVAL);
  auto max_fds = number(*caps, "max_msg_fds", 1),
       max_data = number(*caps, "max_data_xfer_size", vfio_user::max_data);
  if (!max_fds || !max_data || *max_data == 0 || version->major != vfio_user::version_major)
    return failed(EINVAL);
  client_max_fds_ = static_cast<uint32_t>(std::min<uint64_t>(*max_fds, vfio_user::max_fds));
  device_.dma().remote().attach(&channel_, static_cast<uint32_t>(std::min<uint64_t>(*max_data, UINT32_MAX)));
  negotiated_ = true;

  const nlohmann::json ours = {{"max_msg_fds", vfio_user::max_fds},
                               {"max_data_xfer_size", vfio_user::max_data},
                               {"max_dma_maps", DmaTable::max_maps},
                               {"pgsizes", 4096},
                               {"write_multiple", true}};
  nlohmann::json agreed = nlohmann::json::object();  // a subset of what was proposed
  for (const auto& [name, value] : ours.items())
    if (caps->contains(name)) agreed[name] = value;
  Reply reply;
  append(reply.payload,
         vfio_user::Version{vfio_user::version_major, std::min(version->minor, vfio_user::version_minor)});
  std::string text = nlohmann::json{{"capabilities", agreed}}.dump();
  auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  reply.payload.insert(reply.payload.end(), bytes.begin(), bytes.end());
  return reply;
}

Session::Reply Session::on_device_reset(Message& m) {
  if (!m.payload.empty()) return failed(EINVAL);
  device_.bus_reset();
  return {};
}

}  // namespace kz::softtpu
