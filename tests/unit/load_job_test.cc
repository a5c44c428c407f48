// SPDX-License-Identifier: GPL-2.0-or-later
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "shim/base/error.h"
#include "shim/load/arrivals.h"
#include "shim/load/job.h"
#include "shim/load/payload.h"

namespace kz::load {
namespace {

using ::testing::HasSubstr;

// What parse_plan() says of a text that it refuses.
std::string refusal(const std::string& text) {
  try {
    parse_plan(text, "x.load");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::usage);
    return e.what();
  }
  return "";
}

TEST(load_job, global_keys_hold_for_every_job_unless_it_has_its_own) {
  Plan plan = parse_plan(
      "# two jobs\n[global]\ntime = 3s\nrate=20k\ndevice=softtpu:hbm=64M,irq=msi\n\n"
      "[in]\nmix=copy-in:3,nop\nsize=512-64K ; a range\n[out]\r\nmix = copy-out\r\ndevice=softtpu:serial=7\n"
      "time=250ms\nloop=closed\ndepth=4\n",
      "x.load");
  ASSERT_EQ(plan.jobs.size(), 2u);
  const Job &in = plan.jobs[0], &out = plan.jobs[1];
  EXPECT_EQ(in.name, "in");
  EXPECT_EQ(in.time, 3s);
  EXPECT_EQ(in.rate, 20'000);
  EXPECT_EQ(in.devices, std::vector<std::string>{"softtpu:hbm=64M,irq=msi"});
  EXPECT_EQ(in.mix[static_cast<size_t>(Op::copy_in)], 3u);
  EXPECT_EQ(in.mix[static_cast<size_t>(Op::nop)], 1u);
  EXPECT_EQ(in.size.least, 512u);
  EXPECT_EQ(in.size.most, 65536u);
  EXPECT_TRUE(in.open_loop);
  EXPECT_EQ(out.devices, std::vector<std::string>{"softtpu:serial=7"});
  EXPECT_EQ(out.time, 250ms);
  EXPECT_FALSE(out.open_loop);
  EXPECT_EQ(out.limit(), 4u);
}

TEST(load_job, several_devices_are_several_lines) {
  Plan plan = parse_plan("[a]\nmix=nop\ndevice=softtpu:serial=1\ndevice=softtpu:serial=2\n", "x.load");
  EXPECT_EQ(plan.jobs[0].devices.size(), 2u);
}

TEST(load_job, errors_name_file_line_and_key) {
  EXPECT_THAT(refusal("[a]\nmix=nop\nratee=5\n"), HasSubstr("x.load:3"));
  EXPECT_THAT(refusal("[a]\nmix=nop\nratee=5\n"), HasSubstr("did you mean rate?"));
  EXPECT_THAT(refusal("[a]\nmix=nop\nsize=lots\n"), HasSubstr("x.load:3"));
  EXPECT_THAT(refusal("[a]\nmix=nop\nsize=lots\n"), HasSubstr("size"));
  EXPECT_THAT(refusal("[a]\nmix=nop, copy-inn:3\n"), HasSubstr("did you mean copy-in?"));
  EXPECT_THAT(refusal("[a]\nmix=nop\n\n\ntime=soon\n"), HasSubstr("x.load:5"));
  EXPECT_THAT(refusal("[a]\nmix=nop\nrate=-5\n"), HasSubstr("'-5' is no rate"));
  EXPECT_THAT(refusal("[a]\nmix=nop\nthreads=0\n"), HasSubstr("from 1 to 256"));
  EXPECT_THAT(refusal("[a]\nmix=nop\nentries=33\n"), HasSubstr("power of two"));
  EXPECT_THAT(refusal("[a]\nmix=nop\ndevice=sofftpu:\n"), HasSubstr("softtpu:"));
  EXPECT_THAT(refusal("[a]\nmix=nop\nverify=maybe\n"), HasSubstr("neither yes nor no"));
}

TEST(load_job, errors_of_a_job_name_the_line_of_its_section) {
  EXPECT_THAT(refusal("[global]\ntime=1s\n[a]\nsize=4K\n"), HasSubstr("x.load:3"));
  EXPECT_THAT(refusal("[global]\ntime=1s\n[a]\nsize=4K\n"), HasSubstr("[a]: it has no mix"));
  EXPECT_THAT(refusal("[a]\nmix=copy-in\nsize=16\n"), HasSubstr("verify=no"));
  EXPECT_THAT(refusal("[a]\nmix=nop\ndepth=64\nentries=32\n"), HasSubstr("raise entries"));
  EXPECT_THAT(refusal("[a]\nmix=nop\ndevice=softtpu:\ndevice=softtpu:\n"), HasSubstr("stands twice"));
  EXPECT_THAT(refusal("[a]\nmix=nop\ntarget=nop\n"), HasSubstr("mix belongs to a device"));
  EXPECT_THAT(refusal("[a]\ntarget=file\n"), HasSubstr("needs a path"));
}

TEST(load_job, sizes_that_do_not_fit_are_refused) {
  EXPECT_THAT(refusal("[a]\nmix=copy-in\nsize=4G\n"), HasSubstr("less than 4G"));
  EXPECT_THAT(refusal("[a]\nmix=copy-in\nsize=1K-4G\n"), HasSubstr("less than 4G"));
  EXPECT_THAT(refusal("[a]\ntarget=file:/dev/zero\nsize=2G\n"), HasSubstr("one read"));
  EXPECT_THAT(refusal("[a]\ntarget=file:/dev/zero\nsize=4G\n"), HasSubstr("4G"));
  EXPECT_EQ(refusal("[a]\ntarget=file:/dev/zero\nsize=1G\n"), "");
  EXPECT_EQ(refusal("[a]\nmix=copy-in\nsize=4095M\n"), "");
  EXPECT_EQ(refusal("[a]\nmix=alloc\nalloc-size=64K-4G\n"), "");
}

TEST(load_job, shape_errors) {
  EXPECT_THAT(refusal(""), HasSubstr("no [job]"));
  EXPECT_THAT(refusal("mix=nop\n"), HasSubstr("before any section"));
  EXPECT_THAT(refusal("[a\nmix=nop\n"), HasSubstr("closing bracket"));
  EXPECT_THAT(refusal("[a]\nmix\n"), HasSubstr("not key=value"));
  EXPECT_THAT(refusal("[a]\nmix=\n"), HasSubstr("has no value"));
  EXPECT_THAT(refusal("[a]\nmix=nop\n[a]\nmix=nop\n"), HasSubstr("two jobs [a]"));
  EXPECT_THAT(refusal("[a]\nmix=nop\n[global]\ntime=1s\n"), HasSubstr("put it first"));
  EXPECT_THAT(refusal(std::string("[a]\nmix=nop\0\n", 13)), HasSubstr("control characters"));
}

TEST(load_job, times_carry_their_unit) {
  EXPECT_EQ(parse_time("250ms"), 250ms);
  EXPECT_EQ(parse_time("1.5s"), 1500ms);
  EXPECT_EQ(parse_time("2min"), 120s);
  for (const char* bad : {"5", "ms", "-1s", "1 s", "nan s", "1e30h"})
    EXPECT_THROW(parse_time(bad), Error) << bad;
}

// As DeviceWorker and HostWorker make them: of the job and the place of the sender.
TEST(load_arrivals, jobs_and_devices_draw_their_own) {
  Job job;
  job.arrivals = Arrivals::poisson;
  std::vector<Schedule> all = {Schedule(job, {}), Schedule(job, {.job = 1}), Schedule(job, {.device = 1}),
                               Schedule(job, {.job = 1, .device = 1}), Schedule(job, {.job = 2})};
  std::set<std::chrono::nanoseconds> times;
  for (Schedule& s : all) {
    s.advance();
    times.insert(s.next());
  }
  EXPECT_EQ(times.size(), all.size());
}

Job at_rate(double rate) {
  Job job;
  job.rate = rate;
  return job;
}

TEST(load_arrivals, a_constant_rate_is_evenly_spaced_and_shared_by_senders) {
  Schedule whole(at_rate(1000), {}), even(at_rate(1000), {.senders = 2}),
      odd(at_rate(1000), {.sender = 1, .senders = 2});
  for (int i = 0; i < 100; ++i) {
    Schedule& one = i % 2 == 0 ? even : odd;
    EXPECT_EQ(whole.next(), i * 1ms);
    EXPECT_EQ(one.next(), whole.next());
    whole.advance();
    one.advance();
  }
}

TEST(load_arrivals, bursts_keep_the_rate) {
  Job job = at_rate(1000);
  job.burst = 10;
  Schedule s(job, {});
  for (int i = 0; i < 100; ++i, s.advance()) EXPECT_EQ(s.next(), (i / 10) * 10ms);
}

TEST(load_arrivals, a_ramp_begins_slowly_and_ends_at_the_rate) {
  Job job = at_rate(1000);
  job.ramp = 2s;
  Schedule s(job, {});
  uint64_t in_first_second = 0, in_second = 0, in_third = 0;
  for (; s.next() < 3s; s.advance())
    ++(s.next() < 1s ? in_first_second : s.next() < 2s ? in_second : in_third);
  EXPECT_NEAR(static_cast<double>(in_first_second), 250, 2);
  EXPECT_NEAR(static_cast<double>(in_second), 750, 2);
  EXPECT_NEAR(static_cast<double>(in_third), 1000, 2);
}

TEST(load_arrivals, poisson_gaps_have_the_mean_and_the_spread_of_an_exponential) {
  Job job = at_rate(1000);
  job.arrivals = Arrivals::poisson;
  Schedule s(job, {});
  double sum = 0, squares = 0, last = 0;
  constexpr int n = 100'000;
  for (int i = 0; i < n; ++i, s.advance()) {
    double at = std::chrono::duration<double, std::milli>(s.next()).count();
    sum += at - last;
    squares += (at - last) * (at - last);
    last = at;
  }
  double mean = sum / n;
  EXPECT_NEAR(mean, 1.0, 0.02);
  EXPECT_NEAR(squares / n - mean * mean, 1.0, 0.05);
}

TEST(load_payload, crc32c_of_the_standards_examples) {
  std::vector<std::byte> zeroes(32), ones(32, std::byte{0xff}), rising(32);
  for (size_t i = 0; i < 32; ++i) rising[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(zeroes), 0x8a9136aau);  // RFC 3720 B.4
  EXPECT_EQ(crc32c(ones), 0x62a8ab43u);
  EXPECT_EQ(crc32c(rising), 0x46dd794eu);
}

TEST(load_payload, each_damage_has_its_name) {
  PayloadTag tag{.sequence = 9, .address = 0x10000, .seed = 3, .length = 1000};
  std::vector<std::byte> good(4096);
  write_payload(good, tag);
  EXPECT_EQ(check_payload(good, tag), PayloadFault::none);
  for (size_t at : {0u, 8u, 16u, 28u, 32u, 500u, 999u})
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = good;
      bad[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_EQ(check_payload(bad, tag), PayloadFault::damaged) << at;
    }
  auto marked = good;
  mark_unwritten(std::span(marked).first(tag.length));
  EXPECT_EQ(check_payload(marked, tag), PayloadFault::not_written);
  auto want = [&](auto change) {
    PayloadTag other = tag;
    change(other);
    return check_payload(good, other);
  };
  EXPECT_EQ(want([](PayloadTag& t) { t.sequence = 10; }), PayloadFault::stale);
  EXPECT_EQ(want([](PayloadTag& t) { t.sequence = 10, t.length = 2000; }), PayloadFault::stale);
  EXPECT_EQ(want([](PayloadTag& t) { t.address = 0x20000; }), PayloadFault::elsewhere);
  EXPECT_EQ(want([](PayloadTag& t) { t.seed = 4; }), PayloadFault::elsewhere);
}

}  // namespace
}  // namespace kz::load
