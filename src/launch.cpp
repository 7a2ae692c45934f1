#include "src/launch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "src/build_id.hpp"
#include "src/build_info.hpp"
#include "src/errors.hpp"

namespace shardbench {
namespace {

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

/// Whether the text is the same on every rank. Collective.
bool everyone_says(ControlChannel& channel, const std::string& text) {
  const std::uint64_t own = hash_of(text);
  const auto message = as_message<std::uint64_t>(std::span(&own, 1));
  const auto first = from_message<std::uint64_t>(broadcast(channel, {message.begin(), message.end()}));
  return maximum(channel, first.front() == own ? 0.0 : 1.0) == 0.0;
}

/// All that must be alike on every rank.
nlohmann::json self_portrait(const std::string& program, const OwnOptions& own) {
  const BuildInfo build = build_info();
  return {{"program", program},
          {"build", fmt::format("{} {}{} {} {}", build.version, build.git_commit,
                                build.git_dirty ? " (modified)" : "", build.build_type, build_id())},
          {"options", own.refusal.empty() ? nlohmann::json::parse(own.json) : nlohmann::json::object()},
          {"refused", own.refusal}};
}

/// Every key in which `theirs` is not what rank 0 says, with both values; empty where there is none.
std::string describe_differences(const nlohmann::json& mine, const nlohmann::json& theirs) {
  std::vector<std::string> differences;
  for (const char* key : {"program", "build"})
    if (mine[key] != theirs[key])
      differences.push_back(fmt::format("{} {} (rank 0: {})", key, theirs[key].dump(), mine[key].dump()));
  for (const auto& [option, value] : theirs["options"].items())
    if (const nlohmann::json own = mine["options"].value(option, nlohmann::json()); own != value)
      differences.push_back(fmt::format("--{} {} (rank 0: {})", option, value.dump(), own.dump()));
  return fmt::format("{}", fmt::join(differences, ", "));
}

}  // namespace

bool speaks_before_start() {
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

OwnOptions own_options(const ParsedOptions& parsed) {
  if (!parsed.options) return {.json = "{}", .refusal = parsed.error};
  const Options& options = *parsed.options;
  nlohmann::json json = nlohmann::json::parse(options_json(options));
  // What overrides a preset is the model's in the file, but an option on the command line.
  const nlohmann::json model = nlohmann::json::parse(model_json(options.dims));
  for (const auto& [dimension, value] : model.items()) {
    std::string option = dimension;
    std::replace(option.begin(), option.end(), '_', '-');
    json[option] = value;
  }
  json["output"] = options.output;
  json["overwrite"] = options.existing_file == ExistingFile::overwrite;
  return {.json = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), .refusal = {}};
}

void agree_on_options(ControlChannel& channel, const std::string& program, const OwnOptions& own) {
  const nlohmann::json mine = self_portrait(program, own);
  const std::string text = mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (everyone_says(channel, text) && own.refusal.empty()) return;
  const auto everyone = gather(channel, as_message<char>(std::span<const char>(text)));
  agree_with_root(channel, [&] {
    for (std::size_t rank = 0; rank < everyone.size(); ++rank) {
      const auto characters = from_message<char>(everyone[rank]);
      const nlohmann::json theirs = nlohmann::json::parse(characters.begin(), characters.end());
      if (const std::string refusal = theirs["refused"]; !refusal.empty())
        throw UsageError(rank == 0 ? refusal : fmt::format("rank {}: {}", rank, refusal));
      const std::string differences = describe_differences(mine, theirs);
      if (!differences.empty())
        throw UsageError(
            fmt::format("ranks disagree: rank {} has {}; start every rank with the same build and options",
                        rank, differences));
    }
    throw InternalError("ranks disagree, but not on anything that they say");
    return std::string();
  });
}

void check_world_size(std::optional<int> expected, int size) {
  if (expected && *expected != size)
    throw UsageError(
        fmt::format("--ranks {} was expected, but the world has {} rank{}; is the launcher made for this "
                    "MPI library (mpiexec, or srun --mpi=pmi2)?",
                    *expected, size, size == 1 ? "" : "s"));
  const char* tasks = std::getenv("SLURM_NTASKS");
  const bool has_launcher = std::getenv("PMI_RANK") != nullptr || std::getenv("PMI_FD") != nullptr ||
                            std::getenv("PMIX_RANK") != nullptr;
  if (!expected && size == 1 && !has_launcher && tasks != nullptr && std::atoi(tasks) > 1)
    throw UsageError(
        fmt::format("SLURM_NTASKS is {}, but this process is alone in its world of 1 rank; start it with "
                    "srun --mpi=pmi2 or mpiexec, or pass --ranks 1",
                    tasks));
}

}  // namespace shardbench
