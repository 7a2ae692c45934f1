// The lifetime of unsharded parameters: gathered ahead of use, copied out, freed.
#pragma once

#include <vector>

#include "src/shard/layout.hpp"
#include "src/train/resident_state.hpp"

namespace shardbench {

/// Gathers groups of sharded parameters. A group is sharded, in flight, or unsharded; its all-gather output
/// and its copied-out tensors count as gathered_parameters while they live.
class GatheredParameters {
 public:
  /// `layouts` by group; `shards` holds this rank's slices of every group, group after group.
  GatheredParameters(TrainContext& context, TracedCommunicator dp, const std::vector<Group>& groups,
                     const std::vector<GroupLayout>& layouts, const ResidentState& shards);

  /// Issues the group's all-gather unless it is already in flight or unsharded.
  void gather(int group);
  /// Completes the group's all-gather, so that its tensors can be read from weights().
  void wait(int group);
  /// Frees the group's unsharded parameters.
  void reshard(int group);

  /// What is unsharded now.
  [[nodiscard]] const WeightTable& weights() const { return weights_; }

 private:
  struct State {
    InFlight gather;
    BufferRef output;     ///< rank-major, as the collective leaves it
    BufferRef unsharded;  ///< tensor-major, where the layout needs a copy
    bool ready = false;
  };

  void copy_out(const GroupLayout& layout, const Buffer& output, const Buffer& unsharded);
  void expose(int group, const Buffer& buffer);

  TrainContext& context_;
  TracedCommunicator dp_;
  const std::vector<Group>& groups_;
  const std::vector<GroupLayout>& layouts_;
  const ResidentState& shards_;
  std::vector<std::int64_t> shard_offset_;  ///< by group, into the resident parameters
  std::vector<State> states_;
  WeightTable weights_;
};

}  // namespace shardbench
