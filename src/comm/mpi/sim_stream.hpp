// A communicator whose schedules are carried out by an actor of its own, message by message, while its rank
// computes: as a GPU's stream does.
#pragma once

#include <memory>
#include <span>

#include "src/comm/mpi/sim_fabric.hpp"
#include "src/comm/scheduled_communicator.hpp"

namespace shardbench::mpi {

/// `sequence` counts the groups that this rank has made. `memory` outlives the communicator.
std::unique_ptr<Communicator> make_streamed_communicator(std::shared_ptr<Fabric> fabric, int rank,
                                                         int sequence, std::span<const int> members,
                                                         ScheduleChoice choice, Memory& memory);

}  // namespace shardbench::mpi
