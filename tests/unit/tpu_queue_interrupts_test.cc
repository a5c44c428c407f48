// SPDX-License-Identifier: GPL-2.0-or-later
// The queue's books of interrupts: late, lost, too many, shared, and on a host that is busy.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/unit/tpu_queue_rig.h"

namespace kz::tpu {
namespace {

TEST_F(TpuQueueTest, CountsLostInterrupts) {
  int n = 0;
  tpu->script = [&](FakeTpu& t, Ring& r, const kz_cmd& c) {
    t.post(r, t.cqe(r, c));
    if (++n % 3 != 0) t.raise(r.vector);
  };
  auto q = open();
  for (int i = 0; i < 6; ++i) {
    auto start = Clock::now();
    EXPECT_EQ(run(*q, {cmd::Nop{}}, 2s).status, Status::ok);
    if (i % 3 == 2) {
      EXPECT_GE(Clock::now() - start, 100ms) << "the interrupt gets its time";
    }
  }
  EXPECT_EQ(broken(q->audit()), (Broken{{"completion_without_interrupt", 2}}));
  EXPECT_EQ(q->audit().interrupts, 4u);
}

TEST_F(TpuQueueTest, CountsLostInterruptsOfPolledCompletionsToo) {
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) { t.post(r, t.cqe(r, c)); };
  auto q = open();
  q->submit({cmd::Nop{}}, false);
  EXPECT_EQ(q->poll().size(), 1u);
  EXPECT_EQ(broken(q->audit()), (Broken{{"completion_without_interrupt", 1}}));
  EXPECT_EQ(broken(q->audit()), (Broken{{"completion_without_interrupt", 1}})) << "counted once";
}

TEST_F(TpuQueueTest, ForgivesALateInterrupt) {
  std::thread late;
  tpu->script = [&](FakeTpu& t, Ring& r, const kz_cmd& c) {
    t.post(r, t.cqe(r, c));
    late = std::thread([&t, vector = r.vector] {
      std::this_thread::sleep_for(30ms);
      t.raise(vector);
    });
  };
  auto q = open();
  EXPECT_EQ(run(*q, {cmd::Nop{}}, 2s).status, Status::ok);
  late.join();
  EXPECT_EQ(broken(q->audit()), Broken{});
}

// Written as the kernel writes /proc/pressure/cpu: somebody waits for a processor all the time.
class BusyHost {
 public:
  BusyHost() : file_(::testing::TempDir() + "kz-pressure-" + std::to_string(::getpid())) {
    std::ofstream{file_};
    write(0);
    ::setenv("KANGZAO_HOST_PRESSURE", file_.c_str(), 1);
    writer_ = std::thread([this] {
      for (Deadline since(0s); !over_; std::this_thread::sleep_for(20ms)) write(since.elapsed() / 1us);
    });
  }
  ~BusyHost() {
    over_ = true;
    writer_.join();
    ::unsetenv("KANGZAO_HOST_PRESSURE");
    ::unlink(file_.c_str());
  }

 private:
  void write(int64_t us) {
    std::ofstream(file_, std::ios::in | std::ios::out)
        << "some avg10=0.00 avg60=0.00 avg300=0.00 total=" << us << "\n";
  }

  std::string file_;
  std::atomic<bool> over_{false};
  std::thread writer_;
};

// A software device was put aside between a completion and its interrupt: the host's doing.
TEST_F(TpuQueueTest, ForgivesAnInterruptThatIsLateOnABusyHost) {
  BusyHost busy;
  std::thread late;
  tpu->script = [&](FakeTpu& t, Ring& r, const kz_cmd& c) {
    t.post(r, t.cqe(r, c));
    late = std::thread([&t, vector = r.vector] {
      std::this_thread::sleep_for(1s);
      t.raise(vector);
    });
  };
  auto q = open();
  EXPECT_EQ(run(*q, {cmd::Nop{}}, 5s).status, Status::ok);
  EXPECT_EQ(broken(q->audit()), Broken{});
  late.join();
  EXPECT_EQ(broken(q->audit()), Broken{});
}

TEST_F(TpuQueueTest, CountsAnInterruptThatIsLostOnABusyHost) {
  auto busy = std::make_unique<BusyHost>();
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) { t.post(r, t.cqe(r, c)); };
  auto q = open();
  EXPECT_EQ(run(*q, {cmd::Nop{}}, 500ms).status, Status::ok) << "the wait ends by its deadline";
  busy.reset();
  EXPECT_EQ(broken(q->audit()), (Broken{{"completion_without_interrupt", 1}}));
}

TEST_F(TpuQueueTest, CountsInterruptsWithoutCompletion) {
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) {
    t.raise(r.vector);
    t.complete(r, c);
  };
  auto q = open();
  for (int i = 0; i < 5; ++i) run(*q, {cmd::Nop{}}, 1s);
  EXPECT_EQ(broken(q->audit()), (Broken{{"interrupt_without_completion", 5}}));
}

TEST_F(TpuQueueTest, CountsInterruptsThatComeBeforeTheirCompletion) {
  auto q = open();
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd&) { t.raise(r.vector); };
  q->submit({cmd::Nop{}}, false);
  EXPECT_TRUE(q->wait(Deadline(20ms)).empty());
  EXPECT_EQ(q->audit().interrupt_without_completion, 1u);
}

TEST_F(TpuQueueTest, QuietCompletionsNeedNoInterrupt) {
  auto q = open();
  auto start = Clock::now();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(run(*q, {.work = cmd::Nop{}, .quiet = true}, 1s).status, Status::ok);
  EXPECT_LT(Clock::now() - start, 1s);
  EXPECT_EQ(broken(q->audit()), Broken{});
  EXPECT_EQ(q->audit().interrupts, 0u);
}

TEST_F(TpuQueueTest, SharedVectorsAreNotJudged) {
  auto a = open({.order = 2, .vector = 3}, 1), b = open({.order = 2, .vector = 3}, 2);
  for (int i = 0; i < 10; ++i) {
    a->submit({cmd::Nop{}}, false);
    EXPECT_EQ(run(*b, {cmd::Nop{}}, 1s).status, Status::ok);
    EXPECT_EQ(collect(*a).size(), 1u);
  }
  EXPECT_EQ(broken(a->audit()), Broken{});
  EXPECT_EQ(broken(b->audit()), Broken{});
  EXPECT_EQ(core->vectors.counts()[3], 20u);
}

TEST_F(TpuQueueTest, SomebodyElseMayCountTheInterrupts) {
  auto q = open();
  for (int i = 0; i < 5; ++i) {
    q->submit({cmd::Nop{}}, false);
    core->vectors.counts();  // takes it off the eventfd
    EXPECT_EQ(collect(*q).size(), 1u);
  }
  EXPECT_EQ(broken(q->audit()), Broken{});
  EXPECT_EQ(core->vectors.counts()[1], 5u);
}

}  // namespace
}  // namespace kz::tpu
