#include "src/train/clock_sync.hpp"

#include <limits>

namespace shardbench {
namespace {

// More would find shorter round trips on a quiet network; eight keep 64 ranks on 2 cores within a second or
// two.
constexpr int pings_per_rank = 8;

ClockRow ping(World& world, int rank) {
  ClockRow best{
      .rank = rank, .at_s = 0.0, .offset_s = 0.0, .uncertainty_s = std::numeric_limits<double>::infinity()};
  for (int i = 0; i < pings_per_rank; ++i) {
    const double sent = world.now();
    world.control().send(rank, {});
    const auto answer = from_message<double>(world.control().receive(rank));
    const double received = world.now();
    const double uncertainty = (received - sent) / 2;
    if (uncertainty < best.uncertainty_s)
      best = {.rank = rank,
              .at_s = sent,
              .offset_s = answer.front() - (sent + uncertainty),
              .uncertainty_s = uncertainty};
  }
  return best;
}

}  // namespace

std::vector<ClockRow> measure_clocks(World& world) {
  std::vector<ClockRow> rows;
  if (world.rank() != 0) {
    for (int i = 0; i < pings_per_rank; ++i) {
      world.control().receive(0);
      const double now = world.now();
      world.control().send(0, as_message<double>(std::span(&now, 1)));
    }
    return rows;
  }
  rows.push_back({.rank = 0, .at_s = world.now(), .offset_s = 0.0, .uncertainty_s = 0.0});
  for (int rank = 1; rank < world.size(); ++rank) rows.push_back(ping(world, rank));
  return rows;
}

TimerQuality measure_timers(World& world) {
  if (world.simulated()) return {};  // its clock is exact and stands still while it is read
  const TimerQuality own = measure_timer([&world] { return world.now(); });
  return {.overhead_s = maximum(world.control(), own.overhead_s),
          .resolution_s = maximum(world.control(), own.resolution_s)};
}

}  // namespace shardbench
