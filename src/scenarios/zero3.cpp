// zero3: the schedule of zero3.hpp, where the algorithm is (mesh2d shares it), over all ranks.
#include "src/scenarios/zero3.hpp"

namespace shardbench {

ScenarioDefinition scenario_definition() {
  return {.name = "zero3",
          .options = {OptionFamily::gather_groups, OptionFamily::ordered_collectives},
          .make = [](TrainContext& context) -> std::unique_ptr<Scenario> {
            return std::make_unique<Zero3>(context);
          }};
}

}  // namespace shardbench
