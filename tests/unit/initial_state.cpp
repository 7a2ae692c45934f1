// Initial parameters, tokens and presets: what another program must be able to reproduce.
#include "src/model/initial_state.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "src/errors.hpp"

namespace shardbench {
namespace {

TEST(SplitMix64, MatchesPublishedValues) {
  // Outputs of Vigna's splitmix64.c (https://prng.di.unimi.it); its state advances by the golden gamma.
  constexpr std::uint64_t gamma = 0x9E3779B97F4A7C15U;
  EXPECT_EQ(splitmix64(0), 0xE220A8397B1DCDAFU);
  EXPECT_EQ(splitmix64(gamma), 0x6E789E6AA1B965F4U);
  EXPECT_EQ(splitmix64(1'234'567), 6'457'827'717'110'365'317U);
  EXPECT_EQ(splitmix64(1'234'567 + gamma), 3'203'168'211'198'807'973U);
}

// From tests/golden: dims, seed, first_parameters (of the embedding) and first_tokens (of step 0, sequence
// 0).
struct Golden {
  const char* name;
  ModelDims dims;
  std::uint64_t seed;
  std::vector<double> first_parameters;
  std::vector<std::int32_t> first_tokens;
};
void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

const ModelDims tiny{2, 64, 4, 2, 192, 256, 32, Head::own};
const ModelDims uneven{3, 60, 6, 3, 100, 101, 17, Head::tied};

class GoldenState : public testing::TestWithParam<Golden> {};
INSTANTIATE_TEST_SUITE_P(
    Files, GoldenState,
    testing::Values(
        Golden{"tiny_fp32_gb4",
               tiny,
               1,  // also tiny_bf16_gb4 and tiny_fp32_gb4_clip1
               {0.009343079291284084, -0.034405697137117386, -0.031236255541443825, 0.0026804630178958178},
               {194, 209, 28, 147, 230, 133, 160, 39}},
        Golden{"tiny_fp32_gb16_40steps",
               tiny,
               2,
               {0.01970207691192627, 0.002767866710200906, 0.020887266844511032, -0.010566976852715015},
               {103, 61, 56, 21, 112, 115, 87, 238}},
        Golden{"uneven_fp32_gb6",
               uneven,
               3,
               {-0.003770648967474699, 0.021352143958210945, -0.02198169007897377, -0.0023915728088468313},
               {35, 93, 68, 44, 25, 31, 61, 9}}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(GoldenState, FirstParametersAndTokensAgree) {
  const Golden& golden = GetParam();
  const TensorInfo embedding = declare_tensors(golden.dims).front();
  for (std::size_t i = 0; i < golden.first_parameters.size(); ++i)
    EXPECT_EQ(static_cast<double>(initial_value(golden.seed, embedding, static_cast<std::int64_t>(i))),
              golden.first_parameters[i]);
  Batch batch;
  fill_batch(batch, golden.dims, golden.seed, 0, 0, 1);
  batch.inputs.resize(golden.first_tokens.size());
  EXPECT_EQ(batch.inputs, golden.first_tokens);
}

TEST(InitialValue, FollowsTheContractForEveryTensor) {
  // h = splitmix64((seed << 48) ^ (t << 36) ^ i); value = (2u - 1) s; s = 0.02 sqrt(3), over sqrt(2L) for wo
  // and w2.
  constexpr std::uint64_t seed = 65'535;
  for (const TensorInfo& t : declare_tensors(uneven)) {
    const bool norm = t.name.ends_with("norm") || t.name.ends_with("norm1") || t.name.ends_with("norm2");
    const bool into_residual = t.name.ends_with("wo") || t.name.ends_with("w2");
    const double s = 0.02 * std::sqrt(3.0) / (into_residual ? std::sqrt(2.0 * 3.0) : 1.0);
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, t.elements().count() - 1}) {
      const std::uint64_t h = splitmix64((seed << 48U) ^ (static_cast<std::uint64_t>(t.index) << 36U) ^
                                         static_cast<std::uint64_t>(i));
      const double u = std::ldexp(static_cast<double>(h >> 11U), -53);
      EXPECT_EQ(initial_value(seed, t, i), norm ? 1.0F : static_cast<float>((2.0 * u - 1.0) * s))
          << t.name << i;
    }
  }
}

TEST(Tokens, DoNotDependOnHowTheGlobalBatchIsCut) {
  Batch whole;
  fill_batch(whole, uneven, 7, 3, 0, 6);
  for (const std::int64_t rows : {1, 2, 3}) {
    Batch joined;
    for (std::int64_t first = 0; first < 6; first += rows) {
      Batch part;
      fill_batch(part, uneven, 7, 3, first, rows);
      joined.inputs.insert(joined.inputs.end(), part.inputs.begin(), part.inputs.end());
      joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
    }
    EXPECT_EQ(joined.inputs, whole.inputs);
    EXPECT_EQ(joined.targets, whole.targets);
  }
}

TEST(Tokens, TargetsAreTheNextInputs) {
  Batch batch;
  fill_batch(batch, uneven, 7, 3, 0, 2);
  ASSERT_EQ(batch.inputs.size(), 2U * 17U);
  for (std::size_t p = 0; p + 1 < 17; ++p) {
    EXPECT_EQ(batch.targets[p], batch.inputs[p + 1]);
    EXPECT_EQ(batch.targets[17 + p], batch.inputs[17 + p + 1]);
  }
}

TEST(Tokens, FollowTheContract) {
  constexpr std::uint64_t seed = 7;
  constexpr std::uint64_t step = 32'767;
  constexpr std::uint64_t sequence = 65'534;
  Batch batch;
  fill_batch(batch, uneven, seed, static_cast<std::int64_t>(step), static_cast<std::int64_t>(sequence), 1);
  std::uint64_t token = 0;
  for (std::uint64_t p = 0; p <= 17; ++p) {
    const std::uint64_t r =
        splitmix64((seed << 48U) ^ (std::uint64_t{1} << 47U) ^ (step << 32U) ^ (sequence << 16U) ^ p);
    token = p == 0 || r >> 62U == 0 ? r % 101 : (5 * token + 7) % 101;
    if (p < 17) {
      EXPECT_EQ(batch.inputs[p], static_cast<std::int32_t>(token)) << p;
    } else {
      EXPECT_EQ(batch.targets[16], static_cast<std::int32_t>(token));
    }
  }
}

TEST(Tokens, DifferBetweenSeedsStepsAndSequences) {
  const auto tokens = [](std::uint64_t seed, std::int64_t step, std::int64_t sequence) {
    Batch batch;
    fill_batch(batch, tiny, seed, step, sequence, 1);
    return batch.inputs;
  };
  EXPECT_NE(tokens(1, 0, 0), tokens(2, 0, 0));
  EXPECT_NE(tokens(1, 0, 0), tokens(1, 1, 0));
  EXPECT_NE(tokens(1, 0, 0), tokens(1, 0, 1));
}

TEST(Presets, HaveTheirPublishedParameterCounts) {
  // Vh (twice untied) + L (2h^2 + 2h kv + 3h ffn + 2h) + h; 7b is Llama 2's count, 1b to 405b are Llama 3's.
  const std::vector<std::pair<const char*, std::int64_t>> counts = {
      {"tiny", 131'392},     {"25m", 26'089'984},   {"124m", 123'551'232},   {"1b", 1'235'814'400},
      {"7b", 6'738'415'616}, {"8b", 8'030'261'248}, {"70b", 70'553'706'496}, {"405b", 405'853'388'800},
  };
  ASSERT_EQ(model_presets().size(), counts.size());
  for (const auto& [name, count] : counts) {
    const auto dims = find_preset(name);
    ASSERT_TRUE(dims) << name;
    EXPECT_EQ(parameter_count(*dims), Elements(count)) << name;
    EXPECT_NO_THROW(validate(*dims)) << name;
  }
  EXPECT_FALSE(find_preset("13b"));
}

TEST(Tied, SavesOneEmbedding) {
  // The case's vocabulary of 1000 and hidden size of 64: 132,096 - 68,096 = 64,000 parameters.
  ModelDims dims{1, 64, 4, 4, 64, 1000, 8, Head::own};
  const Elements untied = parameter_count(dims);
  const std::size_t tensors = declare_tensors(dims).size();
  dims.head = Head::tied;
  EXPECT_EQ(untied - parameter_count(dims), Elements(132'096 - 68'096));
  EXPECT_EQ(declare_tensors(dims).size(), tensors - 1);
  EXPECT_EQ(tensor_index(dims, TensorRole::head), 0);
}

TEST(Tensors, AreDeclaredInTheContractsOrder) {
  const std::vector<TensorInfo> tensors = declare_tensors(tiny);
  const std::vector<std::string> names = {
      "embedding", "0.norm1", "0.wq", "0.wk", "0.wv",    "0.wo", "0.norm2", "0.w1", "0.w3", "0.w2", "1.norm1",
      "1.wq",      "1.wk",    "1.wv", "1.wo", "1.norm2", "1.w1", "1.w3",    "1.w2", "norm", "head"};
  ASSERT_EQ(tensors.size(), names.size());
  for (std::size_t t = 0; t < names.size(); ++t) {
    EXPECT_EQ(tensors[t].name, names[t]);
    EXPECT_EQ(tensors[t].index, static_cast<int>(t));
  }
  EXPECT_EQ(tensor_index(tiny, TensorRole::w2, 2), 18);
  EXPECT_EQ(tensors_of_layer(tiny, 0), std::vector<int>{0});
  EXPECT_EQ(tensors_of_layer(tiny, 2), (std::vector<int>{10, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(tensors_of_layer(tiny, 3), (std::vector<int>{19, 20}));
}

TEST(Flops, AddUpToTheModelsFormula) {
  // 6 (Psi - Psi of an untied input embedding) + 12 L h s a token; forward a third of it.
  for (const ModelDims& dims : {tiny, uneven, *find_preset("8b"), *find_preset("1b")}) {
    double forward = 0.0;
    double all = 0.0;
    for (int layer = 0; layer < dims.layer_count(); ++layer) {
      forward += layer_flops(dims, layer, Direction::forward, 3);
      all +=
          layer_flops(dims, layer, Direction::forward, 3) + layer_flops(dims, layer, Direction::backward, 3);
    }
    const std::int64_t looked_up = dims.head == Head::own ? dims.vocab * dims.hidden : 0;
    const auto expected = 3.0 * static_cast<double>(6 * (parameter_count(dims).count() - looked_up) +
                                                    12 * dims.layers * dims.hidden * dims.seq);
    EXPECT_NEAR(all / expected, 1.0, 1e-12);
    EXPECT_NEAR(forward / all, 1.0 / 3.0, 1e-12);
  }
}

TEST(Dimensions, ThatCannotBeBuiltAreRefusedByName) {
  const auto refusal = [](auto change) -> std::string {
    ModelDims dims = tiny;
    change(dims);
    try {
      validate(dims);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto expect_names = [](const std::string& text, const char* name) {
    EXPECT_NE(text.find(name), std::string::npos) << text;
  };
  expect_names(refusal([](ModelDims& d) { d.layers = 0; }), "--layers");
  expect_names(refusal([](ModelDims& d) { d.hidden = -64; }), "--hidden");
  expect_names(refusal([](ModelDims& d) { d.heads = 0; }), "--heads");
  expect_names(refusal([](ModelDims& d) { d.heads = 3; }), "--heads 3");
  expect_names(refusal([](ModelDims& d) { d.heads = 64; }), "even");
  expect_names(refusal([](ModelDims& d) { d.kv_heads = 3; }), "--kv-heads 3");
  expect_names(refusal([](ModelDims& d) { d.kv_heads = 8; }), "--kv-heads");
  expect_names(refusal([](ModelDims& d) { d.seq = 65'536; }), "--seq");
  expect_names(refusal([](ModelDims& d) { d.vocab = 0; }), "--vocab");
  expect_names(refusal([](ModelDims& d) { d.ffn = 0; }), "--ffn");
}

}  // namespace
}  // namespace shardbench
