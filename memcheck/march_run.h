// SPDX-License-Identifier: GPL-2.0-or-later
// Runs march tests next to the memory (MARCH commands) and says what they read.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "memcheck/arena.h"
#include "memcheck/march.h"
#include "memcheck/shape.h"

namespace kz::memcheck {

struct Background {
  uint64_t pattern = 0;
  bool own_address = false;  // background = address of the word ^ pattern
};

struct Hit {
  uint64_t addr = 0;  // of the arena's context
  uint64_t expected = 0, read = 0;
  unsigned element = 0, op = 0;
};

struct MarchOutcome {
  std::string test;
  Background background;
  std::vector<std::string> elements;  // in words, for messages
  uint64_t mismatches = 0;            // all of them
  std::vector<Hit> hits;              // the first of each command, at most `max_hits`
  struct Poison {
    HbmAddr addr;  // start of the piece in which it is
    uint64_t size;
    unsigned element;
  };
  std::vector<Poison> poison;
  uint64_t cells = 0;  // words tested
  double seconds = 0;
  bool clean() const { return mismatches == 0 && poison.empty(); }
};

class MarchRunner {
 public:
  static constexpr size_t max_hits = 4096;
  static constexpr uint64_t piece = uint64_t{8} << 20;  // of one command, to stay far below the watchdog

  explicit MarchRunner(Arena& arena);
  // How long a "Del" element waits, by the device's clock.
  void set_pause(std::chrono::milliseconds pause) { pause_ = pause; }

  // Called before each piece of each element: to keep the device warm, say.
  void set_between(std::function<void()> between) { between_ = std::move(between); }

  // Elements go over the regions in order, ⇓ from the last to the first. Throws Error when a command ends
  // with another status than ok or poison.
  MarchOutcome run(const MarchTest& test, const Background& background, const std::vector<Region>& regions);

  // What `repeats` runs of the test can cover of the arena within `budget`, by the speed it has on the first
  // piece. At least one piece; all regions where the budget allows.
  std::vector<Region> affordable(const MarchTest& test, std::chrono::duration<double> budget,
                                 unsigned repeats = 1);

  // The failing words once more, each with its page, three times: "hard" when each of them fails always, else
  // "intermittent".
  std::string reread(const MarchTest& test, const MarchOutcome& outcome);

 private:
  void element(const MarchElement& e, unsigned index, const Background& bg, const Region& piece,
               MarchOutcome& out);
  void find_poison(const Region& where, unsigned index, MarchOutcome& out);

  Arena& arena_;
  std::shared_ptr<DmaBuffer> log_;
  std::chrono::milliseconds pause_{0};
  std::function<void()> between_;
};

// Waits until the device's clock has gone on by `span`. Throws Error(timeout) when it takes more than twice
// that and 2 s.
void wait_device_time(test::QueueGuard& queue, std::chrono::nanoseconds span);

}  // namespace kz::memcheck
