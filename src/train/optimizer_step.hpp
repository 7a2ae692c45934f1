// The optimizer step shared by scenarios: gradient norm, clipping, AdamW.
#pragma once

#include <optional>

#include "src/train/resident_state.hpp"

namespace shardbench {

/// Clips by the global norm over `world` (empty: this rank's gradients are already global) and updates.
void clip_and_update(TrainContext& context, ResidentState& state, std::optional<TracedCommunicator>& world);

/// The world communicator that clip_and_update needs when gradients are sharded; none without clipping.
std::optional<TracedCommunicator> make_clipping_communicator(TrainContext& context);

/// Throws UsageError, alike on every rank, where a group that the run will need cannot use its algorithm.
void check_groups(const Options& options, const World& world);

/// Communicators over the data-parallel group: one for both directions, or two, so that
/// all-gathers and reduce-scatters need not wait for each other.
struct DataParallelCommunicators {
  TracedCommunicator gather;
  TracedCommunicator reduce;
};
DataParallelCommunicators make_data_parallel_communicators(TrainContext& context);

}  // namespace shardbench
