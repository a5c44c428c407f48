// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/calls.h"

#include <fmt/format.h>

namespace kz::test {

const std::vector<CallShape>& call_shapes() {
  static const std::vector<CallShape> all = {
      {"INFO", KZ_IOC_INFO, sizeof(kz_info), 0, false, {}},
      {"CTX_CREATE", KZ_IOC_CTX_CREATE, sizeof(kz_ioc_ctx), 0, true, {}},
      {"CTX_DESTROY", KZ_IOC_CTX_DESTROY, sizeof(kz_ioc_ctx), 0, true, {}},
      {"QUEUE_CREATE", KZ_IOC_QUEUE_CREATE, sizeof(kz_ioc_queue), KZ_QUEUE_POLLED, true, {}},
      {"QUEUE_DESTROY", KZ_IOC_QUEUE_DESTROY, sizeof(kz_ioc_queue), 0, true, {}},
      {"QUEUE_RESET", KZ_IOC_QUEUE_RESET, sizeof(kz_ioc_queue), 0, true, {}},
      {"QUEUE_STAT", KZ_IOC_QUEUE_STAT, sizeof(kz_ioc_queue_stat), 0, true, {}},
      {"BUF_REGISTER",
       KZ_IOC_BUF_REGISTER,
       sizeof(kz_ioc_buf),
       KZ_BUF_DEVICE_READS | KZ_BUF_DEVICE_WRITES,
       true,
       {}},
      {"BUF_UNREGISTER", KZ_IOC_BUF_UNREGISTER, sizeof(kz_ioc_buf), 0, true, {}},
      {"HBM_ALLOC", KZ_IOC_HBM_ALLOC, sizeof(kz_ioc_hbm), 0, true, {}},
      {"HBM_FREE", KZ_IOC_HBM_FREE, sizeof(kz_ioc_hbm), 0, true, {}},
      {"HBM_QUERY", KZ_IOC_HBM_QUERY, sizeof(kz_ioc_hbm), 0, true, {}},
      {"SUBMIT", KZ_IOC_SUBMIT, sizeof(kz_ioc_submit), 0, true, {}},
      {"REAP", KZ_IOC_REAP, sizeof(kz_ioc_reap), 0, true, {}},
      {"RESET", KZ_IOC_RESET, sizeof(kz_ioc_reset), 0, true, {offsetof(kz_ioc_reset, rsvd)}},
      {"FW_UPDATE", KZ_IOC_FW_UPDATE, sizeof(kz_ioc_fw), KZ_FW_ACTIVATE, true, {offsetof(kz_ioc_fw, rsvd)}},
      {"ECC_INJECT", KZ_IOC_ECC_INJECT, sizeof(kz_ioc_ecc), 0, true, {offsetof(kz_ioc_ecc, rsvd)}},
      {"TELEMETRY", KZ_IOC_TELEMETRY, sizeof(kz_ioc_telemetry), 0, true, {}},
      {"REG_READ", KZ_IOC_REG_READ, sizeof(kz_ioc_reg), 0, true, {}},
      {"REG_WRITE", KZ_IOC_REG_WRITE, sizeof(kz_ioc_reg), 0, true, {}},
  };
  return all;
}

void expect_errno(const std::string& what, int got, std::initializer_list<int> wanted, const char* file,
                  int line) {
  if (std::ranges::find(wanted, got) != wanted.end()) return;
  wrong("errno",
        fmt::format("{} ended with {} ({}), wanted {} ({})", what, got, got < 0 ? std::strerror(-got) : "ok",
                    *wanted.begin(), std::strerror(-*wanted.begin())),
        file, line);
}

Target abi_target() {
  Target t = find_target();
  need_our_calls(t);
  return t;
}

}  // namespace kz::test
