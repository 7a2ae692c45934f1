// Attention on tensor cores: bf16 operands, fp32 sums, no scores in memory.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/kernels.hpp"

namespace shardbench::kernels::cuda {

/// [T, heads*hd] and [T, kv_heads*hd], rounded to bf16.
struct AttentionOperands {
  const bodies::BFloat16* q;
  const bodies::BFloat16* k;
  const bodies::BFloat16* v;
};

/// Whether heads are 8 to 128 wide in steps of 8, so that a vector is whole 16-byte pieces. Widths between
/// 16, 32, 64 and 128 cost what the next of these does.
[[nodiscard]] bool has_tiled_attention(const AttentionShape& shape);

/// For shapes that have it: out[T, heads*hd] and log_sum_exp[sequences*heads*length], as
/// Kernels::attention_forward.
void tiled_attention_forward(float* out, float* log_sum_exp, const AttentionOperands& operands,
                             const AttentionShape& shape, cudaStream_t stream);

struct AttentionBackward {
  float* dq;
  float* dk;
  float* dv;
  const float* d_out;
  const bodies::BFloat16* rounded_d_out;
  const float* out;
  const float* log_sum_exp;
  float* row_products;  ///< scratch, as many values as log_sum_exp
};
/// Overwrites dq, dk and dv, with the same bits every time.
void tiled_attention_backward(const AttentionBackward& buffers, const AttentionOperands& operands,
                              const AttentionShape& shape, cudaStream_t stream);

}  // namespace shardbench::kernels::cuda
