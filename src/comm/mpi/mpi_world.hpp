// The world of MPI ranks.
#pragma once

#include <memory>
#include <string>

#include "src/comm/world.hpp"

namespace shardbench {

/// Initialises MPI and finalises it on destruction; once per rank. `memory` and `activity` outlive the world.
std::unique_ptr<World> make_mpi_world(const WorldSettings& settings, Memory& memory, Activity& activity);

/// Whether this executable runs in a simulator, all ranks in one process.
bool is_simulation();

/// Whether this process is one of several that some launcher started together, as far as the environment
/// tells.
bool started_by_launcher();

/// Name and version of the MPI library; may be asked before it is initialised.
std::string mpi_library_version();

}  // namespace shardbench
