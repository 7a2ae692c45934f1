// --plan: one step's events, ledger and memory as JSON.
#pragma once

#include <string>

#include "src/scenario.hpp"

namespace shardbench {

/// Runs the scenario for one step in a world that exists on paper, and describes what it did.
std::string plan_json(Options options, const ScenarioDefinition& definition);

}  // namespace shardbench
