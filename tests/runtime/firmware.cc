// SPDX-License-Identifier: GPL-2.0-or-later
// Firmware images: good ones are taken and become active at the reset, damaged ones are refused, work goes on
// meanwhile.
#include <algorithm>
#include <cstring>
#include <functional>

#include "shim/uapi/kz_regs.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/pattern.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr uint32_t kPayload = 48 * 1024;
constexpr uint64_t kImage = sizeof(kz_fw_header) + kPayload;

void seal(kz_fw_header& h) { h.header_crc32c = crc32c(std::as_bytes(std::span(&h, 1)).first(16)); }

void write_image(std::span<std::byte> out, uint32_t version, uint64_t seed) {
  auto payload = out.subspan(sizeof(kz_fw_header), kPayload);
  fill_payload(payload, {seed});
  kz_fw_header h{.magic = KZ_FW_MAGIC,
                 .version = version,
                 .length = kPayload,
                 .crc32c = crc32c(payload),
                 .header_crc32c = 0,
                 .rsvd = {}};
  seal(h);
  std::memcpy(out.data(), &h, sizeof h);
}

kz_fw_header& header(HostArea& image) { return *reinterpret_cast<kz_fw_header*>(image.bytes().data()); }

bool pending(Device& device) { return device.read_register(KZ_REG_STATUS) & KZ_STATUS_FW_PENDING; }

}  // namespace

KZ_TEST(firmware, update,
        {.meaning = "a good image is taken, waits for the firmware reset, and is then the one that runs",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::fw_update, Cap::registers, Cap::reset_firmware},
         .limit = 20s}) {
  const uint32_t old = device().read_register(KZ_REG_FW_VERSION);
  HostArea image(device(), {.size = {kImage}});
  expect_reset();
  for (uint32_t version : {old + 1, old}) {
    write_image(image.bytes(), version, seed());
    {
      auto queue = open_queue(device().root_context());
      before_danger("update the firmware to " + firmware_text(version));
      const Completion done = run_one(*queue, {cmd::FwUpdate{image.iova(), kImage}});
      if (done.status != Status::ok) {
        evidence(ev::firmware, {{"what", "image_refused"}, {"got", to_string(done.status)}, {"want", "ok"}});
        FAIL() << "a good image was refused: " << to_string(done.status);
      }
    }
    EXPECT_TRUE(pending(device())) << "an accepted image does not wait";
    device().reset(ResetKind::firmware, Deadline(caps().limits.ready_timeout + 3s));
    EXPECT_FALSE(pending(device()));
    const uint32_t now = device().read_register(KZ_REG_FW_VERSION);
    if (now != version) {
      evidence(ev::firmware,
               {{"what", "version"}, {"got", firmware_text(now)}, {"want", firmware_text(version)}});
      ADD_FAILURE() << "after the update the version is " << firmware_text(now) << ", not "
                    << firmware_text(version);
    }
    // Buffers opened before the reset stay mapped; queues do not.
  }
}

KZ_TEST(firmware, damaged_images,
        {.meaning = "images with a wrong magic, length or checksum are refused and never become active",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::fw_update, Cap::registers}}) {
  HostArea image(device(), {.size = {kImage}});
  auto queue = open_queue(device().root_context());
  const uint32_t version = device().read_register(KZ_REG_FW_VERSION);
  struct Damage {
    const char* what;
    std::function<void()> apply;
    uint64_t len = kImage;
  };
  auto flip = [&](uint64_t offset) { image.bytes()[offset] ^= std::byte{0x10}; };
  const Damage all[] = {
      {"one flipped bit at the payload's start", [&] { flip(sizeof(kz_fw_header)); }},
      {"one flipped bit in the payload's middle", [&] { flip(kImage / 2); }},
      {"one flipped bit at the payload's end", [&] { flip(kImage - 1); }},
      {"a wrong payload checksum", [&] { header(image).crc32c ^= 1, seal(header(image)); }},
      {"a wrong header checksum", [&] { header(image).header_crc32c ^= 1; }},
      {"a wrong magic", [&] { header(image).magic ^= 1, seal(header(image)); }},
      {"a length beyond the image", [&] { header(image).length += 4096, seal(header(image)); }},
      {"no payload", [&] { header(image).length = 0, seal(header(image)); }},
      {"an image cut short", [] {}, kImage - 100},
      {"less than a header", [] {}, 16},
      {"zeroes", [&] { std::ranges::fill(image.bytes(), std::byte{0}); }},
  };
  for (const auto& damage : all) {
    write_image(image.bytes(), version + 7, seed());
    damage.apply();
    before_danger(std::string("offer a damaged firmware image: ") + damage.what);
    const Completion done = run_one(*queue, {cmd::FwUpdate{image.iova(), damage.len}});
    if (done.status == Status::ok) {
      evidence(ev::firmware, {{"what", "bad_image_accepted"}, {"got", damage.what}, {"want", "bad_image"}});
      ADD_FAILURE() << "an image with " << damage.what << " was accepted";
    } else if (done.status != Status::bad_image && done.status != Status::bad_length) {
      ADD_FAILURE() << damage.what << ": " << report_status("FW_UPDATE", Status::bad_image, done.status);
    }
  }
  if (pending(device())) {
    evidence(ev::firmware, {{"what", "bad_image_accepted"}, {"got", "pending"}, {"want", "not pending"}});
    ADD_FAILURE() << "a damaged image waits for the next firmware reset";
  }
}

KZ_TEST(firmware, update_under_load,
        {.meaning = "commands that run while an image is taken end as they would without it",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::fw_update, Cap::registers, Cap::crc32c, Cap::hbm_alloc},
         .limit = 20s}) {
  constexpr uint64_t kBig = uint64_t{8} << 20;
  HostArea image(device(), {.size = {kImage}});
  auto root_queue = open_queue(device().root_context());
  auto context = device().create_context();
  auto job = open_queue(*context, {.order = 5});
  auto hbm = context->alloc({kBig});
  run_good(*job, {cmd::Fill{at(hbm->addr()), kBig, 0x1234567890abcdef}});
  const uint64_t want = run_good(*job, {cmd::Crc32c{at(hbm->addr()), kBig}}).result;
  auto broken = [&](const std::string& text, std::string_view how) {
    evidence(ev::firmware, {{"what", "job_broken"}, {"got", how}, {"want", "ok"}});
    ADD_FAILURE() << text;
  };
  for (int round = 0; round < 4; ++round) {
    write_image(image.bytes(), device().read_register(KZ_REG_FW_VERSION), seed());
    for (int i = 0; i < 24; ++i) job->submit({cmd::Crc32c{at(hbm->addr()), kBig}}, true);
    job->ring();
    before_danger("take a firmware image while commands run");
    const Completion done = run_one(*root_queue, {cmd::FwUpdate{image.iova(), kImage}});
    if (done.status != Status::ok && done.status != Status::busy)
      ADD_FAILURE() << report_status("FW_UPDATE", Status::ok, done.status);
    std::vector<Completion> ended;
    try {
      ended = finish(*job, 4s);
    } catch (const Error& e) {
      broken(std::string("the running job did not end: ") + e.what(), "no completion");
      throw;
    }
    for (const auto& c : ended) {
      if (c.status != Status::ok)
        broken("a running command ended with " + std::string(to_string(c.status)), to_string(c.status));
      else if (c.result != want)
        broken("a running command gave a wrong result", "wrong result");
    }
  }
}

}  // namespace kz::test
