// Teams of lanes for the bodies of rows: a warp, or a block of threads.
#pragma once

#include <cmath>
#include <cstdint>

namespace shardbench::kernels::cuda {

constexpr int warp_size = 32;
constexpr unsigned int whole_warp = 0xFFFFFFFFU;
constexpr int pack = 4;  // columns that a lane takes at once: 16 bytes of fp32

/// Whether rows begin at multiples of 16 bytes and are whole packs long, so that packs are single loads and
/// stores.
enum class Rows { aligned, anywhere };

/// Deals columns out: in packs where rows are aligned, one by one where they are not.
template <Rows rows, class Use>
__device__ void each_of(std::int64_t columns, std::int64_t index, std::int64_t count, Use&& use) {
  constexpr int width = rows == Rows::aligned ? pack : 1;
  const std::int64_t packs = columns / width;
#pragma unroll 1
  for (std::int64_t i = index; i < packs; i += count) {
    const std::int64_t first = width * i;
#pragma unroll
    for (int k = 0; k < width; ++k) use(first + k);
  }
}

/// All values of a pack are made before one is stored: else the compiler would have to load them singly.
template <Rows rows, class Value>
__device__ void fill_of(float* to, std::int64_t columns, std::int64_t index, std::int64_t count,
                        Value&& value) {
  constexpr int width = rows == Rows::aligned ? pack : 1;
  struct alignas(4 * width) Values {
    float of[width];
  };
  const std::int64_t packs = columns / width;
#pragma unroll 1
  for (std::int64_t i = index; i < packs; i += count) {
    const std::int64_t first = width * i;
    Values values;
#pragma unroll
    for (int k = 0; k < width; ++k) values.of[k] = value(first + k);
    *reinterpret_cast<Values*>(to + first) = values;
  }
}

template <class Value, class Combine>
__device__ Value over_warp(Value value, Combine combine) {
#pragma unroll
  for (int distance = warp_size / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(whole_warp, value, distance));
  return value;
}

struct Add {
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return a + b;
  }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return std::fmax(a, b); }
};

/// All threads of a warp.
template <Rows rows>
struct Warp {
  std::int64_t index = threadIdx.x % warp_size;
  static constexpr std::int64_t count = warp_size;

  template <class Use>
  __device__ void each(std::int64_t columns, Use&& use) const {
    each_of<rows>(columns, index, count, use);
  }
  template <class Value>
  __device__ void fill(float* to, std::int64_t columns, Value&& value) const {
    fill_of<rows>(to, columns, index, count, value);
  }
  __device__ float sum(float value) const { return over_warp(value, Add{}); }
  __device__ double sum(double value) const { return over_warp(value, Add{}); }
  __device__ float maximum(float value) const { return over_warp(value, Larger{}); }
  __device__ bool any(bool value) const { return __any_sync(whole_warp, value) != 0; }
};

/// All `threads` of a block. Sums are those of its warps, added in order.
template <int threads, Rows rows>
struct Block {
  std::int64_t index = threadIdx.x;
  static constexpr std::int64_t count = threads;
  static constexpr int warps = threads / warp_size;

  template <class Use>
  __device__ void each(std::int64_t columns, Use&& use) const {
    each_of<rows>(columns, index, count, use);
  }
  template <class Value>
  __device__ void fill(float* to, std::int64_t columns, Value&& value) const {
    fill_of<rows>(to, columns, index, count, value);
  }
  __device__ float sum(float value) const { return over_block(value, Add{}); }
  __device__ double sum(double value) const { return over_block(value, Add{}); }
  __device__ float maximum(float value) const { return over_block(value, Larger{}); }
  __device__ bool any(bool value) const { return __syncthreads_or(value) != 0; }

 private:
  template <class Value, class Combine>
  __device__ Value over_block(Value value, Combine combine) const {
    __shared__ Value of_warps[warps];
    value = over_warp(value, combine);
    __syncthreads();  // the one before may still be read
    if (index % warp_size == 0) of_warps[index / warp_size] = value;
    __syncthreads();
    Value all = of_warps[0];
    for (int warp = 1; warp < warps; ++warp) all = combine(all, of_warps[warp]);
    return all;
  }
};

/// Some neighbouring threads that need no sums.
struct Neighbours {
  std::int64_t index;
  std::int64_t count;

  template <class Use>
  __device__ void each(std::int64_t columns, Use&& use) const {
    for (std::int64_t c = index; c < columns; c += count) use(c);
  }
};

}  // namespace shardbench::kernels::cuda
