// A simulated machine as its platform file describes it (docs/simulation.md).
#pragma once

#include <optional>
#include <string>

#include "src/comm/hardware.hpp"
#include "src/comm/nccl_model.hpp"

namespace shardbench::mpi {

struct SimulatedMachine {
  std::string json;  ///< the whole description
  int ranks_per_node = 1;
  double gpu_link_bandwidth = 0.0;   ///< bytes/s of each GPU, per direction, inside its node
  double nic_bandwidth = 0.0;        ///< bytes/s of each GPU, per direction
  double gpu_link_efficiency = 1.0;  ///< the share of these that transfers reach
  double network_efficiency = 1.0;
  Hardware gpu;
  NcclTable nccl;
};

/// Throws UsageError naming the key that is missing or wrong.
SimulatedMachine parse_machine(const std::string& json);

}  // namespace shardbench::mpi
