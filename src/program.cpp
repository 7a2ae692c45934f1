#include "src/program.hpp"

#include <fmt/format.h>

#include <csignal>
#include <exception>

#include "src/build_info.hpp"
#include "src/comm/mpi/mpi_world.hpp"
#include "src/trace/trace_file.hpp"

namespace shardbench {
namespace {

int exit_status(ExitCode code) { return static_cast<int>(code); }

void say(const std::string& program, const std::string& what) {
  fmt::print(stderr, "{}: {}\n", program, what);
}

int run_in_world(const std::string& name, const Program& program) {
  Memory memory;
  const auto world = make_mpi_world(program.world, memory);
  try {
    agree_on_options(world->control(), program.options);
    world->check_settings();
    check_world_size(program.ranks, world->size());
    return exit_status(program.work(*world, memory));
  } catch (const UsageError& error) {  // thrown by every rank alike, like AgreedError
    if (world->rank() == 0) say(name, error.what());
    return exit_status(ExitCode::usage);
  } catch (const AgreedError& error) {
    if (world->rank() == 0) say(name, error.what());
    return exit_status(ExitCode::run_failure);
  } catch (const std::exception& error) {
    say(name, fmt::format("rank {}: {}", world->rank(), error.what()));
    world->abort(exit_status(ExitCode::run_failure));
  }
  return exit_status(ExitCode::run_failure);  // not reached
}

}  // namespace

int run_program(const std::string& name, const std::function<Program()>& prepare) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow shall be an error with a name, not a death
  try {
    const Program program = prepare();
    const std::string& refusal = program.options.refusal;
    const bool runs = refusal.empty() && !program.answer;
    // A rank that is refused must not leave the others waiting for it in MPI_Init.
    if (runs || (!refusal.empty() && started_by_launcher())) return run_in_world(name, program);
    if (!speaks_before_start()) return exit_status(refusal.empty() ? ExitCode::done : ExitCode::usage);
    if (!refusal.empty()) throw UsageError(refusal);
    fmt::print("{}", program.answer());
    return exit_status(ExitCode::done);
  } catch (const UsageError& error) {
    say(name, error.what());
    return exit_status(ExitCode::usage);
  } catch (const std::exception& error) {
    say(name, error.what());
    return exit_status(ExitCode::run_failure);
  }
}

std::string version_text(const std::string& name) {
  const BuildInfo build = build_info();
  return fmt::format("shardbench {} {} ({}{}, {})\nMPI: {}\nHDF5: {}\n", name, build.version,
                     build.git_commit, build.git_dirty ? ", modified" : "", build.build_type,
                     mpi_library_version(), hdf5_version());
}

}  // namespace shardbench
