// What a rank keeps between steps: its shards of parameters, gradients and optimizer state.
#pragma once

#include <vector>

#include "src/shard/layout.hpp"
#include "src/train/context.hpp"

namespace shardbench {

/// AdamW's constants (docs/contract.md).
struct AdamWSettings {
  float learning_rate = 3e-4F;
  double beta1 = 0.9;
  double beta2 = 0.95;
  float epsilon = 1e-8F;
  float weight_decay = 0.1F;  ///< none on norm weights
};

/// The constants of the step that is the `update`-th (from 1) for one tensor.
bodies::AdamW adamw_constants(const AdamWSettings& settings, const TensorInfo& tensor, std::int64_t update,
                              double gradient_factor);

/// Slices of tensors held by this rank, with AdamW on them. Bytes per element held: parameters 2, gradients 2
/// (+4 with fp32 accumulation), optimizer 12 in bf16; 4 + 4 + 8 in fp32, where the parameter is its own
/// master.
class ResidentState {
 public:
  /// `slices` need offsets that pack them densely; masters start from the exact initial values.
  ResidentState(TrainContext& context, std::vector<Slice> slices);

  [[nodiscard]] const std::vector<Slice>& slices() const { return slices_; }
  [[nodiscard]] const Buffer& parameters() const { return *parameters_; }

  enum class Accumulate { replace, add };
  /// Adds reduced or local gradients of one slice into the resting ones, or replaces them (a step's first, an
  /// average).
  void accumulate_gradient(const Slice& slice, const Buffer& source, std::int64_t source_offset,
                           Accumulate mode);
  /// The most exact gradient held (fp32 accumulator, else the resting gradient); the optimizer reads it.
  [[nodiscard]] const Buffer& gradients() const { return accumulator_ ? *accumulator_ : *gradients_; }

  /// Sum of squares over the slices held here; NaN without values.
  double gradient_squares();
  /// One AdamW step on every slice; gradients enter times `gradient_factor`.
  void update(double gradient_factor);

  /// fp32 masters of a slice.
  [[nodiscard]] std::span<const float> masters(const Slice& slice) const;
  [[nodiscard]] bool holds_values() const { return parameters_->holds_values(); }

 private:
  [[nodiscard]] std::span<float> values(const BufferRef& buffer, const Slice& slice) const;
  void initialise();

  TrainContext& context_;
  std::vector<Slice> slices_;
  Elements size_;
  BufferRef parameters_;
  BufferRef gradients_;
  BufferRef accumulator_;  ///< fp32, with --fp32-grad-accum
  BufferRef masters_;      ///< fp32; the parameters themselves when those are fp32
  BufferRef moment1_;
  BufferRef moment2_;
  std::int64_t updates_ = 0;
};

}  // namespace shardbench
