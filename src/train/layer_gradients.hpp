// Unsharded fp32 gradients of single tensors: made by backward, gone as soon as they have been added
// somewhere.
#pragma once

#include <span>
#include <vector>

#include "src/train/gradient_buckets.hpp"
#include "src/train/resident_state.hpp"

namespace shardbench {

class LayerGradients {
 public:
  explicit LayerGradients(TrainContext& context);

  /// Makes the gradients of the layer's tensors available to backward, zeroed unless already open.
  void open(int layer);
  [[nodiscard]] const GradientTable& gradients() const { return table_; }
  [[nodiscard]] const Buffer& of(int tensor) const { return *buffers_[static_cast<std::size_t>(tensor)]; }
  [[nodiscard]] GradientBuckets::SourceOf source() const {
    return [this](int tensor) { return GradientBuckets::Source{of(tensor), 0}; };
  }
  void free(int tensor);
  /// Frees those to which no layer further down will add.
  void free_final(int layer);

 private:
  TrainContext& context_;
  std::vector<BufferRef> buffers_;
  GradientTable table_;
};

/// Whole resting gradients, into which the micro-batches of a step accumulate (DDP, ZeRO-1).
class AccumulatedGradients {
 public:
  AccumulatedGradients(TrainContext& context, ResidentState& state);

  /// A new optimizer step: the first contribution to each tensor replaces what rested there.
  void begin_step();
  /// Adds the layer's gradients and frees them.
  void add(int layer, LayerGradients& gradients);
  [[nodiscard]] GradientBuckets::SourceOf source() const {
    return [this](int tensor) {
      return GradientBuckets::Source{state_.gradients(), offsets_[static_cast<std::size_t>(tensor)]};
    };
  }

 private:
  TrainContext& context_;
  ResidentState& state_;
  std::vector<std::int64_t> offsets_;  ///< by tensor
  std::vector<ResidentState::Accumulate> mode_;
};

}  // namespace shardbench
