// Tiles in shared memory and the fragments of them that a warp's lanes hold for tensor cores.
//
// The instruction is mma.sync.aligned.m16n8k16 (bf16 in, fp32 sums); who holds what is PTX ISA's section
// "Matrix Fragments for mma.m16n8k16", and ldmatrix's of its own section. A `Machine` carries instructions
// out: those of a GPU in attention.cu, emulated ones in the unit tests, which so run the very text that a GPU
// runs.
//
//   thread() lane() warp() shared()             who this is, and where the block's shared memory begins
//   copy(to, from, bytes)                       cp.async of 16 bytes to shared memory, zeros past `bytes`
//   copy_value(to, from, bytes)                 the same of 4
//   commit() wait() sync()                      close a group of copies; wait for all groups; meet the block
//   load_matrices(r, row) load_transposed(...)  ldmatrix.x4: each lane names a row of 16 bytes
//   multiply_add(c, a, b0, b1)                  mma
//   shuffle_xor(value, mask)
//   load_pair(pair, from)                       two neighbouring fp32 values of shared memory
//   load_four(values, from) store_four(to, ...) 16 bytes of global memory
//   narrow_pair(low, high) exp2(x)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bodies/portable.hpp"

#if defined(__CUDACC__)
#define SHARDBENCH_LANE __device__ __forceinline__
#define SHARDBENCH_UNROLL _Pragma("unroll")
#define SHARDBENCH_LOOP _Pragma("unroll 1")
#else
#define SHARDBENCH_LANE inline
#define SHARDBENCH_UNROLL
#define SHARDBENCH_LOOP
#endif

namespace shardbench::kernels::cuda {

using bodies::BFloat16;

constexpr int fragment_rows = 16;  // of a left operand and of sums: a warp's
constexpr int chunk_bytes = 16;    // what one lane copies, and a row of one of ldmatrix's matrices
constexpr int chunk_elements = 8;

/// Row and column, within 16 rows and 8 columns of sums, of a lane's value `index` (0 to 3).
constexpr int sum_row(int lane, int index) { return lane / 4 + 8 * (index / 2); }
constexpr int sum_column(int lane, int index) { return 2 * (lane % 4) + index % 2; }

/// A place in a tile: 16 bytes of a row.
struct Place {
  int row;
  int chunk;
};
/// What a lane names to ldmatrix.x4 for 16 rows and columns of which it gets its part of a left operand; or,
/// transposed, of two right operands of 8 columns each.
constexpr Place left_place(int lane) { return {lane % 16, lane / 16}; }
/// The same for two right operands that lie in the tile as 8 rows each.
constexpr Place right_place(int lane) { return {lane % 8 + 8 * (lane / 16), lane / 8 % 2}; }

constexpr int tile_alignment = 256;  // bytes of the widest row

/// A [rows, width] tile of bf16 in shared memory. Within a row chunks are permuted, so that the 8 rows of one
/// of ldmatrix's matrices cover all 32 banks; unpermuted, rows of 128 bytes would begin in one bank.
template <int rows_, int width_>
struct Tile {
  static constexpr int rows = rows_;
  static constexpr int width = width_;
  static constexpr int chunks = width / chunk_elements;
  static constexpr int bytes = rows * width * 2;
  static constexpr int rows_of_all_banks = std::max(1, 8 / chunks);  // 128 bytes

  std::uint32_t address;  ///< a multiple of tile_alignment

  [[nodiscard]] static constexpr int offset_of(Place place) {
    const int swapped = place.chunk ^ (place.row / rows_of_all_banks % std::min(chunks, 8));
    return (place.row * chunks + swapped) * chunk_bytes;
  }
  /// Of rows from `row`, a multiple of 16, and chunks from `chunk`, an even one: then both only move the
  /// place, and a lane needs one address of a tile.
  [[nodiscard]] SHARDBENCH_LANE std::uint32_t at(int row, int chunk, Place place) const {
    const std::uint32_t lane_address = address + static_cast<std::uint32_t>(offset_of(place));
    return (lane_address ^ static_cast<std::uint32_t>(chunk * chunk_bytes)) +
           static_cast<std::uint32_t>(row * width * 2);
  }
};

/// One head's vectors of a sequence in global memory.
template <class Value>
struct HeadRows {
  Value* data;
  std::int64_t row_stride;  ///< elements
  int rows;
  int width;  ///< a multiple of chunk_elements

