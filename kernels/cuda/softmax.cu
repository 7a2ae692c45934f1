// The rows of attention's scores, a warp each.
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/lanes.cuh"

namespace shardbench::kernels::cuda {
namespace {

constexpr int rows_per_block = block_threads / warp_size;

__global__ void __launch_bounds__(block_threads)
    causal_softmax_rows(float* __restrict__ scores, float* __restrict__ log_sum_exp, QueryTile tile,
                        float scale) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_per_block + threadIdx.x / warp_size;
  if (row >= tile.rows) return;
  const std::int64_t head = blockIdx.y;
  bodies::causal_softmax(Warp<Rows::anywhere>{}, scores + (head * tile.rows + row) * tile.reach,
                         log_sum_exp + head * tile.head_stride_lse + row, tile.first + row, tile.reach,
                         scale);
}

__global__ void __launch_bounds__(block_threads)
    causal_softmax_backward_rows(float* __restrict__ scores, float* __restrict__ d_scores,
                                 const float* __restrict__ log_sum_exp, const float* __restrict__ out,
                                 const float* __restrict__ d_out, QueryTile tile, float scale) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_per_block + threadIdx.x / warp_size;
  if (row >= tile.rows) return;
  const std::int64_t head = blockIdx.y;
  const Warp<Rows::anywhere> lanes;
  const std::int64_t at = row * tile.row_stride + head * tile.head_stride;
  float own = 0.0F;
  lanes.each(tile.head_size, [&](std::int64_t c) { own += out[at + c] * d_out[at + c]; });
  const std::int64_t first_score = (head * tile.rows + row) * tile.reach;
  bodies::causal_softmax_backward(lanes, scores + first_score, d_scores + first_score,
                                  log_sum_exp[head * tile.head_stride_lse + row], lanes.sum(own),
                                  tile.first + row, tile.reach, scale);
}

dim3 grid_of(const QueryTile& tile) {
  return {blocks_for(tile.rows, rows_per_block), static_cast<unsigned int>(tile.heads)};
}

}  // namespace

void causal_softmax(float* scores, float* log_sum_exp, const QueryTile& tile, float scale,
                    cudaStream_t stream) {
  causal_softmax_rows<<<grid_of(tile), block_threads, 0, stream>>>(scores, log_sum_exp, tile, scale);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void causal_softmax_backward(float* scores, float* d_scores, const float* log_sum_exp, const float* out,
                             const float* d_out, const QueryTile& tile, float scale, cudaStream_t stream) {
  causal_softmax_backward_rows<<<grid_of(tile), block_threads, 0, stream>>>(scores, d_scores, log_sum_exp,
                                                                            out, d_out, tile, scale);
  SHARDBENCH_CUDA(cudaGetLastError());
}

}  // namespace shardbench::kernels::cuda
