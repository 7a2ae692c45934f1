// What every MPI program of the project does around its work: answer or refuse the command line, enter the
// world, agree on options, turn errors into exit codes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/surroundings.hpp"
#include "src/errors.hpp"
#include "src/launch.hpp"

namespace shardbench {

struct Program {
  OwnOptions options;                   ///< refused ones end every rank of the job
  std::function<std::string()> answer;  ///< the text to print instead of running (--help); empty to run
  WorldSettings world;
  std::optional<int> ranks;      ///< the world size that the user expects
  double stall_timeout_s = 0.0;  ///< without progress for so long, a rank ends the job; 0: never
  std::function<ExitCode(const Surroundings&)> work;
};

/// Runs what `prepare` makes of the arguments (the program's name first), and returns the process's exit
/// code. UsageError and AgreedError must be thrown alike by all ranks; any other exception aborts the job.
int run_program(const std::string& name, const std::vector<std::string>& arguments,
                const std::function<Program(const std::vector<std::string>&)>& prepare);

/// Versions of the program and its libraries, several lines.
std::string version_text(const std::string& name);

}  // namespace shardbench
