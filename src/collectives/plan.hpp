// What the program `collectives` would measure, on paper.
#pragma once

#include <string>

#include "src/collectives/options.hpp"

namespace shardbench {

/// What rank 0 of `options.ranks` (default 1) would do, as JSON text (an object): `scenario`, `ranks`, `psi`
/// (0), `options` as the file has them, `lines` (collective, algorithm, dtype, op, size_bytes, count,
/// sent_bytes of one repetition), the `repetitions` of each (warm-up and checks included, with --precision
/// those of one window) and the peak of tracked memory under `memory`. Throws UsageError where a run would.
std::string collectives_plan_json(const CollectivesOptions& options);

}  // namespace shardbench
