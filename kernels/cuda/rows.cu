// Bodies that compute one row: a warp takes a row of the model's width, a block one of the vocabulary's.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/lanes.cuh"

namespace shardbench::kernels::cuda {
namespace {

constexpr int rows_per_block = block_threads / warp_size;

/// What the compiler has to know to load and store packs: `columns` as a multiple of a pack ...
template <Rows alignment>
__device__ std::int64_t in_packs(std::int64_t columns) {
  return alignment == Rows::aligned ? columns / pack * pack : columns;
}
/// ... and addresses that are multiples of one.
template <Rows alignment, class T>
__device__ T* in_packs(T* data) {
  return alignment == Rows::aligned ? static_cast<T*>(__builtin_assume_aligned(data, pack * sizeof(T)))
                                    : data;
}

/// The row of this warp.
__device__ std::int64_t warp_row() {
  return static_cast<std::int64_t>(blockIdx.x) * rows_per_block + threadIdx.x / warp_size;
}

template <Rows alignment, class Weight>
__global__ void __launch_bounds__(block_threads)
    embedding_forward_rows(float* __restrict__ y, const Weight* __restrict__ table,
                           const std::int32_t* __restrict__ tokens, std::int64_t rows, std::int64_t width) {
  width = in_packs<alignment>(width);
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  bodies::embedding_forward(Warp<alignment>{}, in_packs<alignment>(y) + row * width,
                            in_packs<alignment>(table), tokens[row], width);
}

template <Rows alignment>
__global__ void __launch_bounds__(block_threads)
    embedding_backward_rows(float* __restrict__ d_table, const float* __restrict__ dy,
                            const std::int32_t* __restrict__ tokens, std::int64_t rows, std::int64_t width) {
  width = in_packs<alignment>(width);
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  bodies::embedding_backward(Warp<alignment>{}, row, in_packs<alignment>(d_table), in_packs<alignment>(dy),
                             tokens, rows, width);
}

template <Rows alignment, class Weight>
__global__ void __launch_bounds__(block_threads)
    rms_norm_forward_rows(float* __restrict__ y, const float* __restrict__ x,
                          const Weight* __restrict__ weight, std::int64_t rows, std::int64_t width,
                          float epsilon) {
  width = in_packs<alignment>(width);
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  bodies::rms_norm_forward(Warp<alignment>{}, in_packs<alignment>(y) + row * width,
                           in_packs<alignment>(x) + row * width, in_packs<alignment>(weight), width, epsilon);
}

template <Rows alignment, class Weight>
__global__ void __launch_bounds__(block_threads)
    rms_norm_backward_rows(float* __restrict__ dx, float* __restrict__ inverse_rms,
                           const float* __restrict__ dy, const float* __restrict__ x,
                           const Weight* __restrict__ weight, std::int64_t rows, std::int64_t width,
                           float epsilon) {
  width = in_packs<alignment>(width);
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  bodies::rms_norm_backward_input(Warp<alignment>{}, in_packs<alignment>(dx) + row * width, inverse_rms + row,
                                  in_packs<alignment>(dy) + row * width, in_packs<alignment>(x) + row * width,
                                  in_packs<alignment>(weight), width, epsilon);
}

constexpr int column_parts = 32;

/// 32 columns a block: each warp adds up a run of rows, then the first adds up the warps, in order.
__global__ void __launch_bounds__(warp_size* column_parts)
    rms_norm_backward_columns(float* __restrict__ d_weight, const float* __restrict__ dy,
                              const float* __restrict__ x, const float* __restrict__ inverse_rms,
                              std::int64_t rows, std::int64_t width) {
  __shared__ float sums[column_parts][warp_size];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp_size + threadIdx.x;
  const std::int64_t part = threadIdx.y;
  const std::int64_t begin = rows * part / column_parts;
  const std::int64_t end = rows * (part + 1) / column_parts;
  sums[part][threadIdx.x] =
      column < width ? bodies::rms_norm_backward_weight(column, dy + begin * width, x + begin * width,
                                                        inverse_rms + begin, end - begin, width)
                     : 0.0F;
  __syncthreads();
  if (part > 0 || column >= width) return;
  float sum = 0.0F;
  for (int p = 0; p < column_parts; ++p) sum += sums[p][threadIdx.x];
  d_weight[column] += sum;
}

__global__ void __launch_bounds__(block_threads)
    rope_table_entries(float* cosines, float* sines, std::int64_t positions, std::int64_t pairs,
                       double theta) {
  const std::int64_t entry = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (entry >= positions * pairs) return;
  bodies::rope_table_entry(cosines + entry, sines + entry, entry / pairs, entry % pairs, 2 * pairs, theta);
}

/// A block a token: neighbouring threads have neighbouring pairs, and none divides by more than 32 bits.
__global__ void __launch_bounds__(block_threads)
    rope_rows(float* __restrict__ x, const float* __restrict__ cosines, const float* __restrict__ sines,
              std::int64_t positions, int heads, int pairs, bodies::Rotation rotation) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t entry = row % positions * pairs;
  float* const of_row = x + row * heads * pairs * 2;
  for (int pair = static_cast<int>(threadIdx.x); pair < heads * pairs; pair += block_threads) {
    const int in_head = pair % pairs;
    bodies::rope(Neighbours{in_head, pairs}, of_row + 2 * (pair - in_head), cosines + entry, sines + entry,
                 2 * pairs, rotation);
  }
}

template <Rows alignment>
__global__ void __launch_bounds__(block_threads)
    cross_entropy_rows(float* __restrict__ losses, float* __restrict__ logits,
                       const std::int32_t* __restrict__ targets, std::int64_t vocabulary, float scale) {
  vocabulary = in_packs<alignment>(vocabulary);
  const std::int64_t row = blockIdx.x;
  bodies::cross_entropy(Block<block_threads, alignment>{}, losses + row,
                        in_packs<alignment>(logits) + row * vocabulary, targets[row], vocabulary, scale);
}

template <Rows alignment>
__global__ void __launch_bounds__(block_threads)
    row_maxima(float* __restrict__ largest, const float* __restrict__ logits, std::int64_t columns) {
  columns = in_packs<alignment>(columns);
  const std::int64_t row = blockIdx.x;
  const Block<block_threads, alignment> lanes;
  const float found = bodies::row_maximum(lanes, in_packs<alignment>(logits) + row * columns, columns);
  if (lanes.index == 0) largest[row] = found;
}

template <Rows alignment>
__global__ void __launch_bounds__(block_threads)
    row_exponential_sums(float* __restrict__ total, float* __restrict__ target_logit,
                         const float* __restrict__ logits, const float* __restrict__ largest,
                         const std::int32_t* __restrict__ targets, std::int64_t columns) {
  columns = in_packs<alignment>(columns);
  const std::int64_t row = blockIdx.x;
  bodies::row_exponentials(Block<block_threads, alignment>{}, total + row, target_logit + row,
                           in_packs<alignment>(logits) + row * columns, largest[row], targets[row], columns);
}

template <Rows alignment>
__global__ void __launch_bounds__(block_threads)
    cross_entropy_gradient_rows(float* __restrict__ losses, float* __restrict__ logits,
                                const float* __restrict__ largest, const float* __restrict__ total,
                                const float* __restrict__ target_logit,
                                const std::int32_t* __restrict__ targets, std::int64_t columns, float scale) {
  columns = in_packs<alignment>(columns);
  const std::int64_t row = blockIdx.x;
  bodies::cross_entropy_gradient(Block<block_threads, alignment>{}, losses + row,
                                 in_packs<alignment>(logits) + row * columns,
                                 {largest[row], total[row], target_logit[row]}, targets[row], columns, scale);
}

template <Rows alignment>
__global__ void __launch_bounds__(block_threads)
    add_up(double* total, const float* __restrict__ values, std::int64_t count) {
  count = in_packs<alignment>(count);
  const Block<block_threads, alignment> lanes;
  const double sum = bodies::sum(lanes, in_packs<alignment>(values), count);
  if (lanes.index == 0) *total += sum;
}

template <Rows alignment, class Storage>
__global__ void __launch_bounds__(block_threads)
    partial_squares(double* __restrict__ partial_sums, const Storage* __restrict__ values, std::int64_t count,
                    std::int64_t piece) {
  count = in_packs<alignment>(count);
  piece = in_packs<alignment>(piece);
  const std::int64_t first = blockIdx.x * piece;
  const Block<block_threads, alignment> lanes;
  const double sum = bodies::sum_of_squares(lanes, in_packs<alignment>(values) + first,
                                            first + piece < count ? piece : count - first);
  if (lanes.index == 0) partial_sums[blockIdx.x] = sum;
}

__global__ void add_up_parts(double* total, const double* partial_sums, std::int64_t parts) {
  double sum = 0.0;
  for (std::int64_t part = threadIdx.x; part < parts; part += warp_size) sum += partial_sums[part];
  sum = Warp<Rows::anywhere>{}.sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

__global__ void narrow_one(float* to, const double* from) { *to = static_cast<float>(*from); }
__global__ void widen_one(double* to, const float* from) { *to = static_cast<double>(*from); }
__global__ void clip_factor_of(float* factor, const double* squares, double bound) {
  *factor = bodies::clip_factor(*squares, bound);
}

/// Calls with Rows::aligned as a constant where `columns` and all addresses allow packs.
template <class Use, class... T>
void with_alignment(std::int64_t columns, Use&& use, const T*... addresses) {
  if (columns % pack == 0 && (is_aligned(addresses) && ...)) {
    use(std::integral_constant<Rows, Rows::aligned>{});
  } else {
    use(std::integral_constant<Rows, Rows::anywhere>{});
  }
}

}  // namespace

void embedding_forward(Matrix y, TypedView table, DeviceSpan<const std::int32_t> tokens,
                       cudaStream_t stream) {
  if (y.rows == 0) return;
  for_storage(table, [&](const auto* weights) {
    with_alignment(
        y.columns,
        [&](auto alignment) {
          embedding_forward_rows<alignment()>
              <<<blocks_for(y.rows, rows_per_block), block_threads, 0, stream>>>(
                  y.data, weights, tokens.data(), y.rows, y.columns);
        },
        y.data, weights);
  });
  SHARDBENCH_CUDA(cudaGetLastError());
}

void embedding_backward(Matrix d_table, ConstMatrix dy, DeviceSpan<const std::int32_t> tokens,
                        cudaStream_t stream) {
  if (dy.rows == 0) return;
  with_alignment(
      dy.columns,
      [&](auto alignment) {
        embedding_backward_rows<alignment()>
            <<<blocks_for(dy.rows, rows_per_block), block_threads, 0, stream>>>(
                d_table.data, dy.data, tokens.data(), dy.rows, dy.columns);
      },
      d_table.data, dy.data);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void rms_norm_forward(Matrix y, ConstMatrix x, TypedView weight, float epsilon, cudaStream_t stream) {
  if (x.rows == 0) return;
  for_storage(weight, [&](const auto* w) {
    with_alignment(
        x.columns,
        [&](auto alignment) {
          rms_norm_forward_rows<alignment()>
              <<<blocks_for(x.rows, rows_per_block), block_threads, 0, stream>>>(y.data, x.data, w, x.rows,
                                                                                 x.columns, epsilon);
        },
        y.data, x.data, w);
  });
  SHARDBENCH_CUDA(cudaGetLastError());
}

void rms_norm_backward(Matrix dx, DeviceSpan<float> d_weight, DeviceSpan<float> inverse_rms, ConstMatrix dy,
                       ConstMatrix x, TypedView weight, float epsilon, cudaStream_t stream) {
  if (x.rows == 0) return;
  for_storage(weight, [&](const auto* w) {
    with_alignment(
        x.columns,
        [&](auto alignment) {
          rms_norm_backward_rows<alignment()>
              <<<blocks_for(x.rows, rows_per_block), block_threads, 0, stream>>>(
                  dx.data, inverse_rms.data(), dy.data, x.data, w, x.rows, x.columns, epsilon);
        },
        dx.data, dy.data, x.data, w);
  });
  rms_norm_backward_columns<<<blocks_for(x.columns, warp_size), dim3(warp_size, column_parts), 0, stream>>>(
      d_weight.data(), dy.data, x.data, inverse_rms.data(), x.rows, x.columns);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void rope_table(Matrix cosines, Matrix sines, std::int64_t head_size, double theta, cudaStream_t stream) {
  rope_table_entries<<<blocks_for(cosines.rows * head_size / 2, block_threads), block_threads, 0, stream>>>(
      cosines.data, sines.data, cosines.rows, head_size / 2, theta);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void rope(Matrix x, ConstMatrix cosines, ConstMatrix sines, bodies::Rotation rotation, cudaStream_t stream) {
  if (x.rows == 0) return;
  const std::int64_t pairs = cosines.columns;
  const std::int64_t heads = x.columns / (2 * pairs);
  rope_rows<<<blocks_for(x.rows, 1), block_threads, 0, stream>>>(x.data, cosines.data, sines.data,
                                                                 cosines.rows, static_cast<int>(heads),
                                                                 static_cast<int>(pairs), rotation);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void cross_entropy(DeviceSpan<float> losses, Matrix logits, DeviceSpan<const std::int32_t> targets,
                   float scale, cudaStream_t stream) {
  if (logits.rows == 0) return;
  with_alignment(
      logits.columns,
      [&](auto alignment) {
        cross_entropy_rows<alignment()><<<blocks_for(logits.rows, 1), block_threads, 0, stream>>>(
            losses.data(), logits.data, targets.data(), logits.columns, scale);
      },
      logits.data);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void row_maximum(DeviceSpan<float> largest, ConstMatrix logits, cudaStream_t stream) {
  if (logits.rows == 0) return;
  with_alignment(
      logits.columns,
      [&](auto alignment) {
        row_maxima<alignment()><<<blocks_for(logits.rows, 1), block_threads, 0, stream>>>(
            largest.data(), logits.data, logits.columns);
      },
      logits.data);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void row_exponentials(DeviceSpan<float> total, DeviceSpan<float> target_logit, ConstMatrix logits,
                      DeviceSpan<const float> largest, DeviceSpan<const std::int32_t> targets,
                      cudaStream_t stream) {
  if (logits.rows == 0) return;
  with_alignment(
      logits.columns,
      [&](auto alignment) {
        row_exponential_sums<alignment()><<<blocks_for(logits.rows, 1), block_threads, 0, stream>>>(
            total.data(), target_logit.data(), logits.data, largest.data(), targets.data(), logits.columns);
      },
      logits.data);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void cross_entropy_gradient(DeviceSpan<float> losses, Matrix logits, const Kernels::RowStatistics& rows,
                            DeviceSpan<const std::int32_t> targets, float scale, cudaStream_t stream) {
  if (logits.rows == 0) return;
  with_alignment(
      logits.columns,
      [&](auto alignment) {
        cross_entropy_gradient_rows<alignment()><<<blocks_for(logits.rows, 1), block_threads, 0, stream>>>(
            losses.data(), logits.data, rows.largest.data(), rows.total.data(), rows.target_logit.data(),
            targets.data(), logits.columns, scale);
      },
      logits.data);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void add_sum(DeviceSpan<double> total, DeviceSpan<const float> values, cudaStream_t stream) {
  with_alignment(
      values.size(),
      [&](auto alignment) {
        add_up<alignment()><<<1, block_threads, 0, stream>>>(total.data(), values.data(), values.size());
      },
      values.data());
  SHARDBENCH_CUDA(cudaGetLastError());
}

void add_squares(DeviceSpan<double> total, TypedView values, DeviceSpan<double> partial_sums,
                 cudaStream_t stream) {
  const std::int64_t count = values.elements();
  if (count == 0) return;
  // A piece keeps a block busy for a while, and begins where 16-byte loads may.
  constexpr std::int64_t smallest_piece = 16 * block_threads;
  constexpr std::int64_t multiple = 8;
  const std::int64_t piece =
      ceil_div(std::max(smallest_piece, ceil_div(count, most_partial_sums)), multiple) * multiple;
  const unsigned int parts = blocks_for(count, piece);
  for_storage(values, [&](const auto* data) {
    with_alignment(
        count,
        [&](auto alignment) {
          partial_squares<alignment()>
              <<<parts, block_threads, 0, stream>>>(partial_sums.data(), data, count, piece);
        },
        data);
  });
  add_up_parts<<<1, warp_size, 0, stream>>>(total.data(), partial_sums.data(), parts);
  SHARDBENCH_CUDA(cudaGetLastError());
}

void narrow(DeviceSpan<float> to, DeviceSpan<const double> from, cudaStream_t stream) {
  narrow_one<<<1, 1, 0, stream>>>(to.data(), from.data());
  SHARDBENCH_CUDA(cudaGetLastError());
}

void widen(DeviceSpan<double> to, DeviceSpan<const float> from, cudaStream_t stream) {
  widen_one<<<1, 1, 0, stream>>>(to.data(), from.data());
  SHARDBENCH_CUDA(cudaGetLastError());
}

void clip_factor(DeviceSpan<float> factor, DeviceSpan<const double> squares, double bound,
                 cudaStream_t stream) {
  clip_factor_of<<<1, 1, 0, stream>>>(factor.data(), squares.data(), bound);
  SHARDBENCH_CUDA(cudaGetLastError());
}

}  // namespace shardbench::kernels::cuda
