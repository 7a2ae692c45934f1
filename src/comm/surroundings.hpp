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

/// Collective: what any rank has been asked to stop for; a signal may have come to one only. Of several
/// ranks' requests the largest counts: that there is one matters, not which.
inline StopRequests requests_of_all(const Surroundings& surroundings) {
  return static_cast<StopRequests>(maximum(surroundings.world.control(), surroundings.supervisor.requests()));
}

}  // namespace shardbench
