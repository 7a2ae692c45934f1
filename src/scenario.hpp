// What a scenario is. Each file under src/scenarios defines one and becomes one executable.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "src/ledger/expected.hpp"
#include "src/train/context.hpp"
#include "src/train/resident_state.hpp"

namespace shardbench {

/// Whether reduced gradients and what they update are shared out among the ranks, or each rank has all of it.
enum class Replication { sharded, replicated };

/// One data-parallel training scheme on one rank.
class Scenario {
 public:
  Scenario() = default;
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;
  virtual ~Scenario() = default;

  /// All micro-batches of an optimizer step; on return state() holds the reduced gradients of the global mean
  /// and nothing is in flight.
  virtual void forward_backward(int step) = 0;
  /// Clips and updates; afterwards parameters are ready for the next step.
  virtual void optimizer_step() = 0;

  virtual ResidentState& state() = 0;
  [[nodiscard]] virtual Replication replication() const = 0;
  /// What this rank should hold and communicate in one step.
  [[nodiscard]] virtual ExpectedLedger expected() const = 0;
};

struct ScenarioDefinition {
  std::string name;
  std::set<OptionFamily> options;
  std::unique_ptr<Scenario> (*make)(TrainContext& context);
};

/// Defined by the one scenario file that an executable links.
ScenarioDefinition scenario_definition();

}  // namespace shardbench
