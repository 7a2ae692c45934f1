// The table of where each rank ran.
#pragma once

#include "src/comm/world.hpp"
#include "src/trace/trace_file.hpp"

namespace shardbench {

/// This rank's coordinates in the mesh, and its OpenMP threads.
struct RankSeat {
  int dp_index = 0;
  int tp_index = 0;
  int threads = 1;
  std::string device = "cpu";
};

/// Collective: appends one row of `ranks` for each rank and sets the attribute `oversubscribed`. `file` is
/// null on every rank but 0.
void write_ranks(TraceFile* file, World& world, const RankSeat& seat);

}  // namespace shardbench
