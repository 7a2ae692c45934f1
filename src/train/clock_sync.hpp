// Offsets between the ranks' clocks.
#pragma once

#include <vector>

#include "src/trace/timer_quality.hpp"
#include "src/trace/trace_file.hpp"

namespace shardbench {

/// Collective. At rank 0: every rank's clock minus its own; empty elsewhere. Each rank answers several pings;
/// the fastest round trip bounds the offset by half its length (Cristian, 1989).
std::vector<ClockRow> measure_clocks(World& world);

/// Collective: how good the ranks' clocks are, the worst of each quality.
TimerQuality measure_timers(World& world);

}  // namespace shardbench
