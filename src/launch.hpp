// How the processes of a job find out, before they do anything, that they are one job and of one mind.
#pragma once

#include "src/options.hpp"

namespace shardbench {

/// Without MPI only the launcher knows who is first; every process would print the same line.
bool speaks_before_start();

/// Collective: throws UsageError, alike on every rank, when a rank's command line was refused or when the
/// ranks' options differ; it names the rank and the option.
void agree_on_options(ControlChannel& channel, const ParsedOptions& own);

/// Throws UsageError when the world is not what --ranks expects, or when this process is alone although Slurm
/// started several: unconnected copies would each believe to be the whole job.
void check_world_size(const Options& options, int size);

}  // namespace shardbench
