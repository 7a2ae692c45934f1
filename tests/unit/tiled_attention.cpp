// The text of the GPU's attention kernels, run by emulated warps: layouts, and results against a reference in
// double and against the kernels of the CPU.
#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "kernels/cuda/flash_attention.hpp"
#include "tests/unit/attention_reference.hpp"
#include "tests/unit/emulated_warps.hpp"
#include "tests/unit/support.hpp"

namespace shardbench::test {
namespace {

using bodies::BFloat16;
using kernels::AttentionShape;
using namespace kernels::cuda;

// --- layouts

template <class TileType>
void expect_each_place_once() {
  std::set<int> offsets;
  for (int row = 0; row < TileType::rows; ++row)
    for (int chunk = 0; chunk < TileType::chunks; ++chunk) {
      const int offset = TileType::offset_of({row, chunk});
      EXPECT_EQ(offset % chunk_bytes, 0);
      EXPECT_GE(offset, 0);
      EXPECT_LT(offset, TileType::bytes);
      offsets.insert(offset);
    }
  EXPECT_EQ(std::ssize(offsets), TileType::rows * TileType::chunks);
}

/// 8 lanes move 16 bytes each at a time, in all 32 banks of 4 bytes.
template <class TileType, class PlaceOf>
void expect_all_banks(PlaceOf place_of) {
  const TileType tile{0};
  for (int row = 0; row < TileType::rows; row += fragment_rows)
    for (int chunk = 0; chunk < TileType::chunks; chunk += 2)
      for (int first = 0; first < 32; first += 8) {
        std::set<std::uint32_t> banks;
        for (int lane = first; lane < first + 8; ++lane)
          banks.insert(tile.at(row, chunk, place_of(lane)) / 4 % 32);
        EXPECT_EQ(banks.size(), 8U) << "row " << row << ", chunk " << chunk << ", lanes from " << first;
      }
}

template <class TileType>
void expect_sound_layout() {
  SCOPED_TRACE(testing::Message() << TileType::rows << " rows of " << TileType::width);
  expect_each_place_once<TileType>();
  expect_all_banks<TileType>(left_place);
  expect_all_banks<TileType>(right_place);
  const TileType tile{tile_alignment};
  for (int row = 0; row < TileType::rows; row += fragment_rows)
    for (int chunk = 0; chunk < TileType::chunks; chunk += 2)
      for (int lane = 0; lane < 32; ++lane) {
        const Place place = left_place(lane);
        EXPECT_EQ(tile.at(row, chunk, place),
                  static_cast<std::uint32_t>(tile_alignment +
                                             TileType::offset_of({row + place.row, chunk + place.chunk})));
      }
}

TEST(TileLayout, HoldsEachPlaceOnceAndUsesAllBanks) {
  expect_sound_layout<Tile<64, 16>>();
  expect_sound_layout<Tile<64, 32>>();
  expect_sound_layout<Tile<64, 64>>();
  expect_sound_layout<Tile<64, 128>>();
  expect_sound_layout<Tile<32, 128>>();
}

TEST(TileLayout, CopiesUseAllBanks) {
  // Eight lanes in a row copy eight chunks in a row.
  const auto expect_banks = []<class TileType>(TileType) {
    for (int first = 0; first < TileType::rows * TileType::chunks; first += 8) {
      std::set<int> banks;
      for (int i = first; i < first + 8; ++i)
        banks.insert(TileType::offset_of({i / TileType::chunks, i % TileType::chunks}) / 4 % 32);
      EXPECT_EQ(banks.size(), 8U);
    }
  };
  expect_banks(Tile<64, 16>{});
  expect_banks(Tile<64, 32>{});
  expect_banks(Tile<64, 64>{});
  expect_banks(Tile<64, 128>{});
}

TEST(FragmentLayout, IsThatOfMma) {
  // PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", accumulators.
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int group = lane >> 2;
      EXPECT_EQ(sum_row(lane, i), i < 2 ? group : group + 8);
      EXPECT_EQ(sum_column(lane, i), lane % 4 * 2 + (i & 1));
    }
}

// --- attention

std::vector<BFloat16> narrowed(const Floats& values) {
  std::vector<BFloat16> result;
  for (const float value : values) result.push_back(bodies::narrow<BFloat16>(value));
  return result;
}

Floats rounded(Floats values) {
  for (float& value : values) value = rounded_to(DType::bf16, value);
  return values;
}

struct Results {
  Floats out, log_sum_exp, dq, dk, dv;
  bool operator==(const Results&) const = default;
};

struct Inputs {
  Floats q, k, v, d_out;