  [[nodiscard]] SHARDBENCH_LANE Value* row(int index) const {
    return data + static_cast<std::int64_t>(index) * row_stride;
  }
};

/// Starts to copy rows `first` and following; zeros stand where there are no rows or columns.
template <int threads, class Machine, int rows, int width>
SHARDBENCH_LANE void copy_tile(Machine& machine, const Tile<rows, width>& to,
                               const HeadRows<const BFloat16>& from, int first) {
  constexpr int chunks = Tile<rows, width>::chunks;
  constexpr int all = rows * chunks;
  SHARDBENCH_UNROLL
  for (int begin = 0; begin < all; begin += threads) {
    const int index = begin + machine.thread();
    if (all % threads != 0 && index >= all) break;
    const Place place{index / chunks, index % chunks};
    const int column = place.chunk * chunk_elements;
    const bool is_there = first + place.row < from.rows && column < from.width;
    const BFloat16* source = is_there ? from.row(first + place.row) + column : from.data;
    machine.copy(to.at(0, 0, place), source, is_there ? chunk_bytes : 0);
  }
}

/// Sums of 16 rows, a warp's.
template <int columns>
struct Sums {
  float of[columns / 8][4] = {};
};

/// Calls use(value, half, column): the value's row is sum_row(lane, 2 * half), a compile-time half.
template <class Machine, int columns, class Use>
SHARDBENCH_LANE void each_sum(Machine& machine, Sums<columns>& sums, Use&& use) {
  SHARDBENCH_UNROLL
  for (int j = 0; j < columns / 8; ++j) {
    SHARDBENCH_UNROLL
    for (int index = 0; index < 4; ++index)
      use(sums.of[j][index], index / 2, 8 * j + sum_column(machine.lane(), index));
  }
}

template <int columns>
SHARDBENCH_LANE void multiply(Sums<columns>& sums, const Sums<columns>& factors) {
  SHARDBENCH_UNROLL
  for (int j = 0; j < columns / 8; ++j) {
    SHARDBENCH_UNROLL
    for (int index = 0; index < 4; ++index) sums.of[j][index] *= factors.of[j][index];
  }
}

/// A left operand of 16 rows, in registers.
template <int columns>
struct Left {
  std::uint32_t of[columns / 16][4];

  template <class Machine>
  SHARDBENCH_LANE void get(Machine&, std::uint32_t (&a)[4], int step) const {
    SHARDBENCH_UNROLL
    for (int i = 0; i < 4; ++i) a[i] = of[step][i];
  }
};

/// A left operand that stays in shared memory: 16 rows from `first_row`.
template <class TileType>
struct LeftInTile {
  TileType tile;
  int first_row;

  template <class Machine>
  SHARDBENCH_LANE void get(Machine& machine, std::uint32_t (&a)[4], int step) const {
    machine.load_matrices(a, tile.at(first_row, 2 * step, left_place(machine.lane())));
  }
};

template <class Machine, int rows, int width>
SHARDBENCH_LANE void load_left(Machine& machine, Left<width>& left, const Tile<rows, width>& tile,
                               int first_row) {
  SHARDBENCH_UNROLL
  for (int step = 0; step < width / 16; ++step)
    machine.load_matrices(left.of[step], tile.at(first_row, 2 * step, left_place(machine.lane())));
}

/// Sums become a left operand where they are: a lane holds the same rows and columns of both.
template <class Machine, int columns>
SHARDBENCH_LANE void narrow(Machine& machine, Left<columns>& left, const Sums<columns>& sums) {
  SHARDBENCH_UNROLL
  for (int step = 0; step < columns / 16; ++step) {
    SHARDBENCH_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float(&from)[4] = sums.of[2 * step + i / 2];
      left.of[step][i] = machine.narrow_pair(from[2 * (i % 2)], from[2 * (i % 2) + 1]);
    }
  }
}

