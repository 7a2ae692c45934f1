// Launches the bodies on a stream. All of them return before the work is done.
//
// Shapes as in kernels.hpp. Nothing here adds floats in an order that depends on timing.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/kernels.hpp"

namespace shardbench::kernels::cuda {

// Elements.
void add(Matrix y, ConstMatrix x, cudaStream_t stream);
void scaled_copy(TypedView destination, TypedView source, float scale, cudaStream_t stream);
void accumulate(TypedView destination, TypedView source, cudaStream_t stream);
void swiglu_forward(Matrix gated, ConstMatrix gate, ConstMatrix up, cudaStream_t stream);
/// d_gate and d_up have one storage type.
void swiglu_backward(TypedView d_gate, TypedView d_up, ConstMatrix d_gated, ConstMatrix gate, ConstMatrix up,
                     cudaStream_t stream);
void adamw(DeviceSpan<float> master, DeviceSpan<float> moment1, DeviceSpan<float> moment2,
           TypedView parameter, TypedView gradient, DeviceSpan<const float> gradient_factor,
           const bodies::AdamW& constants, cudaStream_t stream);

// Rows.
void embedding_forward(Matrix y, TypedView table, DeviceSpan<const std::int32_t> tokens, cudaStream_t stream);
void embedding_backward(Matrix d_table, ConstMatrix dy, DeviceSpan<const std::int32_t> tokens,
                        cudaStream_t stream);
void rms_norm_forward(Matrix y, ConstMatrix x, TypedView weight, float epsilon, cudaStream_t stream);
void rms_norm_backward(Matrix dx, DeviceSpan<float> d_weight, DeviceSpan<float> inverse_rms, ConstMatrix dy,
                       ConstMatrix x, TypedView weight, float epsilon, cudaStream_t stream);
void rope_table(Matrix cosines, Matrix sines, std::int64_t head_size, double theta, cudaStream_t stream);
void rope(Matrix x, ConstMatrix cosines, ConstMatrix sines, bodies::Rotation rotation, cudaStream_t stream);
void cross_entropy(DeviceSpan<float> losses, Matrix logits, DeviceSpan<const std::int32_t> targets,
                   float scale, cudaStream_t stream);
void row_maximum(DeviceSpan<float> largest, ConstMatrix logits, cudaStream_t stream);
void row_exponentials(DeviceSpan<float> total, DeviceSpan<float> target_logit, ConstMatrix logits,
                      DeviceSpan<const float> largest, DeviceSpan<const std::int32_t> targets,
                      cudaStream_t stream);
void cross_entropy_gradient(DeviceSpan<float> losses, Matrix logits, const Kernels::RowStatistics& rows,
                            DeviceSpan<const std::int32_t> targets, float scale, cudaStream_t stream);

// Attention: rows of queries that are handled at once, for several heads.
struct QueryTile {
  std::int64_t first;  ///< position of the first row
  std::int64_t rows;
  std::int64_t reach;  ///< keys that the last row sees
  std::int64_t heads;
  std::int64_t head_size;
  std::int64_t row_stride;   ///< of queries and outputs
  std::int64_t head_stride;  ///< from one of the heads to the next, likewise
  std::int64_t head_stride_lse;
};
/// scores[heads, rows, reach] become probabilities; `log_sum_exp` is that of the first row and head.
void causal_softmax(float* scores, float* log_sum_exp, const QueryTile& tile, float scale,
                    cudaStream_t stream);
/// scores become probabilities, d_scores (the gradient of probabilities) that of scores.
void causal_softmax_backward(float* scores, float* d_scores, const float* log_sum_exp, const float* out,
                             const float* d_out, const QueryTile& tile, float scale, cudaStream_t stream);

// Single numbers.
/// Values of scratch that add_squares needs.
constexpr std::int64_t most_partial_sums = 1024;
void add_sum(DeviceSpan<double> total, DeviceSpan<const float> values, cudaStream_t stream);
void add_squares(DeviceSpan<double> total, TypedView values, DeviceSpan<double> partial_sums,
                 cudaStream_t stream);
void narrow(DeviceSpan<float> to, DeviceSpan<const double> from, cudaStream_t stream);
void widen(DeviceSpan<double> to, DeviceSpan<const float> from, cudaStream_t stream);
void clip_factor(DeviceSpan<float> factor, DeviceSpan<const double> squares, double bound,
                 cudaStream_t stream);

}  // namespace shardbench::kernels::cuda
