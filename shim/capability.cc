// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/capability.h"

namespace kz {
namespace {

struct Entry {
  Cap cap;
  std::string_view name;
};
constexpr Entry table[] = {
    {Cap::config_read, "config_read"},
    {Cap::config_write, "config_write"},
    {Cap::config_extended, "config_extended"},
    {Cap::sysfs, "sysfs"},
    {Cap::node, "node"},
    {Cap::registers, "registers"},
    {Cap::raw_registers, "raw_registers"},
    {Cap::telemetry, "telemetry"},
    {Cap::firmware_version, "firmware_version"},
    {Cap::heartbeat, "heartbeat"},
    {Cap::interrupts, "interrupts"},
    {Cap::queues, "queues"},
    {Cap::contexts, "contexts"},
    {Cap::dma, "dma"},
    {Cap::dma_sg, "dma_sg"},
    {Cap::dma_at, "dma_at"},
    {Cap::raw_commands, "raw_commands"},
    {Cap::abort, "abort"},
    {Cap::timestamp, "timestamp"},
    {Cap::fence, "fence"},
    {Cap::hbm_alloc, "hbm_alloc"},
    {Cap::hbm_physical, "hbm_physical"},
    {Cap::aperture, "aperture"},
    {Cap::crc32c, "crc32c"},
    {Cap::march, "march"},
    {Cap::vector, "vector"},
    {Cap::matmul_s8, "matmul_s8"},
    {Cap::matmul_bf16, "matmul_bf16"},
    {Cap::matmul_f16, "matmul_f16"},
    {Cap::matmul_f32, "matmul_f32"},
    {Cap::ecc, "ecc"},
    {Cap::ecc_inject, "ecc_inject"},
    {Cap::fw_update, "fw_update"},
    {Cap::watchdog, "watchdog"},
    {Cap::reset_queue, "reset_queue"},
    {Cap::reset_function, "reset_function"},
    {Cap::reset_device, "reset_device"},
    {Cap::reset_firmware, "reset_firmware"},
};

}  // namespace

std::string_view to_string(Cap cap) {
  for (const Entry& e : table)
    if (e.cap == cap) return e.name;
  return "unknown";
}

std::optional<Cap> parse_cap(std::string_view name) {
  for (const Entry& e : table)
    if (e.name == name) return e.cap;
  return std::nullopt;
}

}  // namespace kz