  explicit Inputs(const AttentionShape& shape)
      : q(values(shape, shape.heads, 1)),
        k(values(shape, shape.kv_heads, 2)),
        v(values(shape, shape.kv_heads, 3)),
        d_out(values(shape, shape.heads, 4)) {}

 private:
  static Floats values(const AttentionShape& shape, std::int64_t heads, unsigned seed) {
    return rounded(random_floats(shape.sequences * shape.length * heads * shape.head_size, seed, 2.0F));
  }
};

Results empty_results(const AttentionShape& shape, const Inputs& inputs) {
  const float garbage = std::numeric_limits<float>::quiet_NaN();  // all of it is overwritten
  const Floats queries(inputs.q.size(), garbage);
  const Floats keys(inputs.k.size(), garbage);
  return {queries, Floats(static_cast<std::size_t>(shape.sequences * shape.heads * shape.length), garbage),
          queries, keys, keys};
}

template <class Pass>
void run_blocks(const Pass& pass, const AttentionProblem& problem, std::int64_t sequences, int heads,
                Schedule schedule) {
  const std::int64_t blocks = problem.tiles() * sequences * heads;
  for (std::int64_t block = 0; block < blocks; ++block)
    EmulatedBlock(attention_threads, Pass::shared_bytes).run(schedule, [&](EmulatedBlock::Thread& thread) {
      pass(thread, problem, BlockPlace(block, sequences, heads));
    });
}

Floats row_products(const AttentionProblem& problem, std::int64_t sequences, const Floats& out,
                    const Floats& d_out) {
  const std::int64_t vectors = sequences * problem.length * problem.heads;
  Floats products(static_cast<std::size_t>(vectors));
  const RowProducts pass{out.data(), d_out.data(), products.data()};
  for (std::int64_t block = 0; block < ceil_div(vectors, RowProducts::vectors_of_block); ++block)
    EmulatedBlock(attention_threads, 1)
        .run(Schedule::first_warp_late_copies,
             [&](EmulatedBlock::Thread& thread) { pass(thread, problem, block, vectors); });
  return products;
}

template <int width>
Results run_emulated(const AttentionShape& shape, const Inputs& inputs, Schedule schedule) {
  const auto q = narrowed(inputs.q);
  const auto k = narrowed(inputs.k);
  const auto v = narrowed(inputs.v);
  const auto d_out = narrowed(inputs.d_out);
  const AttentionProblem problem{.length = static_cast<int>(shape.length),
                                 .heads = static_cast<int>(shape.heads),
                                 .kv_heads = static_cast<int>(shape.kv_heads),
                                 .head_size = static_cast<int>(shape.head_size),
                                 .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_size)),
                                 .q = q.data(),
                                 .k = k.data(),
                                 .v = v.data()};
  Results r = empty_results(shape, inputs);
  run_blocks(Forward<width>{r.out.data(), r.log_sum_exp.data()}, problem, shape.sequences, problem.heads,
             schedule);
  const Floats products = row_products(problem, shape.sequences, r.out, inputs.d_out);
  const AttentionGradients given{d_out.data(), r.log_sum_exp.data(), products.data()};
  run_blocks(BackwardKeys<width>{given, r.dk.data(), r.dv.data()}, problem, shape.sequences, problem.kv_heads,
             schedule);
  run_blocks(BackwardQueries<width>{given, r.dq.data()}, problem, shape.sequences, problem.heads, schedule);
  return r;
}

Results run_emulated(const AttentionShape& shape, const Inputs& inputs, Schedule schedule) {
  if (shape.head_size <= 16) return run_emulated<16>(shape, inputs, schedule);
  if (shape.head_size <= 32) return run_emulated<32>(shape, inputs, schedule);
  if (shape.head_size <= 64) return run_emulated<64>(shape, inputs, schedule);
  return run_emulated<128>(shape, inputs, schedule);
}

