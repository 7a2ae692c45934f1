// What is said about a clock, on clocks whose quality is known.
#include "src/trace/timer_quality.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

namespace shardbench {
namespace {

/// Each reading takes `cost_s`; the clock shows whole multiples of `tick_s`.
class Clock {
 public:
  Clock(double cost_s, double tick_s) : cost_s_(cost_s), tick_s_(tick_s) {}
  double operator()() {
    ++readings_;
    return std::floor(static_cast<double>(readings_) * cost_s_ / tick_s_) * tick_s_;
  }
  [[nodiscard]] std::int64_t readings() const { return readings_; }

 private:
  double cost_s_;
  double tick_s_;
  std::int64_t readings_ = 0;
};

TimerQuality quality_of(Clock& clock) {
  return measure_timer([&clock] { return clock(); });
}

TEST(TimerQuality, IsTheCostOfAReadingAndTheSmallestStep) {
  // The cost is a whole number of ticks, of 1 or 8; a tick is several readings; many; more than a batch.
  for (const auto& [cost_s, tick_s] :
       {std::pair(0x1p-20, 0x1p-20), std::pair(0x1p-20, 0x1p-23), std::pair(0x1p-20, 0x1p-18),
        std::pair(0x1p-24, 0x1p-18), std::pair(0x1p-24, 0x1p-14), std::pair(0x1p-24, 0x1p-8)}) {
    Clock clock(cost_s, tick_s);
    const TimerQuality quality = quality_of(clock);
    const double step_s = std::max(cost_s, tick_s);
    EXPECT_NEAR(quality.resolution_s, step_s, 1e-9 * step_s) << cost_s << ' ' << tick_s;
    // A batch is right to one tick.
    EXPECT_NEAR(quality.overhead_s, cost_s, tick_s / 100.0 + 0.01 * cost_s) << cost_s << ' ' << tick_s;
  }
}

TEST(TimerQuality, IsNotSpoiltByInterruptions) {
  int readings = 0;
  double time_s = 0.0;
  const TimerQuality quality = measure_timer([&] {
    time_s += ++readings % 500 == 0 ? 1e-2 : 1e-7;  // a fifth of the batches is interrupted for long
    return time_s;
  });
  EXPECT_NEAR(quality.overhead_s, 1e-7, 1e-12);
  EXPECT_NEAR(quality.resolution_s, 1e-7, 1e-12);
}

TEST(TimerQuality, OfAClockThatStandsStillIsZeroAndEnds) {
  int readings = 0;
  const TimerQuality quality = measure_timer([&] {
    ++readings;
    return 42.0;
  });
  EXPECT_EQ(quality.overhead_s, 0.0);
  EXPECT_EQ(quality.resolution_s, 0.0);
  EXPECT_LE(readings, (1 << 20) + 1);
}

TEST(TimerQuality, ReadsAQuickClockOnlySoOften) {
  Clock clock(1e-8, 1e-9);
  quality_of(clock);
  EXPECT_LT(clock.readings(), 20'000);
}

TEST(TimerQuality, OfTheSteadyClockIsPlausible) {
  const TimerQuality quality = measure_timer([] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  });
  EXPECT_GT(quality.overhead_s, 0.0);
  EXPECT_GT(quality.resolution_s, 0.0);
  EXPECT_LT(quality.resolution_s, 0.1);
}

}  // namespace
}  // namespace shardbench
