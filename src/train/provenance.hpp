// Where a result comes from: root attributes and configuration of the trace file.
#pragma once

#include <string>

#include "src/options.hpp"
#include "src/trace/trace_file.hpp"

namespace shardbench {

struct RunDescription {
  std::string scenario;
  const Options& options;
  const World& world;
  std::string command_line;
};

/// Writes every root attribute (those that only the run can tell, as not yet known) and the `config` dataset.
void describe_run(TraceFile& file, const RunDescription& run);

/// <scenario>_n<N>_<UTC time>_<Slurm job or process id>.h5
std::string default_output(const std::string& scenario, int ranks);

}  // namespace shardbench
