// The sweep of the program `collectives`.
#pragma once

#include <string>
#include <vector>

#include "src/collectives/options.hpp"
#include "src/comm/surroundings.hpp"
#include "src/errors.hpp"

namespace shardbench {

/// Collective. Times and checks every collective, type, reduction and size that `options` ask for, prints the
/// table at rank 0 and writes the HDF5 file. `arguments` is the command line, the program's name first.
/// Returns check_failed when a result was wrong. Throws UsageError and AgreedError alike on every rank.
ExitCode run_collectives(CollectivesOptions options, const Surroundings& surroundings,
                         const std::vector<std::string>& arguments);

}  // namespace shardbench
