// Flat gradient buckets: filled in reverse declaration order while backward runs, reduced as they fill up.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "src/shard/layout.hpp"
#include "src/train/resident_state.hpp"

namespace shardbench {

class GradientBuckets {
 public:
  /// What a bucket goes through: an all-reduce, where `layouts` have one part, or a reduce-scatter, where
  /// they have one part a rank. Values are multiplied by `scale` (1 / (A * dp)) on their way in.
  GradientBuckets(TrainContext& context, TracedCommunicator dp, Collective collective,
                  const std::vector<Bucket>& buckets, const std::vector<GroupLayout>& layouts,
                  ResidentState& state, double scale);

  /// Where the gradient of a tensor is to be read.
  struct Source {
    const Buffer& buffer;
    std::int64_t offset;
  };
  using SourceOf = std::function<Source(int tensor)>;
  /// Backward has passed `layer`: copies the gradients that are now final into their buckets and starts the
  /// reduction of each bucket that is full, strictly in order (a reduce-scatter after the one before has been
  /// waited for, with --rs-wait next). Results go to the owned resting gradients, as `mode` says.
  void add_final(int layer, const SourceOf& gradient_of, ResidentState::Accumulate mode);
  /// Waits for all reductions in order and stores their results.
  void wait();

 private:
  struct Reduction {
    int bucket;
    BufferRef buffer;
    InFlight collective;
    ResidentState::Accumulate mode;
  };

  void fill(int bucket, int tensor, const Source& source);
  void start(int bucket, ResidentState::Accumulate mode);
  void finish_oldest();
  [[nodiscard]] int part() const { return collective_ == Collective::all_reduce ? 0 : dp_.rank(); }

  TrainContext& context_;
  TracedCommunicator dp_;
  Collective collective_;
  const std::vector<Bucket>& buckets_;
  const std::vector<GroupLayout>& layouts_;
  ResidentState& state_;
  float scale_;
  std::vector<int> bucket_of_tensor_;
  std::vector<std::int64_t> offset_in_bucket_;  ///< by tensor
  std::vector<std::size_t> first_owned_;        ///< by bucket, into the owned ranges
  std::vector<BufferRef> filling_;              ///< by bucket
  std::deque<Reduction> in_flight_;
  int next_ = 0;
};

}  // namespace shardbench
