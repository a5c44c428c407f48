// SPDX-License-Identifier: GPL-2.0-or-later
// Contexts, allocation and error injection.
#include "tools/softtpu/exec_core.h"

namespace kz::softtpu {
namespace {

Outcome answer(const Allocator::Answer& a) {
  Outcome o = ended(a.status, a.result);
  if (a.hang) o.kind = Outcome::Kind::hang;
  return o;
}

}  // namespace

Outcome exec_context(Core& core, const kz_cmd& cmd, const Requester&) {
  if (cmd.opcode == KZ_OP_CTX_CREATE) return answer(core.memory.create_context());
  uint32_t context = cmd.u.ctx.ctx;
  if (context == 0 || !core.memory.exists(context)) return ended(KZ_ST_NO_CONTEXT);
  std::function<void(uint32_t)> stop_queues;
  {
    std::lock_guard lock(core.callback_mutex);
    stop_queues = core.context_gone;
  }
  if (stop_queues) stop_queues(context);
  return answer(core.memory.destroy_context(context));
}

Outcome exec_memory(Core& core, const kz_cmd& cmd, const Requester& who) {
  const kz_alloc& a = cmd.u.alloc;
  if (cmd.opcode == KZ_OP_HBM_STAT) {
    core.memory.retire_bad_pages();
    Allocator::Stat stat = core.memory.stat();
    return ended(KZ_ST_OK, stat.free_pages | stat.retired_pages << 32);
  }
  uint32_t context = a.ctx == 0 ? who.context : a.ctx;
  if (context != who.context && who.context != 0) return ended(KZ_ST_DENIED);
  switch (cmd.opcode) {
    case KZ_OP_HBM_ALLOC:
      if (a.addr != 0) return ended(KZ_ST_BAD_FIELD);
      return answer(core.memory.alloc(context, a.len));
    case KZ_OP_HBM_FREE:
      if (a.len != 0) return ended(KZ_ST_BAD_FIELD);
      return answer(core.memory.free(context, a.addr));
    default:
      if (a.len != 0) return ended(KZ_ST_BAD_FIELD);
      return answer(core.memory.query(context, a.addr));
  }
}

Outcome exec_ecc_inject(Core& core, const kz_cmd& cmd, const Requester&) {
  const kz_ecc& e = cmd.u.ecc;
  if (e.kind > KZ_ECC_UE) return ended(KZ_ST_BAD_FIELD);
  if (e.addr % 8 != 0) return ended(KZ_ST_MISALIGNED);
  if (e.addr >= core.hbm.size()) return ended(KZ_ST_HBM_FAULT);
  core.hbm.ecc().inject(e.addr, e.kind == KZ_ECC_CE ? Ecc::Kind::correctable : Ecc::Kind::uncorrectable);
  return ended(KZ_ST_OK);
}

}  // namespace kz::softtpu
