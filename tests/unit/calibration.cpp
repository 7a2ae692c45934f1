// What imitated compute takes: from a calibration file, from FLOP/s, from a modelled device; and jitter.
#include "src/train/calibration.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/errors.hpp"
#include "tests/unit/refusals.hpp"

namespace shardbench {
namespace {

using test::names_all;

constexpr const char* whole_file =
    R"({"embedding": {"forward": 0.5, "backward": 1}, "block": {"forward": 2, "backward": 3},
  "head": {"forward": 4, "backward": 5}})";

Options calibrated(const std::string& text) {
  Options options;
  options.dims = *find_preset("tiny");
  options.compute = Compute::timed;
  options.calibration_file = "times.json";
  options.calibration_text = text;
  return options;
}

std::string refusal(const std::string& text) {
  try {
    parse_calibration(calibrated(text));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(CalibrationFile, IsReadByName) {
  const ComputeTimes times = parse_calibration(
      calibrated(replaced(whole_file, R"("backward": 3)", R"("backward": 3, "recompute": 1.25)")));
  EXPECT_EQ(times.of(LayerKind::embedding, Pass::forward), 0.5);
  EXPECT_EQ(times.of(LayerKind::embedding, Pass::backward), 1.0);
  EXPECT_EQ(times.of(LayerKind::block, Pass::forward), 2.0);
  EXPECT_EQ(times.of(LayerKind::block, Pass::recompute), 1.25);
  EXPECT_EQ(times.of(LayerKind::block, Pass::backward), 3.0);
  EXPECT_EQ(times.of(LayerKind::head, Pass::backward), 5.0);
  EXPECT_EQ(times.optimizer, 0.0);
  EXPECT_EQ(
      parse_calibration(calibrated(replaced(whole_file, "{", R"({"optimizer": {"step": 0.25},)"))).optimizer,
      0.25);
}

TEST(CalibrationFile, RecomputesAllButTheLastProductUnlessItSays) {
  // Of tiny's forward, w2 takes 2 h ffn of 2 (2 h^2 + 2 h kv + 3 h ffn) + 4 h s FLOPs a token.
  const double w2 = 2.0 * 64 * 192 / (2.0 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192) + 4.0 * 64 * 32);
  EXPECT_NEAR(parse_calibration(calibrated(whole_file)).recompute, 2.0 * (1.0 - w2), 1e-12);
}

TEST(CalibrationFile, IsRefusedInALineThatNamesTheKey) {
  EXPECT_EQ(refusal(whole_file), "");
  EXPECT_TRUE(names_all(refusal(""), {"times.json", "JSON object"}));
  EXPECT_TRUE(names_all(refusal("[1]"), {"times.json", "JSON object"}));
  EXPECT_TRUE(names_all(refusal("{}"), {"times.json", "embedding.forward"}));
  for (const char* bad : {"-1", "1e6", "\"1\"", "null", "true", "[2]", "1e999", "{}"})
    EXPECT_TRUE(
        names_all(refusal(replaced(whole_file, R"("forward": 2)", R"("forward": )" + std::string(bad))),
                  {"--calibration times.json"}))
        << bad;
  EXPECT_TRUE(names_all(refusal(replaced(whole_file, R"("forward": 2)", R"("forward": -1)")),
                        {"block.forward", "-1"}));
  EXPECT_TRUE(names_all(refusal(replaced(whole_file, R"({"forward": 4, "backward": 5})", "7")), {"head"}));
}

TEST(CalibrationFile, UnknownKeysAreAnsweredWithTheNearest) {
  const auto with = [](const char* more) {
    return refusal(replaced(whole_file, "{", std::string("{") + more + ','));
  };
  EXPECT_TRUE(names_all(with(R"("optimiser": {"step": 1})"), {"optimiser.step", "optimizer.step"}));
  EXPECT_TRUE(names_all(with(R"("optimizer": {"steps": 1})"), {"optimizer.steps", "optimizer.step"}));
  EXPECT_TRUE(names_all(with(R"("comment": "mine")"), {"comment"}));
  EXPECT_TRUE(names_all(with(R"("comment": {})"), {"comment"}));
  EXPECT_TRUE(names_all(with(R"("a\nb": 1)"), {"a\\x0ab"}));
  EXPECT_TRUE(names_all(refusal(replaced(whole_file, R"("backward": 3)", R"("backward": 3, "recompte": 1)")),
                        {"block.recompte", "block.recompute"}));
  // Only blocks are recomputed.
  EXPECT_TRUE(names_all(refusal(replaced(whole_file, R"("backward": 5)", R"("backward": 5, "recompute": 1)")),
                        {"head.recompute"}));
}

const Hardware device{
    .name = "a device", .peak_flops = 1e12, .efficiency = 0.5, .memory_bandwidth = 1e11, .launch_s = 5e-6};

TEST(ComputeTimesOf, ADeviceAreItsRoofline) {
  Options options;
  options.dims = *find_preset("25m");
  options.compute = Compute::timed;
  options.micro_batch = 2;
  const Mesh mesh{.dp = 4, .tp = 2, .dp_index = 1, .tp_index = 1};
  const ComputeTimes times = compute_times(options, mesh, &device);
  const RankWork work = rank_work(options, mesh);
  EXPECT_EQ(work.tokens, 512);
  EXPECT_EQ(work.local.heads, 4);
  for (const Pass pass : {Pass::forward, Pass::recompute, Pass::backward})
    EXPECT_EQ(times.of(LayerKind::block, pass),
              roofline_seconds(kernels_of(work, LayerKind::block, pass), device));
  EXPECT_EQ(times.of(LayerKind::head, Pass::forward),
            roofline_seconds(kernels_of(work, LayerKind::head, Pass::forward), device));
  // bf16: 28 bytes an element.
  EXPECT_DOUBLE_EQ(optimizer_seconds(times, options, Elements(1'000'000), &device), 28e6 / 1e11 + 5e-6);
  options.sequence_parallel = SequenceParallel::on;
  EXPECT_EQ(rank_work(options, mesh).stream_tokens, 256);
}

TEST(ComputeTimesOf, FlopsAndFilesDoNotAskTheDevice) {
  Options options;
  options.dims = *find_preset("25m");
  options.flops = 1e12;
  const Mesh mesh{.dp = 1, .tp = 2, .dp_index = 0, .tp_index = 0};
  const ComputeTimes times = compute_times(options, mesh, &device);
  EXPECT_DOUBLE_EQ(times.of(LayerKind::block, Pass::backward),
                   layer_flops(options.dims, 1, Direction::backward, options.dims.seq) / 2e12);
  EXPECT_DOUBLE_EQ(optimizer_seconds(times, options, Elements(1000), &device), 16e3 / 1e12);
  EXPECT_EQ(compute_times(calibrated(whole_file), mesh, &device).of(LayerKind::head, Pass::forward), 4.0);
  EXPECT_EQ(optimizer_seconds(parse_calibration(calibrated(whole_file)), options, Elements(1000), &device),
            0.0);
}

TEST(ComputeTimesOf, AWorldWithoutADeviceAreNone) {
  Options options;
  options.dims = *find_preset("25m");
  const ComputeTimes times =
      compute_times(options, {.dp = 1, .tp = 1, .dp_index = 0, .tp_index = 0}, nullptr);
  EXPECT_EQ(times.of(LayerKind::block, Pass::forward), 0.0);
  EXPECT_EQ(optimizer_seconds(times, options, Elements(1000), nullptr), 0.0);
}

/// Logarithms of the slow-downs of many ranks and steps, sorted.
std::vector<double> logarithms(const Jitter& jitter, std::uint64_t seed, int ranks, int steps) {
  std::vector<double> values;
  for (int rank = 0; rank < ranks; ++rank)
    for (int step = 0; step < steps; ++step) values.push_back(std::log(slowdown(jitter, seed, rank, step)));
  std::sort(values.begin(), values.end());
  return values;
}

double deviation(const std::vector<double>& values) {
  double squares = 0.0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

TEST(SlowdownByJitter, IsNoneWhereItIsOff) { EXPECT_EQ(slowdown({}, 1, 7, 3), 1.0); }

TEST(SlowdownByJitter, DependsOnSeedRankAndStepOnly) {
  const Jitter jitter{.rank = 0.1, .step = 0.2};
  EXPECT_EQ(slowdown(jitter, 1, 7, 3), slowdown(jitter, 1, 7, 3));
  EXPECT_NE(slowdown(jitter, 1, 7, 3), slowdown(jitter, 2, 7, 3));
  EXPECT_NE(slowdown(jitter, 1, 7, 3), slowdown(jitter, 1, 8, 3));
  EXPECT_NE(slowdown(jitter, 1, 7, 3), slowdown(jitter, 1, 7, 4));
  EXPECT_EQ(slowdown({.rank = 0.1}, 1, 7, 3), slowdown({.rank = 0.1}, 1, 7, 4)) << "a rank's is for good";
  EXPECT_NEAR(slowdown(jitter, 1, 7, 3), slowdown({.rank = 0.1}, 1, 7, 3) * slowdown({.step = 0.2}, 1, 7, 3),
              1e-12);
}

TEST(SlowdownByJitter, IsLogNormalWithMedianOne) {
  const struct {
    Jitter jitter;
    int ranks;
    int steps;
    double sigma;
  } cases[] = {{{.rank = 0.05}, 10'000, 1, 0.05},
               {{.step = 0.2}, 100, 100, 0.2},
               {{.rank = 0.3, .step = 0.4}, 10'000, 1, 0.5}};
  for (const auto& c : cases) {
    const std::vector<double> values = logarithms(c.jitter, 42, c.ranks, c.steps);
    const double n = static_cast<double>(values.size());
    // Three standard errors: of a median, 1.2533 sigma/sqrt(n); of a deviation, sigma/sqrt(2n).
    EXPECT_NEAR(values[values.size() / 2], 0.0, 3 * 1.2533 * c.sigma / std::sqrt(n));
    EXPECT_NEAR(deviation(values), c.sigma, 3 * c.sigma / std::sqrt(2 * n));
    // A normal distribution has 68.27 % within one deviation and 95.45 % within two.
    for (const auto& [within, share] : {std::pair(1.0, 0.6827), std::pair(2.0, 0.9545)}) {
      const auto inside = std::count_if(values.begin(), values.end(), [&, reach = within](double v) {
        return std::abs(v) < reach * c.sigma;
      });
      EXPECT_NEAR(static_cast<double>(inside) / n, share, 3 * std::sqrt(share * (1 - share) / n));
    }
  }
}

}  // namespace
}  // namespace shardbench
