// How good a clock is, so that a reader can tell a duration from the cost of measuring it.
#pragma once

#include <functional>

namespace shardbench {

/// Both 0 where the clock stood still for as long as it was watched (a simulated one may).
struct TimerQuality {
  double overhead_s = 0.0;    ///< one reading: the median over batches of readings
  double resolution_s = 0.0;  ///< the smallest positive difference between one reading and the next
};

/// Reads `now` (seconds, never decreasing) some ten thousand times; a clock that has not moved by then up to
/// a million times, which lets a tick of several milliseconds show. Ends for every clock.
TimerQuality measure_timer(const std::function<double()>& now);

}  // namespace shardbench
