// A world in which nothing happens: scenarios run in it to print what they would do.
#pragma once

#include <memory>

#include "src/comm/world.hpp"

namespace shardbench {

/// One rank of a world of `ranks` that exists on paper only. Collectives complete at once, leave buffers
/// alone and report what they would send; time stands still. Without `ranks_per_node` all ranks share one
/// node.
std::unique_ptr<World> make_plan_world(int ranks, int rank, const WorldSettings& settings, Memory& memory);

}  // namespace shardbench
