// What a simulated rank computes with; from the platform's description.
#pragma once

#include <string>

namespace shardbench {

struct Hardware {
  std::string name;
  double peak_flops = 0.0;        ///< FLOP/s of dense bf16 matrix products
  double efficiency = 0.0;        ///< the share of it that a transformer's layers reach
  double memory_bandwidth = 0.0;  ///< bytes/s
  double launch_s = 0.0;          ///< of one kernel
};

}  // namespace shardbench
