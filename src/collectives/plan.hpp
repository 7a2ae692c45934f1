// What the program `collectives` would measure, on paper.
#pragma once

#include <string>

#include "src/collectives/options.hpp"

namespace shardbench {

/// What rank 0 of `options.ranks` (default 1) would do, as JSON text (an object): `scenario`, `ranks`, `psi`
/// (0), `options` as the file has them, `lines` (`collective`, `algorithm`, `dtype`, `op`, `size_bytes`,
/// `count`, and of one repetition `sent_bytes`, -1 where the library does not tell), the `repetitions` of
/// each (warm-up and checks included, with --precision those of one window) and the peak of tracked memory as
/// `memory.peak_bytes.total_tracked`. Throws UsageError where a run would.
std::string collectives_plan_json(const CollectivesOptions& options);

}  // namespace shardbench
