// Flat gradient buckets: filled in reverse declaration order while backward runs.
#pragma once

#include <vector>

#include "src/shard/layout.hpp"
#include "src/train/resident_state.hpp"

namespace shardbench {

/// Averages the resting gradients over the data-parallel ranks, bucket by bucket, each as soon as backward
/// has passed the last of its layers.
class GradientBuckets {
 public:
  /// `whole` holds every tensor's gradient. Values are multiplied by `scale` (1 / (A * dp)) on their way in.
  GradientBuckets(TrainContext& context, TracedCommunicator dp, ResidentState& whole,
                  std::vector<Bucket> buckets, double scale);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Starts the all-reduce of every bucket that is complete once `layer` has gone through backward.
  void reduce_completed(int layer);
  /// Waits for all buckets in order and stores the averages.
  void wait();

 private:
  struct Reduction {
    int bucket;
    BufferRef buffer;
    InFlight collective;
  };
  void start(int index);

  TrainContext& context_;
  TracedCommunicator dp_;
  ResidentState& whole_;
  std::vector<Bucket> buckets_;
  float scale_;
  int next_ = 0;
  std::vector<Reduction> in_flight_;
};

/// fp32 gradients of one layer at a time, added into the resting gradients when the layer's backward is done.
class LayerGradients {
 public:
  LayerGradients(TrainContext& context, ResidentState& whole);

  /// A new optimizer step: the first contribution to each tensor replaces what rested there.
  void begin_step();
  void open(int layer);
  [[nodiscard]] const GradientTable& gradients() const { return table_; }
  void add_to_resting(int layer);

 private:
  TrainContext& context_;
  ResidentState& whole_;
  BufferRef buffer_;
  GradientTable table_;
  std::vector<ResidentState::Accumulate> mode_;
};

}  // namespace shardbench
