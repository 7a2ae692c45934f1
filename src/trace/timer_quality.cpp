#include "src/trace/timer_quality.hpp"

#include <algorithm>
#include <array>

namespace shardbench {
namespace {

// A batch is long against the clock's own tick where that is below a microsecond, and short against a time
// slice, so that an interruption spoils few batches and the median none.
constexpr int batch_readings = 100;
constexpr std::size_t batches = 101;
constexpr int most_readings = 1 << 20;

}  // namespace

TimerQuality measure_timer(const std::function<double()>& now) {
  std::array<double, batches> costs_s{};
  TimerQuality quality;
  double last = now();
  const auto read = [&] {
    const double next = now();
    const double difference = next - last;
    if (difference > 0.0 && (quality.resolution_s == 0.0 || difference < quality.resolution_s))
      quality.resolution_s = difference;
    last = next;
  };
  double first = last;
  int readings = 0;
  for (double& cost_s : costs_s) {
    const double begin = last;
    for (int i = 0; i < batch_readings; ++i, ++readings) read();
    cost_s = (last - begin) / batch_readings;
  }
  std::nth_element(costs_s.begin(), costs_s.begin() + batches / 2, costs_s.end());
  quality.overhead_s = costs_s[batches / 2];
  if (quality.overhead_s > 0.0) return quality;
  // The tick is longer than a batch: from the first tick seen to the last one, over the readings between.
  int at_first = 0;
  for (int ticks = 0; readings < most_readings && ticks < 4; ++readings) {
    const double before = last;
    read();
    if (last == before) continue;
    if (++ticks == 1) {
      first = last;
      at_first = readings;
    } else {
      quality.overhead_s = (last - first) / (readings - at_first);
    }
  }
  if (quality.overhead_s == 0.0 && readings > 0) quality.overhead_s = quality.resolution_s / readings;
  return quality;
}

}  // namespace shardbench
