// SPDX-License-Identifier: GPL-2.0-or-later
// Device memory as a resource: it comes back, it runs out in order, and the limits are told.
#include <fmt/format.h>

#include <thread>

#include "tests/harness/diagnose.h"
#include "tests/harness/stats.h"
#include "tests/harness/test.h"
#include "tests/runtime/memory.h"

namespace kz::test {
namespace {

// Asks for more than there is; anything but a prompt "no memory" is reported.
void must_not_fit(Device& device, Context& context, uint64_t size) {
  before_danger("allocate " + to_string(Bytes{size}) + ", more than is free");
  const auto start = Clock::now();
  std::string got = "ok";
  try {
    auto block = context.alloc({size});
  } catch (const Error& e) {
    if (e.code() == Errc::gone) throw;
    got = e.code() == Errc::no_memory ? "no_memory"
          : e.code() == Errc::timeout ? "timeout"
                                      : std::string(e.what());
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  metric("context.refusal", seconds * 1e3, "ms");
  if (got == "no_memory" && seconds < 2) return;
  evidence(ev::alloc_wrong, {{"asked", size}, {"expected", "no_memory"}, {"got", got}, {"seconds", seconds}});
  if (got == "timeout") {
    report_stall(device, {.command = "HBM_ALLOC",
                          .budget = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3))});
    throw Error({.code = Errc::timeout,
                 .operation = "allocate HBM",
                 .target = to_string(Bytes{size}),
                 .detail = "the device did not refuse what it does not have"});
  }
  ADD_FAILURE() << "an allocation of " << to_string(Bytes{size}) << " ended with " << got << " after "
                << seconds << " s";
}

}  // namespace

KZ_TEST(context, churn,
        {.meaning = "contexts that come and go 200 times give all their memory back",
         .level = 3,
         .needs = {Cap::contexts, Cap::hbm_alloc, Cap::telemetry},
         .limit = 60s}) {  // each round waits for telemetry, and a guest without KVM is slow
  const uint64_t page = caps().limits.hbm_page;
  const auto base = device().telemetry().hbm_free;
  if (!base) skip("the device does not tell its free memory");
  std::vector<double> cycles, free;
  const int rounds = static_cast<int>(200 * scale());
  for (int i = 0; i < rounds; ++i) {
    {
      auto context = device().create_context();
      auto big = context->alloc({page * (1 + rng()() % 16)});
      auto small = context->alloc({1});
      auto queue = open_queue(*context, {.order = 1});
      run_good(*queue, {cmd::Fill{at(big->addr()), page, 1}});
      EXPECT_EQ(small->free(), Status::ok);
      // `big` is left to the context's end.
      context.reset();
    }
    const uint64_t now = settled_free(device(), *base);
    cycles.push_back(i);
    free.push_back(static_cast<double>(now));
    if (now < *base && i >= 15) break;  // seen often enough; leave memory for the tests to come
  }
  const Slope slope = theil_sen(cycles, free);
  metric("context.free_slope", slope.slope, "B/cycle");
  const uint64_t missing = *base - std::min<uint64_t>(*base, settled_free(device(), *base));
  if (missing == 0) return;
  evidence(ev::hbm_leak,
           {{"bytes", missing}, {"cycles", cycles.size()}, {"slope_bytes_per_cycle", -slope.slope}});
  FAIL() << missing << " bytes of HBM did not come back after " << cycles.size() << " contexts";
}

KZ_TEST(context, exhaustion,
        {.meaning = "an allocation beyond the free memory is refused at once, and the device works on",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::hbm_alloc, Cap::telemetry},
         .limit = 45s}) {
  const uint64_t page = caps().limits.hbm_page;
  auto context = device().create_context();
  auto queue = open_queue(*context);
  const uint64_t base = device().telemetry().hbm_free.value_or(0);
  for (uint64_t size : {base + page, 2 * caps().limits.hbm_bytes, uint64_t{1} << 60})
    must_not_fit(device(), *context, size);
  {
    before_danger("allocate all memory");
    const auto all = take_all_but(device(), *context, 0);
    must_not_fit(device(), *context, page);
    must_not_fit(device(), *context, 1);
    run_good(*queue, {cmd::Fill{at(all.front()->addr()), page, 5}});
  }
  const uint64_t now = settled_free(device(), base);
  if (now < base)
    evidence(ev::hbm_leak, {{"bytes", base - now}, {"cycles", 1}, {"slope_bytes_per_cycle", base - now}});
  EXPECT_EQ(now, base) << "memory did not come back after exhaustion";
  auto after = context->alloc({page});
  run_good(*queue, {cmd::Fill{at(after->addr()), page, 6}});
}

KZ_TEST(context, frees,
        {.meaning = "only whole allocations of one's own can be freed, and only once",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::hbm_alloc, Cap::contexts}}) {
  const uint64_t page = caps().limits.hbm_page;
  auto context = device().create_context();
  auto other = device().create_context();
  auto block = context->alloc({4 * page});
  auto theirs = other->alloc({page});
  auto refused = [&](Context& who, HbmAddr addr, const char* what) {
    before_danger(std::string("free ") + what);
    const Status got = who.free_raw(addr);
    if (got == Status::hbm_fault) return;
    if (got == Status::ok)
      evidence(ev::alloc_wrong, {{"asked", what}, {"expected", "hbm_fault"}, {"got", "ok"}});
    ADD_FAILURE() << "freeing " << what << ": " << report_status("HBM_FREE", Status::hbm_fault, got);
  };
  refused(*context, block->addr() + page, "the middle of an allocation");
  refused(*context, block->addr() + 4 * page, "what was never allocated");
  refused(*context, theirs->addr(), "another context's memory");
  const HbmAddr was = block->addr();
  EXPECT_EQ(block->free(), Status::ok);
  refused(*context, was, "memory that is free already");
}

KZ_TEST(context, many,
        {.meaning =
             "contexts can be made until the device says that there are no more, and all can be given back",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::contexts}}) {
  const auto before = device().telemetry();
  std::vector<std::unique_ptr<Context>> contexts;
  std::string end = "none";
  before_danger("create contexts until there are no more");
  while (contexts.size() < 512 && end == "none") {
    try {
      contexts.push_back(device().create_context());
    } catch (const Error& e) {
      if (e.code() == Errc::gone || e.code() == Errc::timeout) throw;
      end = e.what();
    }
  }
  metric("context.most", static_cast<double>(contexts.size()), "contexts");
  EXPECT_GE(contexts.size(), 2u) << end;
  contexts.clear();
  auto queue_owner = device().create_context();
  auto queue = open_queue(*queue_owner);
  run_good(*queue, {cmd::Nop{}});
}

}  // namespace kz::test
