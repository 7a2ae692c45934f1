// All that a rank's work is given.
#pragma once

#include "src/comm/world.hpp"
#include "src/device/buffer.hpp"
#include "src/supervise/supervisor.hpp"

namespace shardbench {

struct Surroundings {
  World& world;
  Memory& memory;
  Supervisor& supervisor;
};

}  // namespace shardbench
