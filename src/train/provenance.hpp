// Where a result comes from: root attributes and configuration of the trace file.
#pragma once

#include <map>
#include <string>

#include "src/options.hpp"
#include "src/trace/trace_file.hpp"
#include "src/train/backend.hpp"

namespace shardbench {

struct RunDescription {
  std::string scenario;
  const Options& options;
  const World& world;
  const Backend& backend;
  std::string command_line;
};

/// The root attributes that do not depend on options: program, build, libraries, launch. Those that only the
/// run can tell are set as not yet known.
void describe_program(TraceFile& file, const std::string& scenario, const World& world,
                      const std::string& command_line);

/// The environment variables that change results; everything else stays private.
std::map<std::string, std::string> recorded_environment();

/// What `shardbench simulate` says that it has simulated (null where a simulation was started otherwise), and
/// the whole description of the machine, as JSON.
std::string simulation_json(const World& world);

/// Writes every root attribute (those that only the run can tell, as not yet known) and the `config` dataset.
void describe_run(TraceFile& file, const RunDescription& run);

/// <scenario>_n<N>_<UTC time>_<Slurm job or process id>.h5
std::string default_output(const std::string& scenario, int ranks);

}  // namespace shardbench
