// SPDX-License-Identifier: GPL-2.0-or-later
// What a client sends to softtpu: any bytes, in pieces. A VERSION message goes first, so that what follows gets past it.
#include <cstring>
#include <string_view>

#include "shim/base/error.h"
#include "shim/vfio_user/wire.h"
#include "tools/softtpu/session.h"

namespace {

using namespace kz;

struct Sink final : softtpu::Channel {
  bool send(const vfio_user::Header&, std::span<const std::byte>, std::span<const std::byte>, std::span<const int>) override {
    return true;
  }
};

std::vector<std::byte> version_message() {
  constexpr std::string_view json = R"({"capabilities":{"max_msg_fds":8}})";
  vfio_user::Version version{vfio_user::version_major, vfio_user::version_minor};
  vfio_user::Header header{1, vfio_user::cmd_version, static_cast<uint32_t>(sizeof header + sizeof version + json.size() + 1), 0, 0};
  std::vector<std::byte> out(header.size);
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, &version, sizeof version);
  std::memcpy(out.data() + sizeof header + sizeof version, json.data(), json.size());
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static softtpu::FaultBoard faults;
  static softtpu::Device device({.engine = {.hbm_bytes = uint64_t{64} << 20}}, faults);
  Sink sink;
  softtpu::Session session(device, sink);
  try {
    session.receive(version_message(), {});
    auto bytes = std::as_bytes(std::span(data, size));
    for (size_t at = 0, piece = 1; at < bytes.size(); at += piece, piece = piece % 61 + 7)
      session.receive(bytes.subspan(at, std::min(piece, bytes.size() - at)), {});
  } catch (const Error&) {  // the client is to be dropped
  }
  return 0;
}