/// sums[16, n] += left[16, k] right[n, k]^T
template <class Machine, int n, class LeftType, int k>
SHARDBENCH_LANE void add_product_transposed(Machine& machine, Sums<n>& sums, const LeftType& left,
                                            const Tile<n, k>& right) {
  SHARDBENCH_UNROLL
  for (int step = 0; step < k / 16; ++step) {
    std::uint32_t a[4];
    left.get(machine, a, step);
    SHARDBENCH_UNROLL
    for (int j = 0; j < n / 16; ++j) {
      std::uint32_t b[4];
      machine.load_matrices(b, right.at(16 * j, 2 * step, right_place(machine.lane())));
      machine.multiply_add(sums.of[2 * j], a, b[0], b[1]);
      machine.multiply_add(sums.of[2 * j + 1], a, b[2], b[3]);
    }
  }
}

/// sums[16, n] += left[16, k] right[k, n]
template <class Machine, int n, class LeftType, int k>
SHARDBENCH_LANE void add_product(Machine& machine, Sums<n>& sums, const LeftType& left,
                                 const Tile<k, n>& right) {
  SHARDBENCH_UNROLL
  for (int step = 0; step < k / 16; ++step) {
    std::uint32_t a[4];
    left.get(machine, a, step);
    SHARDBENCH_UNROLL
    for (int j = 0; j < n / 16; ++j) {
      std::uint32_t b[4];
      machine.load_transposed(b, right.at(16 * step, 2 * j, left_place(machine.lane())));
      machine.multiply_add(sums.of[2 * j], a, b[0], b[1]);
      machine.multiply_add(sums.of[2 * j + 1], a, b[2], b[3]);
    }
  }
}

/// A value for each of the two rows of which a lane holds sums.
struct RowPair {
  float of[2];
};

/// A row's values lie with four neighbouring lanes.
template <class Machine, class Combine>
SHARDBENCH_LANE float over_row(Machine& machine, float value, Combine combine) {
  value = combine(value, machine.shuffle_xor(value, 1));
  return combine(value, machine.shuffle_xor(value, 2));
}

/// Stores factor * sums to rows `first` and following, as far as there are rows and columns. Even lanes give
/// their lower row's two values to their neighbour and get two of the upper row, so that each stores 16
/// bytes.
template <class Machine, int columns>
SHARDBENCH_LANE void store_rows(Machine& machine, const HeadRows<float>& to, int first,
                                const Sums<columns>& sums, const RowPair& factor) {
  const int lane = machine.lane();
  const bool is_odd = lane % 2 != 0;
  const int row = first + sum_row(lane, is_odd ? 2 : 0);
  SHARDBENCH_UNROLL
  for (int j = 0; j < columns / 8; ++j) {
    const float(&from)[4] = sums.of[j];
    const float upper[2] = {factor.of[0] * from[0], factor.of[0] * from[1]};
    const float lower[2] = {factor.of[1] * from[2], factor.of[1] * from[3]};
    const float got[2] = {machine.shuffle_xor(is_odd ? upper[0] : lower[0], 1),
                          machine.shuffle_xor(is_odd ? upper[1] : lower[1], 1)};
    const float values[4] = {is_odd ? got[0] : upper[0], is_odd ? got[1] : upper[1],
                             is_odd ? lower[0] : got[0], is_odd ? lower[1] : got[1]};
    const int column = 8 * j + sum_column(lane, 0) / 4 * 4;
    if (row < to.rows && column < to.width) machine.store_four(to.row(row) + column, values);
  }
}

}  // namespace shardbench::kernels::cuda
