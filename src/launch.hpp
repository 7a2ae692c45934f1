// How the processes of a job find out, before they do anything, that they are one job and of one mind.
#pragma once

#include "src/options.hpp"

namespace shardbench {

/// Without MPI only the launcher knows who is first; every process would print the same line.
bool speaks_before_start();

/// What one rank makes of its command line.
struct OwnOptions {
  std::string json;     ///< the effective options by long name, a JSON object; unless refused
  std::string refusal;  ///< why it is refused; else empty
};
OwnOptions own_options(const ParsedOptions& parsed);

/// Collective: throws UsageError, alike on every rank, when a rank's command line was refused, or when ranks
/// run another program, another build or other options than rank 0; it names the rank and all that differs.
/// Ranks exchange a hash; only where it differs do they say more.
void agree_on_options(ControlChannel& channel, const std::string& program, const OwnOptions& own);

/// Throws UsageError when the world is not what --ranks (`expected`) says, or when this process is alone
/// although Slurm started several: unconnected copies would each believe to be the whole job.
void check_world_size(std::optional<int> expected, int size);

}  // namespace shardbench
