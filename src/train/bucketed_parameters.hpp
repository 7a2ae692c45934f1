// Whole parameters that rest on every rank, each bucket of which is updated by its owners and then gathered.
#pragma once

#include <vector>

#include "src/shard/layout.hpp"
#include "src/train/resident_state.hpp"

namespace shardbench {

class BucketedParameters {
 public:
  /// `state` holds the buckets one after the other, padding included, so that they are gathered in place.
  BucketedParameters(TrainContext& context, TracedCommunicator dp, const std::vector<Bucket>& buckets,
                     const std::vector<GroupLayout>& layouts, const ResidentState& state);

  /// Issues the all-gather of every bucket in the order in which forward needs them.
  void gather();
  /// Completes the all-gathers of the buckets that hold the layer's tensors.
  void wait(int layer);
  void wait_all();
  [[nodiscard]] const WeightTable& weights() const { return weights_; }

 private:
  TrainContext& context_;
  TracedCommunicator dp_;
  const std::vector<GroupLayout>& layouts_;
  const ResidentState& state_;
  std::vector<int> bucket_of_tensor_;
  std::vector<InFlight> gathers_;  ///< by bucket
  WeightTable weights_;
};

}  // namespace shardbench
