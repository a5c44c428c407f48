// SPDX-License-Identifier: GPL-2.0-or-later
// FW_UPDATE: an image waits for the next firmware reset when its header and payload hold.
#include <cstddef>
#include <cstring>

#include "tools/softtpu/exec_core.h"
#include "tools/softtpu/exec_crc32c.h"

namespace kz::softtpu {
namespace {

bool sound_header(const kz_fw_header& h, uint64_t len) {
  for (uint8_t b : h.rsvd)
    if (b != 0) return false;
  auto front = std::as_bytes(std::span(&h, 1)).first(offsetof(kz_fw_header, header_crc32c));
  return h.magic == KZ_FW_MAGIC && h.version != 0 && h.length == len - sizeof h &&
         h.header_crc32c == crc32c(0, front);
}

// One update at a time.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& busy) : busy_(busy), mine_(!busy.exchange(true)) {}
  ~Turn() {
    if (mine_) busy_ = false;
  }
  bool mine() const { return mine_; }

 private:
  std::atomic<bool>& busy_;
  bool mine_;
};

// Fault F08: the update stops the engine of every queue that was at work.
void break_jobs(Core& core, uint16_t updater) {
  if (core.faults.due(Row::F08) == nullptr) return;
  uint64_t broken = 0;
  for (uint16_t q = 0; q < 64; ++q)
    if (q != updater && core.busy.recent(q, std::chrono::seconds(1))) broken |= uint64_t{1} << q;
  core.broken_by_update |= broken;
}

}  // namespace

Outcome exec_fw_update(Core& core, const kz_cmd& cmd, const Requester& who) {
  const kz_copy& c = cmd.u.copy;
  if (c.src_space != KZ_SP_HOST || c.dst_space != 0 || c.dst != 0 || c.src_sges != 0 || c.dst_sges != 0)
    return ended(KZ_ST_BAD_FIELD);
  if (uint16_t s = check_length(c.len); s != KZ_ST_OK) return ended(s);
  if (c.len < sizeof(kz_fw_header)) return ended(KZ_ST_BAD_LENGTH);
  if (c.src + (c.len - 1) < c.src) return ended(KZ_ST_DMA_FAULT);
  Turn turn(core.fw.updating);
  if (!turn.mine()) return ended(KZ_ST_BUSY);
  std::vector<std::byte> image(c.len);
  for (uint64_t done = 0; done < c.len; done += Core::chunk) {
    if (cancelled(who)) return ended(KZ_ST_ABORTED);
    auto piece = std::span(image).subspan(done, std::min<uint64_t>(Core::chunk, c.len - done));
    if (!core.bus.read(c.src + done, piece)) return ended(KZ_ST_DMA_FAULT);
  }
  core.dma_bytes += c.len;
  kz_fw_header header;
  std::memcpy(&header, image.data(), sizeof header);
  bool sound =
      sound_header(header, c.len) && header.crc32c == crc32c(0, std::span(image).subspan(sizeof header));
  if (!sound && core.faults.due(Row::F21) == nullptr) return ended(KZ_ST_BAD_IMAGE);
  core.fw.pending = header.version;
  break_jobs(core, who.queue);
  return ended(KZ_ST_OK);
}

}  // namespace kz::softtpu