Results run_on_cpu(const AttentionShape& shape, const Inputs& inputs) {
  Results r = empty_results(shape, inputs);
  const std::int64_t rows = shape.sequences * shape.length;
  KernelSet kernels(2, shape.length, 8);
  kernels->attention_forward(matrix(r.out, rows), span_of(r.log_sum_exp), matrix(inputs.q, rows),
                             matrix(inputs.k, rows), matrix(inputs.v, rows), shape);
  kernels->attention_backward(matrix(r.dq, rows), matrix(r.dk, rows), matrix(r.dv, rows),
                              matrix(inputs.d_out, rows), matrix(std::as_const(r.out), rows),
                              span_of(std::as_const(r.log_sum_exp)), matrix(inputs.q, rows),
                              matrix(inputs.k, rows), matrix(inputs.v, rows), shape);
  return r;
}

// Probabilities and their gradients are rounded to bf16 (relative error 2^-9), and errors are relative to a
// range's largest value.
constexpr double bf16_tolerance = 4e-3;

void expect_results(const Results& r, const AttentionResult& expected, const std::string& what) {
  expect_close(r.out, expected.out, bf16_tolerance, what + ": out");
  expect_close(r.log_sum_exp, expected.log_sum_exp, 1e-5, what + ": log_sum_exp");
  expect_close(r.dv, expected.dv, bf16_tolerance, what + ": dv");
  expect_close(r.dk, expected.dk, bf16_tolerance, what + ": dk", 1.0);
  expect_close(r.dq, expected.dq, bf16_tolerance, what + ": dq", 1.0);
}

class TiledAttention : public testing::TestWithParam<AttentionShape> {};

// Lengths around tiles of 64 (and 32 queries), each width, widths in between, heads in
// groups of 1 to 4.
INSTANTIATE_TEST_SUITE_P(Shapes, TiledAttention,
                         testing::Values(AttentionShape{2, 1, 2, 1, 16}, AttentionShape{1, 7, 4, 2, 64},
                                         AttentionShape{2, 33, 2, 2, 128}, AttentionShape{1, 64, 2, 1, 8},
                                         AttentionShape{1, 65, 3, 1, 24}, AttentionShape{2, 129, 2, 1, 16},
                                         AttentionShape{1, 129, 1, 1, 128}, AttentionShape{1, 200, 2, 1, 32},
                                         AttentionShape{1, 200, 2, 2, 64}, AttentionShape{1, 97, 4, 1, 64},
                                         AttentionShape{1, 70, 2, 1, 80}),
                         [](const auto& tested) {
                           const AttentionShape& s = tested.param;
                           return "length" + std::to_string(s.length) + "_width" +
                                  std::to_string(s.head_size) + "_heads" + std::to_string(s.heads) + "_kv" +
                                  std::to_string(s.kv_heads) + "_batch" + std::to_string(s.sequences);
                         });

TEST_P(TiledAttention, MatchesADoubleReferenceAndTheCpusKernels) {
  const AttentionShape& shape = GetParam();
  const Inputs inputs(shape);
  const Results r = run_emulated(shape, inputs, Schedule::first_warp_late_copies);
  EXPECT_TRUE(r == run_emulated(shape, inputs, Schedule::last_warp_early_copies))
      << "results depend on the schedule";
  expect_results(r,
                 AttentionReference(shape, widened(inputs.q), widened(inputs.k), widened(inputs.v))
                     .run(widened(inputs.d_out)),
                 "reference");
  const Results cpu = run_on_cpu(shape, inputs);
  expect_results(
      r, {widened(cpu.out), widened(cpu.log_sum_exp), widened(cpu.dq), widened(cpu.dk), widened(cpu.dv)},
      "CPU");
}

TEST(TiledAttentionScores, MayBeLarge) {
  // exp(2000) is far outside of fp32: the largest score is taken off first.
  const AttentionShape shape{1, 70, 1, 1, 16};
  Inputs inputs(shape);
  for (float& value : inputs.q) value *= 256.0F;
  const Results r = run_emulated(shape, inputs, Schedule::first_warp_late_copies);
  const auto expected = run_on_cpu(shape, inputs);
  expect_close(r.out, widened(expected.out), bf16_tolerance, "out");
  expect_close(r.log_sum_exp, widened(expected.log_sum_exp), 1e-5, "log_sum_exp");
}

}  // namespace
}  // namespace shardbench::test
