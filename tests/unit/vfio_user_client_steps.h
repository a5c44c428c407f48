// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <functional>
#include <vector>

#include "shim/vfio_user/client.h"
#include "tests/unit/vfio_user_client_peer.h"

namespace kz::vfio_user::peer {

// Every request of the client, each with what a good server would say.
struct Step {
  const char* what;
  std::function<void(Client&)> call;
};
inline std::vector<Step> all_steps() {
  static std::array<std::byte, 64> memory;
  static uint32_t word;
  static Fd event = make_eventfd(true);
  auto raw = std::as_writable_bytes(std::span(&word, 1));
  return {{"device info", [](Client& c) { c.device_info(); }},
          {"region info", [](Client& c) { c.region_info(0); }},
          {"irq info", [](Client& c) { c.irq_info(2); }},
          {"doorbells", [](Client& c) { c.region_io_fds(0); }},
          {"read", [raw](Client& c) { c.region_read(0, 0, raw); }},
          {"write", [raw](Client& c) { c.region_write(0, 0, raw); }},
          {"set irqs",
           [](Client& c) {
             int fd = event.get();
             c.set_irq_eventfds(2, 0, std::span(&fd, 1));
           }},
          {"unset irqs", [](Client& c) { c.unset_irqs(2); }},
          {"map",
           [](Client& c) {
             c.dma_map({0x1000, memory, true, true}, -1, 0);
           }},
          {"unmap", [](Client& c) { c.dma_unmap(0x1000, 64); }},
          {"reset", [](Client& c) { c.reset(200ms); }}};
}

}  // namespace kz::vfio_user::peer
