#include "src/program.hpp"

#include <fmt/format.h>

#include <csignal>
#include <exception>

#include "src/build_info.hpp"
#include "src/comm/mpi/mpi_world.hpp"
#include "src/say.hpp"
#include "src/trace/caretaker.hpp"
#include "src/trace/trace_file.hpp"

namespace shardbench {
namespace {

int exit_status(ExitCode code) { return static_cast<int>(code); }

void complain(const std::string& program, const std::string& what) {
  say(stderr, fmt::format("{}: {}\n", program, what));
}

/// What all ranks end alike with. Other exceptions are this rank's own.
int run_in_world(const std::string& name, const Program& program, const Surroundings& surroundings) {
  World& world = surroundings.world;
  try {
    agree_on_options(world.control(), name, program.options);
    world.check_settings();
    check_world_size(program.ranks, world.size());
    return exit_status(program.work(surroundings));
  } catch (const UsageError& error) {
    if (world.rank() == 0) complain(name, error.what());
    return exit_status(ExitCode::usage);
  } catch (const AgreedError& error) {
    if (world.rank() == 0) complain(name, error.what());
    return exit_status(ExitCode::run_failure);
  }
}

std::unique_ptr<World> enter_world(const Program& program, Memory& memory, Supervisor& supervisor) {
  try {
    return make_mpi_world(program.world, memory, supervisor.activity());
  } catch (const RunError& error) {
    supervisor.end(error.what());
  }
}

int run(const std::string& name, const Program& program) {
  // First, for the threads of libraries inherit which signals are blocked.
  Supervisor supervisor(
      {.program = name,
       .stall_limit_s = program.stall_timeout_s,
       .kind = is_simulation() ? Supervisor::Kind::inert : Supervisor::Kind::active,
       .start = started_by_launcher() ? Supervisor::Start::by_launcher : Supervisor::Start::alone});
  supervisor.activity().enter("starting MPI");
  Memory memory;
  const auto world = enter_world(program, memory, supervisor);
  supervisor.set_rank(world->rank());
  supervisor.activity().enter("comparing options with the other ranks");
  try {
    const int status = run_in_world(name, program, {*world, memory, supervisor});
    supervisor.activity().enter("leaving MPI");
    world->leave();
    return status;
  } catch (const std::exception& error) {
    complain(name, fmt::format("rank {}: {}", world->rank(), error.what()));
    world->abort(exit_status(ExitCode::run_failure));
  }
  return exit_status(ExitCode::run_failure);  // not reached
}

}  // namespace

int run_program(const std::string& name, const std::vector<std::string>& arguments,
                const std::function<Program(const std::vector<std::string>&)>& prepare) {
  if (arguments.size() == 3 && arguments[1] == caretaker_argument) return take_care_of(arguments[2]);
  // A file that may not grow and a reader that has gone shall be errors with a name, not deaths.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const Program program = prepare(arguments);
    const std::string& refusal = program.options.refusal;
    const bool runs = refusal.empty() && !program.answer;
    // A rank that is refused must not leave the others waiting for it in MPI_Init.
    if (runs || (!refusal.empty() && started_by_launcher())) return run(name, program);
    if (!speaks_before_start()) return exit_status(refusal.empty() ? ExitCode::done : ExitCode::usage);
    if (!refusal.empty()) throw UsageError(refusal);
    say(stdout, program.answer());
    return exit_status(ExitCode::done);
  } catch (const UsageError& error) {
    complain(name, error.what());
    return exit_status(ExitCode::usage);
  } catch (const std::exception& error) {
    complain(name, error.what());
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
