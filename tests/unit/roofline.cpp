// What a layer costs on a modelled device: kernels counted by hand, FLOPs against the model's count.
#include "src/model/roofline.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace shardbench {
namespace {

/// Round numbers: a FLOP takes 1 s / 1e12, a byte 1 s / 1e10, a launch 1 us.
const Hardware round_device{
    .name = "round", .peak_flops = 2e12, .efficiency = 0.5, .memory_bandwidth = 1e10, .launch_s = 1e-6};

RankWork work_of(const ModelDims& dims, std::int64_t tokens, int tp = 1) {
  return {.dims = dims,
          .local = local_dims(dims, tp, 0),
          .tokens = tokens,
          .stream_tokens = tokens,
          .dtype = DType::bf16};
}

double flops_of(const std::vector<Kernel>& kernels) {
  return std::accumulate(kernels.begin(), kernels.end(), 0.0,
                         [](double sum, const Kernel& kernel) { return sum + kernel.flops; });
}

TEST(Roofline, IsTheSlowerOfArithmeticAndMemoryAndALaunch) {
  EXPECT_DOUBLE_EQ(roofline_seconds({.name = "", .flops = 3e12, .bytes = 1e10}, round_device), 3.0 + 1e-6);
  EXPECT_DOUBLE_EQ(roofline_seconds({.name = "", .flops = 1e12, .bytes = 4e10}, round_device), 4.0 + 1e-6);
  const std::vector<Kernel> both = {{.name = "", .flops = 3e12, .bytes = 1e10},
                                    {.name = "", .flops = 1e12, .bytes = 4e10}};
  EXPECT_DOUBLE_EQ(roofline_seconds(both, round_device), 7.0 + 2e-6);
}

TEST(Roofline, ComputesWhatTheModelCounts) {
  for (const char* preset : {"tiny", "1b", "8b", "405b"}) {
    SCOPED_TRACE(preset);
    const ModelDims dims = *find_preset(preset);
    const std::int64_t tokens = 2 * dims.seq;
    for (const int layer : {0, 1, dims.head_layer()}) {
      const RankWork work = work_of(dims, tokens);
      const LayerKind kind = kind_of_layer(dims, layer);
      const auto expect = [&](Pass pass, Direction direction) {
        const double counted = layer_flops(dims, layer, direction, tokens);
        EXPECT_NEAR(flops_of(kernels_of(work, kind, pass)), counted, 1e-12 * counted) << layer;
      };
      expect(Pass::forward, Direction::forward);
      expect(Pass::backward, Direction::backward);
    }
  }
}

TEST(Roofline, ABlockByHand) {
  // h 8, 4 heads of 2, 2 kv heads (width 4), ffn 16, s 32; 64 tokens, bf16.
  const ModelDims dims{1, 8, 4, 2, 16, 24, 32, Head::own};
  const std::vector<Kernel> forward = kernels_of(work_of(dims, 64), LayerKind::block, Pass::forward);
  struct Expected {
    double flops;
    double bytes;
  };
  const std::vector<Expected> expected = {
      {2 * 64 * 8, 2 * 2 * 64 * 8},                              // norm
      {2 * 64 * 8 * 16, 2 * (64 * 8 + 8 * 16 + 64 * 16)},        // q, k, v: 8 + 4 + 4 wide
      {0, 2 * 2 * 64 * 12},                                      // rope, in place on q and k
      {4 * 64 * 8 * 32, 2 * 64 * (8 + 4 + 4 + 8) + 4 * 64 * 4},  // attention and its log-sum-exp
      {2 * 64 * 8 * 8, 2 * (64 * 8 + 8 * 8 + 64 * 8)},           // wo
      {0, 3 * 2 * 64 * 8},                                       // residual
      {2 * 64 * 8, 2 * 2 * 64 * 8},                              // norm
      {2 * 64 * 8 * 32, 2 * (64 * 8 + 8 * 32 + 64 * 32)},        // w1, w3
      {0, 3 * 2 * 64 * 16},                                      // silu(gate) up
      {2 * 64 * 16 * 8, 2 * (64 * 16 + 16 * 8 + 64 * 8)},        // w2
      {0, 3 * 2 * 64 * 8},                                       // residual
  };
  ASSERT_EQ(forward.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(forward[i].flops, expected[i].flops) << forward[i].name;
    EXPECT_EQ(forward[i].bytes, expected[i].bytes) << forward[i].name;
  }

  // Backward: each product once for its input and once for its weight, whose gradient is fp32.
  const std::vector<Kernel> backward = kernels_of(work_of(dims, 64), LayerKind::block, Pass::backward);
  EXPECT_EQ(backward.size(), 13U);
  EXPECT_EQ(backward[1].flops, 2 * 64 * 16 * 8);
  EXPECT_EQ(backward[1].bytes, 2 * (64 * 16 + 64 * 8) + 4 * 16 * 8);
  EXPECT_EQ(backward[8].flops, 8 * 64 * 8 * 32);
  EXPECT_EQ(backward[8].bytes, 2 * 64 * (4 * 8 + 4 * 4) + 4 * 64 * 4);
}

TEST(Roofline, RecomputationLeavesOutTheLastProductAndItsResidual) {
  const ModelDims dims = *find_preset("8b");
  const std::vector<Kernel> forward = kernels_of(work_of(dims, dims.seq), LayerKind::block, Pass::forward);
  const std::vector<Kernel> again = kernels_of(work_of(dims, dims.seq), LayerKind::block, Pass::recompute);
  ASSERT_EQ(again.size() + 2, forward.size());
  for (std::size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i].flops, forward[i].flops);
  EXPECT_EQ(forward[again.size()].name, "w2");
}

