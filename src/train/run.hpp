// One run of a scenario from the empty file to the complete one.
#pragma once

#include "src/comm/surroundings.hpp"
#include "src/errors.hpp"
#include "src/scenario.hpp"

namespace shardbench {

/// Collective over the world. Creates the output file before the first step, runs warm-up and timed steps in
/// windows, and finishes the file. Returns done, check_failed, or run_failure when stopped by a signal, alike
/// on every rank; throws UsageError alike on every rank, anything else where it happens.
ExitCode run_scenario(Options options, const ScenarioDefinition& definition, const Surroundings& surroundings,
                      const BackendFactory& make_backend, const std::string& command_line);

}  // namespace shardbench
