// The compute a decoder and an optimizer ask for, whatever device runs it.
//
// Addresses are the device's. Matrices are row-major fp32; weights are [out, in] in their storage type.
// Shapes are checked by the callers that own them (src/model, src/train); implementations assert only what
// would corrupt memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/bodies/elementwise.hpp"
#include "kernels/bodies/rows.hpp"
#include "src/device/device_span.hpp"
#include "src/units.hpp"

namespace shardbench {
class Buffer;
}

namespace shardbench::kernels {

/// fp32 activations, [rows, columns].
struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
struct ConstMatrix {
  const float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  ConstMatrix() = default;
  ConstMatrix(const float* d, std::int64_t r, std::int64_t c) : data(d), rows(r), columns(c) {}
  ConstMatrix(const Matrix& m)
      : data(m.data), rows(m.rows), columns(m.columns) {}  // NOLINT: meant to convert
};

/// What a product reads: a matrix, and its copy in the products' type where somebody has made it already.
struct ProductInput {
  ConstMatrix values;
  std::shared_ptr<Buffer> rounded;
  ProductInput(const ConstMatrix& m, std::shared_ptr<Buffer> copy = nullptr)  // NOLINT: meant to convert
      : values(m), rounded(std::move(copy)) {}
  ProductInput(const Matrix& m) : values(m) {}  // NOLINT: meant to convert
};

/// Elements in their storage type: a weight [rows, columns], or a flat range with columns = 1.
struct TypedView {
  std::byte* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t rows = 0;
  std::int64_t columns = 1;
  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
};

/// What a GEMM does with what its output already holds.
enum class Output { overwrite, accumulate };

/// Causal grouped-query attention over sequences of equal length; rows are tokens, sequence after sequence.
struct AttentionShape {
  std::int64_t sequences;
  std::int64_t length;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_size;
};

/// Sizes that bound the scratch memory of an implementation.
struct ScratchNeeds {
  std::int64_t longest_sequence;
  std::int64_t widest_weight_row;
  int threads;
};

class Kernels {
 public:
  Kernels() = default;
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  virtual ~Kernels() = default;

  /// For several products that read the same values: what has to be rounded for them is rounded once.
  virtual ProductInput prepare(ConstMatrix values) { return values; }
  /// y[T, out] = x[T, in] W^T
  virtual void linear_forward(Matrix y, const ProductInput& x, TypedView weight, Output output) = 0;
  /// dx[T, in] (+)= dy[T, out] W
  virtual void linear_backward_input(Matrix dx, const ProductInput& dy, TypedView weight, Output output) = 0;
  /// dW[out, in] += dy^T x
  virtual void linear_backward_weight(Matrix d_weight, const ProductInput& dy, const ProductInput& x) = 0;

  /// y[T, h] = rows `tokens[T]` of table[V, h]; negative tokens, which other tensor-parallel ranks hold, give
  /// zeros.
  virtual void embedding_forward(Matrix y, TypedView table, DeviceSpan<const std::int32_t> tokens) = 0;
  /// d_table[tokens[t], :] += dy[t, :]; negative tokens add nothing.
  virtual void embedding_backward(Matrix d_table, ConstMatrix dy, DeviceSpan<const std::int32_t> tokens) = 0;

  /// y = x / sqrt(mean(x^2) + epsilon) * weight, row by row
  virtual void rms_norm_forward(Matrix y, ConstMatrix x, TypedView weight, float epsilon) = 0;
  /// dx += gradient of the input, d_weight[h] += gradient of the weight. `inverse_rms` is scratch of T
  /// values.
  virtual void rms_norm_backward(Matrix dx, DeviceSpan<float> d_weight, DeviceSpan<float> inverse_rms,
                                 ConstMatrix dy, ConstMatrix x, TypedView weight, float epsilon) = 0;

  /// Fills cosines and sines, each [length, head_size/2].
  virtual void rope_table(Matrix cosines, Matrix sines, std::int64_t head_size, double theta) = 0;
  /// Turns every head of x[T, heads*head_size] in place; row t is at position t mod table rows.
  virtual void rope(Matrix x, ConstMatrix cosines, ConstMatrix sines, bodies::Rotation rotation) = 0;

