#include "src/launch.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/errors.hpp"

namespace shardbench {

bool speaks_before_start() {
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

OwnOptions own_options(const ParsedOptions& parsed) {
  return {.json = parsed.options ? options_json(*parsed.options) : "{}", .refusal = parsed.error};
}

void agree_on_options(ControlChannel& channel, const OwnOptions& own) {
  const nlohmann::json mine =
      own.refusal.empty() ? nlohmann::json::parse(own.json) : nlohmann::json({{"refused", own.refusal}});
  const std::string text = mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto everyone = gather(channel, as_message<char>(std::span<const char>(text)));
  agree_with_root(channel, [&] {
    const auto parse = [](const std::vector<std::byte>& message) {
      const auto characters = from_message<char>(message);
      return nlohmann::json::parse(characters.begin(), characters.end());
    };
    for (std::size_t rank = 0; rank < everyone.size(); ++rank) {
      const nlohmann::json theirs = parse(everyone[rank]);
      if (theirs.contains("refused"))
        throw UsageError(rank == 0 ? theirs["refused"].get<std::string>()
                                   : fmt::format("rank {}: {}", rank, theirs["refused"].get<std::string>()));
      for (const auto& [option, value] : theirs.items())
        if (mine.value(option, nlohmann::json()) != value)
          throw UsageError(
              fmt::format("ranks disagree: --{} is {} on rank 0, but {} on rank {}; start every rank with "
                          "the same options",
                          option, mine.value(option, nlohmann::json()).dump(), value.dump(), rank));
    }
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
