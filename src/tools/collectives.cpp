// The `collectives` executable: all-reduce, reduce-scatter and all-gather alone, timed and checked as
// nccl-tests does, under the schedules, progress and communicators that the scenarios train with.
#include "src/collectives/bench.hpp"
#include "src/collectives/plan.hpp"
#include "src/comm/mpi/mpi_world.hpp"
#include "src/program.hpp"

namespace {

using namespace shardbench;

Program prepare(const std::vector<std::string>& arguments) {
  const ParsedCollectivesOptions parsed = parse_collectives_options(
      {arguments.begin() + 1, arguments.end()}, is_simulation() ? Build::simulated : Build::real);
  const CollectivesOptions options = parsed.options.value_or(CollectivesOptions{});
  Program program{.options = {.json = options_json(options), .refusal = parsed.error},
                  .answer = {},
                  .world = {.progress = options.progress,
                            .algorithm = options.algorithm,
                            .ranks_per_node = options.ranks_per_node},
                  .ranks = options.ranks,
                  .stall_timeout_s = options.stall_timeout_s,
                  .work = [=](const Surroundings& surroundings) {
                    return run_collectives(options, surroundings, arguments);
                  }};
  if (!parsed.help.empty()) {
    program.answer = [=] { return parsed.help; };
  } else if (options.show_version) {
    program.answer = [] { return version_text("collectives"); };
  } else if (options.plan) {
    program.answer = [=] { return collectives_plan_json(options) + "\n"; };
  }
  return program;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  return run_program("collectives", arguments, prepare);
}
