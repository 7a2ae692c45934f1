// Unsharded gradients of gather groups, reduce-scattered into the resident shards.
#pragma once

#include <deque>
#include <vector>

#include "src/shard/layout.hpp"
#include "src/train/resident_state.hpp"

namespace shardbench {

class GradientReducer {
 public:
  /// Every gradient is multiplied by `scale` (1 / (A * dp)) on its way into the reduction, so that the sum
  /// over ranks and micro-batches of local means is the global mean.
  GradientReducer(TrainContext& context, TracedCommunicator dp, const std::vector<Group>& groups,
                  const std::vector<GroupLayout>& layouts, ResidentState& shards, double scale);

  /// Makes the group's unsharded fp32 gradients available to backward, zeroed on first use.
  void open(int group);
  [[nodiscard]] const GradientTable& gradients() const { return table_; }

  /// Casts the group's gradients into a reduction buffer, frees them and starts the reduce-scatter.
  void reduce_scatter(int group, ResidentState::Accumulate mode);
  /// Waits for every reduce-scatter in flight and adds its block into the resident gradients.
  void wait();

 private:
  struct Reduction {
    int group;
    ResidentState::Accumulate mode;
    BufferRef buffer;
    InFlight collective;
  };

  void copy_into_blocks(const GroupLayout& layout, const Buffer& unsharded, const Buffer& buffer);
  void finish(Reduction& reduction);

  TrainContext& context_;
  TracedCommunicator dp_;
  const std::vector<Group>& groups_;
  const std::vector<GroupLayout>& layouts_;
  ResidentState& shards_;
  float scale_;
  std::vector<std::int64_t> first_slice_;  ///< by group, into the resident slices
  std::vector<BufferRef> unsharded_;
  GradientTable table_;
  std::deque<Reduction> in_flight_;
};

}  // namespace shardbench
