// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/command.h"

#include <fmt/format.h>

namespace kz {

std::string_view to_string(Dtype t) {
  switch (t) {
    case Dtype::s8:
      return "s8";
    case Dtype::bf16:
      return "bf16";
    case Dtype::f16:
      return "f16";
    case Dtype::f32:
      return "f32";
  }
  return "unknown type";
}

std::string_view to_string(Status s) {
  switch (s) {
    case Status::ok:
      return "OK";
    case Status::bad_opcode:
      return "BAD_OPCODE";
    case Status::bad_field:
      return "BAD_FIELD";
    case Status::bad_length:
      return "BAD_LENGTH";
    case Status::misaligned:
      return "MISALIGNED";
    case Status::hbm_fault:
      return "HBM_FAULT";
    case Status::dma_fault:
      return "DMA_FAULT";
    case Status::no_memory:
      return "NO_MEMORY";
    case Status::no_context:
      return "NO_CONTEXT";
    case Status::denied:
      return "DENIED";
    case Status::aborted:
      return "ABORTED";
    case Status::timeout:
      return "TIMEOUT";
    case Status::poison:
      return "POISON";
    case Status::bad_image:
      return "BAD_IMAGE";
    case Status::busy:
      return "BUSY";
    case Status::internal:
      return "INTERNAL";
    case Status::lost:
      return "LOST";
  }
  return "UNKNOWN";
}

namespace {
std::string opcode_name(uint8_t opcode) {
  switch (opcode) {
    case KZ_OP_NOP:
      return "NOP";
    case KZ_OP_COPY:
      return "COPY";
    case KZ_OP_FILL:
      return "FILL";
    case KZ_OP_CRC32C:
      return "CRC32C";
    case KZ_OP_MARCH:
      return "MARCH";
    case KZ_OP_MATMUL:
      return "MATMUL";
    case KZ_OP_VECTOR:
      return "VECTOR";
    case KZ_OP_FENCE:
      return "FENCE";
    case KZ_OP_TIMESTAMP:
      return "TIMESTAMP";
    case KZ_OP_ABORT:
      return "ABORT";
    case KZ_OP_CTX_CREATE:
      return "CTX_CREATE";
    case KZ_OP_CTX_DESTROY:
      return "CTX_DESTROY";
    case KZ_OP_HBM_ALLOC:
      return "HBM_ALLOC";
    case KZ_OP_HBM_FREE:
      return "HBM_FREE";
    case KZ_OP_HBM_QUERY:
      return "HBM_QUERY";
    case KZ_OP_HBM_STAT:
      return "HBM_STAT";
    case KZ_OP_FW_UPDATE:
      return "FW_UPDATE";
    case KZ_OP_ECC_INJECT:
      return "ECC_INJECT";
    default:
      return fmt::format("opcode {:#04x}", opcode);
  }
}

struct Namer {
  std::string operator()(const cmd::Nop&) const { return "NOP"; }
  std::string operator()(const cmd::Copy&) const { return "COPY"; }
  std::string operator()(const cmd::Fill&) const { return "FILL"; }
  std::string operator()(const cmd::Crc32c&) const { return "CRC32C"; }
  std::string operator()(const cmd::March&) const { return "MARCH"; }
  std::string operator()(const cmd::Matmul&) const { return "MATMUL"; }
  std::string operator()(const cmd::Vector&) const { return "VECTOR"; }
  std::string operator()(const cmd::Fence&) const { return "FENCE"; }
  std::string operator()(const cmd::Timestamp&) const { return "TIMESTAMP"; }
  std::string operator()(const cmd::Abort&) const { return "ABORT"; }
  std::string operator()(const cmd::EccInject&) const { return "ECC_INJECT"; }
  std::string operator()(const cmd::FwUpdate&) const { return "FW_UPDATE"; }
  std::string operator()(const cmd::Raw& w) const { return opcode_name(w.bytes.opcode); }
};
}  // namespace

std::string name_of(const Work& work) { return std::visit(Namer{}, work); }

}  // namespace kz
