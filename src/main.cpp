// The main of every scenario: parse, enter the world, run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "src/backends.hpp"
#include "src/comm/mpi/mpi_world.hpp"
#include "src/options.hpp"
#include "src/program.hpp"
#include "src/train/plan.hpp"
#include "src/train/run.hpp"

namespace {

using namespace shardbench;

Program prepare(const ScenarioDefinition& definition, const std::vector<std::string>& arguments) {
  const ParsedOptions parsed =
      try_parse_options(definition.name, definition.options, {arguments.begin() + 1, arguments.end()},
                        is_simulation() ? Build::simulated
                        : has_nccl()    ? Build::accelerated
                                        : Build::real);
  const Options options = parsed.options.value_or(Options{});
  Program program{.options = own_options(parsed),
                  .answer = {},
                  .world = {.progress = options.progress,
                            .algorithm = options.algorithm,
                            .ranks_per_node = options.ranks_per_node,
                            .contention = options.contention},
                  .ranks = options.ranks,
                  .stall_timeout_s = options.stall_timeout_s,
                  .work = [=](const Surroundings& surroundings) {
                    return run_scenario(options, definition, surroundings, make_backend,
                                        fmt::format("{}", fmt::join(arguments, " ")));
                  }};
  if (!parsed.help.empty()) {
    program.answer = [=] { return parsed.help; };
  } else if (options.show_version) {
    program.answer = [=] { return version_text(definition.name); };
  } else if (options.plan) {
    program.answer = [=] { return plan_json(options, definition) + "\n"; };
  }
  return program;
}

}  // namespace

int main(int argc, char** argv) {
  const ScenarioDefinition definition = scenario_definition();
  const std::vector<std::string> arguments(argv, argv + argc);
  return run_program(definition.name, arguments,
                     [&](const auto& given) { return prepare(definition, given); });
}