  /// out[T, heads*hd] from q[T, heads*hd], k and v[T, kv_heads*hd]; log_sum_exp[sequences*heads*length] is
  /// kept for backward instead of the probabilities.
  virtual void attention_forward(Matrix out, DeviceSpan<float> log_sum_exp, ConstMatrix q, ConstMatrix k,
                                 ConstMatrix v, const AttentionShape& shape) = 0;
  /// Overwrites dq, dk, dv.
  virtual void attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix d_out, ConstMatrix out,
                                  DeviceSpan<const float> log_sum_exp, ConstMatrix q, ConstMatrix k,
                                  ConstMatrix v, const AttentionShape& shape) = 0;

  virtual void swiglu_forward(Matrix gated, ConstMatrix gate, ConstMatrix up) = 0;
  struct GatedGradients {
    ProductInput gate;
    ProductInput up;
  };
  /// Returns what products read of both gradients. Where that is rounded, d_gate and d_up stay undefined.
  virtual GatedGradients swiglu_backward(Matrix d_gate, Matrix d_up, ConstMatrix d_gated, ConstMatrix gate,
                                         ConstMatrix up) = 0;

  /// Losses per row; logits[T, V] become their gradient times `scale`.
  virtual void cross_entropy(DeviceSpan<float> losses, Matrix logits, DeviceSpan<const std::int32_t> targets,
                             float scale) = 0;

  /// The parts of cross_entropy where other ranks hold further columns of the rows (Megatron-LM's
  /// vocabulary-parallel loss): the largest logit of each row ...
  virtual void row_maximum(DeviceSpan<float> largest, ConstMatrix logits) = 0;
  /// ... sum(exp(z - largest)) and the target's logit, 0 where the target is negative ...
  virtual void row_exponentials(DeviceSpan<float> total, DeviceSpan<float> target_logit, ConstMatrix logits,
                                DeviceSpan<const float> largest, DeviceSpan<const std::int32_t> targets) = 0;
  /// What all ranks together found for each row.
  struct RowStatistics {
    DeviceSpan<const float> largest;
    DeviceSpan<const float> total;
    DeviceSpan<const float> target_logit;
  };
  /// ... and losses and gradient.
  virtual void cross_entropy_gradient(DeviceSpan<float> losses, Matrix logits, const RowStatistics& rows,
                                      DeviceSpan<const std::int32_t> targets, float scale) = 0;

  /// y += x
  virtual void add(Matrix y, ConstMatrix x) = 0;
  /// destination = scale * source, cast on the way. Equal element counts.
  virtual void scaled_copy(TypedView destination, TypedView source, float scale) = 0;
  /// destination += source, rounded once to the destination's type. Equal element counts.
  virtual void accumulate(TypedView destination, TypedView source) = 0;
  virtual void fill_zero(TypedView destination) = 0;

  // Numbers that a step makes stay on the device until it is over; `total` and the others are single values.

  /// total += the sum in double, value after value.
  virtual void add_sum(DeviceSpan<double> total, DeviceSpan<const float> values) = 0;
  /// total += the sum of squares in double, the same for any thread count.
  virtual void add_squares(DeviceSpan<double> total, TypedView values) = 0;
  virtual void narrow(DeviceSpan<float> to, DeviceSpan<const double> from) = 0;
  virtual void widen(DeviceSpan<double> to, DeviceSpan<const float> from) = 0;
  /// factor = min(1, bound / (sqrt(squares) + 1e-6)), or 1 where squares are NaN.
  virtual void clip_factor(DeviceSpan<float> factor, DeviceSpan<const double> squares, double bound) = 0;

  /// One AdamW step over equally long ranges, gradients times `gradient_factor` (one value). With fp32
  /// parameters `parameter.data` may equal `master`.
  virtual void adamw(DeviceSpan<float> master, DeviceSpan<float> moment1, DeviceSpan<float> moment2,
                     TypedView parameter, TypedView gradient, DeviceSpan<const float> gradient_factor,
                     const bodies::AdamW& constants) = 0;
};

/// fp32 values of scratch that `make_openmp_kernels` needs.
std::int64_t openmp_scratch_elements(const ScratchNeeds& needs);

/// OpenMP loops over the bodies and BLAS for the matrix products. `between_tiles` is called on the calling
/// thread between compute tiles (about a millisecond apart) to let pending communication advance.
std::unique_ptr<Kernels> make_openmp_kernels(const ScratchNeeds& needs, DeviceSpan<float> scratch,
                                             std::function<void()> between_tiles);

}  // namespace shardbench::kernels
