#include "src/train/provenance.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "src/build_info.hpp"
#include "src/train/rank_setup.hpp"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace shardbench {
namespace {

// Environment that changes results; everything else stays private.
constexpr const char* recorded_prefixes[] = {"OMP_",
                                             "OPENBLAS_",
                                             "MPICH_",
                                             "UCX_",
                                             "NCCL_",
                                             "SLURM_NTASKS",
                                             "SLURM_CPUS_PER_TASK",
                                             "SLURM_JOB_NUM_NODES",
                                             "SLURM_TASKS_PER_NODE"};

std::string utc_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  return fmt::format(fmt::runtime(format), fmt::gmtime(now));
}

std::string job_name() {
  const char* job = std::getenv("SLURM_JOB_ID");
  return job != nullptr ? job : std::to_string(getpid());
}

}  // namespace

void describe_program(TraceFile& file, const std::string& scenario, const World& world,
                      const std::string& command_line) {
  const BuildInfo build = build_info();
  file.set("scenario", scenario);
  file.set("world_size", world.size());
  file.set("backend", "mpi");
  file.set("simulated", world.simulated() ? 1 : 0);
  file.set("git_commit", std::string(build.git_commit));
  file.set("git_dirty", build.git_dirty ? 1 : 0);
  file.set("build_type", std::string(build.build_type));
  file.set("created_utc", utc_now("{:%Y-%m-%dT%H:%M:%SZ}"));
  file.set("command_line", command_line);
  file.set("mpi_library", world.library());
  file.set("hdf5_version", hdf5_version());
  file.set("nccl_version", "none");
  file.set("launch_id", fmt::format("{}-{}", utc_now("{:%Y%m%dT%H%M%SZ}"), job_name()));
  file.set("oversubscribed", 0);  // corrected once every rank's placement is known
  file.set("steady", 0);
}

std::map<std::string, std::string> recorded_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    for (const char* prefix : recorded_prefixes)
      if (text.starts_with(prefix)) {
        variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
        break;
      }
  }
  return variables;
}

std::string simulation_json(const World& world) {
  const char* said = std::getenv("SHARDBENCH_SIMULATION");
  nlohmann::json provenance = nlohmann::json::parse(said != nullptr ? said : "null", nullptr, false);
  if (provenance.is_discarded()) provenance = said;
  if (const std::string machine = world.machine_description(); !machine.empty() && provenance.is_object())
    provenance["machine"] = nlohmann::json::parse(machine, nullptr, false);
  return provenance.dump();
}

void describe_run(TraceFile& file, const RunDescription& run) {
  const Options& options = run.options;
  const World& world = run.world;
  const nlohmann::json effective = nlohmann::json::parse(options_json(options));
  const ModelDims& d = options.dims;
  describe_program(file, run.scenario, world, run.command_line);
  file.set("backend", run.backend.name());
  file.set("nccl_version", run.backend.nccl_version());
  file.set("dp", options.dp);
  file.set("tp", options.tp);
  file.set("psi", parameter_count(d).count());
  file.set("compute", effective["compute"].get<std::string>());
  file.set("payload", effective["payload"].get<std::string>());
  file.set("seed", static_cast<std::int64_t>(options.seed));
  file.set("check", options.check == Check::on ? "running" : "off");

  nlohmann::ordered_json config;
  config["options"] = nlohmann::ordered_json::parse(options_json(options));
  config["model"] = nlohmann::ordered_json::parse(model_json(d));
  config["model"]["psi"] = parameter_count(d).count();
  if (const Hardware* const hardware = world.hardware())
    config["hardware"] = {{"name", hardware->name},
                          {"peak_flops", hardware->peak_flops},
                          {"efficiency", hardware->efficiency},
                          {"memory_bandwidth", hardware->memory_bandwidth},
                          {"launch_s", hardware->launch_s}};
  config["wait_policy"] = world.wait_policy();
  // Ranks leave it up to ceil(log2 N) message latencies apart; see barrier() in control.cpp.
  config["window_barrier"] =
      "dissemination over point-to-point messages, before the first step of a window only";
  config["threads_per_rank"] = thread_count(options, world.placement());
  config["environment"] = recorded_environment();
  if (world.simulated()) config["simulation"] = nlohmann::json::parse(simulation_json(world));
  file.set_config(config.dump());
}

std::string default_output(const std::string& scenario, int ranks) {
  return fmt::format("{}_n{}_{}_{}.h5", scenario, ranks, utc_now("{:%Y%m%dT%H%M%SZ}"), job_name());
}

}  // namespace shardbench
