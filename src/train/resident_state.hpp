// What a rank keeps between steps: parameters, gradients, and the optimizer state of what it owns.
#pragma once

#include <optional>
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
bodies::AdamW adamw_constants(const AdamWSettings& settings, const TensorInfo& tensor, std::int64_t update);

/// Resting state, with AdamW on the owned ranges. Bytes per element: parameters 2, gradients 2 (+4 with fp32
/// accumulation), optimizer 12 in bf16; 4 + 4 + 8 in fp32, where the parameter is its own master.
class ResidentState {
 public:
  /// Parameters start from the exact initial values.
  ResidentState(TrainContext& context, Residence residence);

  /// The ranges that this rank updates.
  [[nodiscard]] const std::vector<Slice>& owned() const { return residence_.owned; }
  [[nodiscard]] const Residence& residence() const { return residence_; }
  [[nodiscard]] const BufferRef& parameters() const { return parameters_; }

  enum class Accumulate { replace, add };
  /// Adds `count` reduced or local gradients into those resting at `at`, or replaces them (a step's first, an
  /// average).
  void accumulate_gradient(std::int64_t at, std::int64_t count, const Buffer& source,
                           std::int64_t source_offset, Accumulate mode);
  /// The most exact gradients held (fp32 accumulator, else the resting gradients); the optimizer reads them.
  [[nodiscard]] const Buffer& gradients() const { return accumulator_ ? *accumulator_ : *gradients_; }
  /// Those of an owned range.
  [[nodiscard]] kernels::TypedView gradient(std::size_t owned) const;

  /// What clipping works with; it stays on the device while a step runs.
  struct Clipping {
    DeviceScalar<double> squares;  ///< of gradients, over the owned ranges that no other rank counts
    DeviceScalar<double> of_all;   ///< over all ranks
    DeviceScalar<float> factor;    ///< of the gradients in update()
  };
  /// Only where computes().
  Clipping& clipping() { return *clipping_; }

  /// Finds clipping().squares.
  void square_gradients();
  /// What square_gradients() found, NaN without values. Waits for the device.
  [[nodiscard]] double gradient_squares() const;
  /// One AdamW step on what is owned.
  void update();

  /// fp32 masters of an owned range.
  [[nodiscard]] DeviceSpan<float> masters(std::size_t owned) const;
  [[nodiscard]] bool holds_values() const { return parameters_->holds_values(); }
  /// Whether gradients and updates have values, or time only passes.
  [[nodiscard]] bool computes() const { return holds_values() && context_.options.compute == Compute::real; }

 private:
  void initialise();
  [[nodiscard]] std::vector<float> initial_values(const Slice& slice) const;

  TrainContext& context_;
  Residence residence_;
  Elements owned_size_;
  BufferRef parameters_;
  BufferRef gradients_;
  BufferRef accumulator_;  ///< fp32, with --fp32-grad-accum
  BufferRef masters_;      ///< fp32 copies of what is owned; null when the parameters themselves are fp32
  BufferRef moment1_;
  BufferRef moment2_;
  std::optional<Clipping> clipping_;
  std::int64_t updates_ = 0;
};

}  // namespace shardbench
