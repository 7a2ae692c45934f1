// Control messages over MPI.
#pragma once

#include <memory>

#include "src/comm/mpi/mpi_platform.hpp"

namespace shardbench::mpi {

/// Collective over `world`, of which it takes a duplicate. The platform and activity outlive it.
std::unique_ptr<ControlChannel> make_mpi_control(MPI_Comm world, Platform& platform, Activity& activity);

}  // namespace shardbench::mpi