TEST(Roofline, HeadAndEmbeddingByHand) {
  const ModelDims dims{1, 8, 4, 2, 16, 24, 32, Head::own};
  const RankWork work = work_of(dims, 64);
  const auto bytes = [&](LayerKind kind, Pass pass) {
    std::vector<double> all;
    for (const Kernel& kernel : kernels_of(work, kind, pass)) all.push_back(kernel.bytes);
    return all;
  };
  using Bytes = std::vector<double>;
  EXPECT_EQ(bytes(LayerKind::embedding, Pass::forward), (Bytes{2 * 2 * 64 * 8}));
  EXPECT_EQ(bytes(LayerKind::embedding, Pass::backward), (Bytes{4 * 24 * 8, 2 * 64 * 8 + 2 * 4 * 64 * 8}));
  // Logits are fp32; the loss turns them into their gradient.
  EXPECT_EQ(bytes(LayerKind::head, Pass::forward),
            (Bytes{2 * 2 * 64 * 8, 2 * (64 * 8 + 8 * 24) + 4 * 64 * 24, 2 * 4 * 64 * 24}));
  EXPECT_EQ(
      bytes(LayerKind::head, Pass::backward),
      (Bytes{2 * (64 * 8 + 8 * 24) + 4 * 64 * 24, 2 * 64 * 8 + 4 * 64 * 24 + 4 * 8 * 24, 4 * 2 * 64 * 8}));
}

TEST(Roofline, TensorParallelRanksShareAllButTheStream) {
  const ModelDims dims = *find_preset("8b");
  const auto whole = kernels_of(work_of(dims, dims.seq), LayerKind::block, Pass::forward);
  const auto part = kernels_of(work_of(dims, dims.seq, 4), LayerKind::block, Pass::forward);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const bool of_the_stream = whole[i].name == "norm" || whole[i].name == "residual";
    EXPECT_DOUBLE_EQ(part[i].flops, whole[i].flops / (of_the_stream ? 1 : 4)) << whole[i].name;
  }
  RankWork cut = work_of(dims, dims.seq, 4);
  cut.stream_tokens = dims.seq / 4;
  const auto sequence_parallel = kernels_of(cut, LayerKind::block, Pass::forward);
  EXPECT_DOUBLE_EQ(sequence_parallel.front().bytes, whole.front().bytes / 4);
}

TEST(Roofline, AdamwMovesItsState) {
  const Elements elements(1000);
  // Gradient in, master and two moments in and out, bf16 parameter out.
  EXPECT_EQ(adamw_kernel(elements, DType::bf16, DType::bf16).bytes, 1000.0 * (2 + 3 * 8 + 2));
  EXPECT_EQ(adamw_kernel(elements, DType::bf16, DType::fp32).bytes, 1000.0 * (4 + 3 * 8 + 2));
  EXPECT_EQ(adamw_kernel(elements, DType::fp32, DType::fp32).bytes, 1000.0 * (4 + 3 * 8));
}

}  // namespace
}  // namespace shardbench
