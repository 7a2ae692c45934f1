// The main of every scenario: parse, enter the world, run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <exception>
#include <string>
#include <vector>

#include "src/build_info.hpp"
#include "src/comm/mpi/mpi_world.hpp"
#include "src/launch.hpp"
#include "src/options.hpp"
#include "src/trace/trace_file.hpp"
#include "src/train/plan.hpp"
#include "src/train/run.hpp"

namespace {

using namespace shardbench;

int exit_status(ExitCode code) { return static_cast<int>(code); }

void say(const std::string& scenario, const std::string& what) {
  fmt::print(stderr, "{}: {}\n", scenario, what);
}

int run(const ScenarioDefinition& definition, const ParsedOptions& parsed, const std::string& command_line) {
  const Options options = parsed.options.value_or(Options{});
  Memory memory;
  const auto world = make_mpi_world({.progress = options.progress,
                                     .algorithm = options.algorithm,
                                     .ranks_per_node = options.ranks_per_node},
                                    memory);
  try {
    agree_on_options(world->control(), parsed);
    world->check_settings();
    check_world_size(options, world->size());
    return exit_status(run_scenario(options, definition, *world, memory, command_line));
  } catch (const UsageError& error) {  // thrown by every rank alike, like AgreedError
    if (world->rank() == 0) say(definition.name, error.what());
    return exit_status(ExitCode::usage);
  } catch (const AgreedError& error) {
    if (world->rank() == 0) say(definition.name, error.what());
    return exit_status(ExitCode::run_failure);
  } catch (const std::exception& error) {
    say(definition.name, fmt::format("rank {}: {}", world->rank(), error.what()));
    world->abort(exit_status(ExitCode::run_failure));
  }
  return exit_status(ExitCode::run_failure);  // not reached
}

void print_version(const std::string& scenario) {
  const BuildInfo build = build_info();
  fmt::print("shardbench {} {} ({}{}, {})\nMPI: {}\nHDF5: {}\n", scenario, build.version, build.git_commit,
             build.git_dirty ? ", modified" : "", build.build_type, mpi_library_version(), hdf5_version());
}

}  // namespace

int main(int argc, char** argv) {
  const ScenarioDefinition definition = scenario_definition();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string command_line = fmt::format("{} {}", argv[0], fmt::join(arguments, " "));
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow shall be an error with a name, not a death
  try {
    const ParsedOptions parsed = try_parse_options(definition.name, definition.options, arguments);
    const bool runs = parsed.options && !parsed.options->show_version && !parsed.options->plan;
    // A rank that is refused must not leave the others waiting for it in MPI_Init.
    if (runs || (!parsed.options && parsed.help.empty() && started_by_launcher()))
      return run(definition, parsed, command_line);
    if (!speaks_before_start()) return exit_status(parsed.error.empty() ? ExitCode::done : ExitCode::usage);
    if (!parsed.error.empty()) throw UsageError(parsed.error);
    if (!parsed.help.empty()) {
      fmt::print("{}", parsed.help);
    } else if (parsed.options->show_version) {
      print_version(definition.name);
    } else {
      fmt::print("{}\n", plan_json(*parsed.options, definition));
    }
    return exit_status(ExitCode::done);
  } catch (const UsageError& error) {
    say(definition.name, error.what());
    return exit_status(ExitCode::usage);
  } catch (const std::exception& error) {
    say(definition.name, error.what());
    return exit_status(ExitCode::run_failure);
  }
}
