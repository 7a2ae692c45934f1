// The program `collectives` without MPI: its options, nccl-tests' rules for sizes, its test values, its
// texts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/bodies/portable.hpp"
#include "src/collectives/options.hpp"
#include "src/collectives/report.hpp"
#include "src/collectives/sizes.hpp"
#include "src/collectives/test_values.hpp"
#include "src/errors.hpp"
#include "tests/unit/host_values.hpp"
#include "tests/unit/in_process_network.hpp"

namespace shardbench::test {
namespace {

const std::vector<Collective> every_collective = {Collective::all_gather, Collective::reduce_scatter,
                                                  Collective::all_reduce};
const std::vector<Reduction> every_reduction = {Reduction::sum, Reduction::product, Reduction::minimum,
                                                Reduction::maximum, Reduction::average};

// --- sizes

struct SizeCase {
  Collective collective;
  DType dtype;
  std::int64_t requested;
  int ranks;
  std::int64_t count;
  std::int64_t size;
};

TEST(CollectiveSizes, FollowNcclTests) {
  const auto gather = Collective::all_gather;
  const auto scatter = Collective::reduce_scatter;
  const auto reduce = Collective::all_reduce;
  for (const SizeCase& c : {
           SizeCase{reduce, DType::fp32, 1000, 3, 250, 1000},
           SizeCase{reduce, DType::fp32, 1003, 3, 250, 1000},
           SizeCase{reduce, DType::bf16, 1003, 3, 501, 1002},
           SizeCase{gather, DType::fp32, 1000, 3, 80, 960},    // 333 bytes a rank -> 83 elements -> 80
           SizeCase{scatter, DType::bf16, 1000, 3, 160, 960},  // 166 elements -> 160
           SizeCase{scatter, DType::fp32, 1024, 4, 64, 1024},  // divides
           SizeCase{gather, DType::fp32, 63, 4, 0, 0},         // less than 16 bytes a rank
           SizeCase{gather, DType::bf16, 64, 4, 8, 64},
           SizeCase{gather, DType::fp32, std::int64_t{8} << 30, 6, 357'913'940, 8'589'934'560},
           SizeCase{reduce, DType::fp32, 0, 2, 0, 0},
           SizeCase{reduce, DType::fp32, 7, 1, 1, 4},
       }) {
    const SizedCollective sizes = sized(c.collective, c.dtype, Bytes(c.requested), c.ranks);
    EXPECT_EQ(sizes.count, Elements(c.count)) << c.requested;
    EXPECT_EQ(sizes.size, Bytes(c.size)) << c.requested;
    EXPECT_EQ(bytes_of(c.dtype, sizes.buffer), sizes.size) << c.requested;
  }
}

TEST(CollectiveSizes, GiveBandwidthsAsNcclTestsDefinesThem) {
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(Bytes(2'000'000'000), 0.5), 4.0);
  EXPECT_EQ(algorithm_bandwidth(Bytes(1), 0.0), 0.0);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 5), 0.8);
  for (const Collective collective : every_collective) EXPECT_EQ(bus_factor(collective, 1), 0.0);
}

// --- options

using Arguments = std::vector<std::string>;

CollectivesOptions options(const Arguments& arguments) {
  const ParsedCollectivesOptions parsed = parse_collectives_options(arguments);
  EXPECT_EQ(parsed.error, "");
  return parsed.options.value_or(CollectivesOptions{});
}

std::vector<std::int64_t> sweep(const Arguments& arguments) {
  const CollectivesOptions o = options(arguments);
  std::vector<std::int64_t> sizes;
  for (std::optional<Bytes> size = o.min_bytes; size; size = o.size_after(*size))
    sizes.push_back(size->count());
  return sizes;
}

TEST(CollectivesOptionList, HasTheDefaultsOfNcclTests) {
  const CollectivesOptions o = options({});
  EXPECT_EQ(o.min_bytes, Bytes(33'554'432));
  EXPECT_EQ(o.max_bytes, Bytes(33'554'432));
  EXPECT_EQ(o.step_bytes, Bytes(1'048'576));
  EXPECT_EQ(o.step_factor, 1);
  EXPECT_EQ(o.iterations, 20);
  EXPECT_EQ(o.warmup, 1);
  EXPECT_EQ(o.checks, 1);
  EXPECT_EQ(o.dtypes, std::vector{DType::fp32});
  EXPECT_EQ(o.reductions, std::vector{Reduction::sum});
  EXPECT_EQ(o.collectives.size(), 3U);
  EXPECT_FALSE(o.precision);
}

TEST(CollectivesOptionList, RepeatsUntilAPrecisionWhenAsked) {
  EXPECT_EQ(options({"--precision", "0.05"}).precision, 0.05);
  EXPECT_EQ(options({"--precision", "0.05"}).budget_s, 10.0);
  EXPECT_EQ(options({"--precision", "0.05", "--budget", "2.5"}).budget_s, 2.5);
}

TEST(CollectivesOptionList, SweepsByFactorOrIncrement) {
  EXPECT_EQ(sweep({"-b", "8", "-e", "128", "-f", "4"}), (std::vector<std::int64_t>{8, 32, 128}));
  EXPECT_EQ(sweep({"-b", "8", "-e", "100", "-f", "4"}), (std::vector<std::int64_t>{8, 32}));
  EXPECT_EQ(sweep({"-b", "0", "-e", "1K", "-i", "512"}), (std::vector<std::int64_t>{0, 512, 1024}));
  EXPECT_EQ(sweep({"-b", "1M", "-e", "3M"}), (std::vector<std::int64_t>{1 << 20, 2 << 20, 3 << 20}));
  EXPECT_EQ(sweep({"-b", "4", "-e", "16", "-f", "2", "-i", "1"}), (std::vector<std::int64_t>{4, 8, 16}))
      << "a factor counts before an increment";
  EXPECT_EQ(sweep({"-b", "5", "-e", "5", "-i", "0"}), std::vector<std::int64_t>{5});
  EXPECT_EQ(sweep({"-b", "1048576G", "-e", "1048576G", "-f", "1099511627776"}).size(), 1U);
}

TEST(CollectivesOptionList, ReadsSizesInPowersOf1024) {
  const auto size = [](const std::string& text) { return parse_size("-b", text).count(); };
  EXPECT_EQ(size("17"), 17);
  EXPECT_EQ(size("2K"), 2048);
  EXPECT_EQ(size("1.5m"), 1'572'864);
  EXPECT_EQ(size("8G"), std::int64_t{8} << 30);
  EXPECT_EQ(size("4MB"), 4 << 20);
  EXPECT_EQ(size("1e6"), 1'000'000);
  for (const char* text : {"", "K", "-1", "3X", "1KK", "nan", "inf", "2e30", "1 M"})
    EXPECT_THROW(size(text), UsageError) << text;
}

TEST(CollectivesOptionList, RunsAllTypesAndReductionsWhenAsked) {
  const CollectivesOptions o = options({"-d", "all", "-o", "all", "--collective", "all_gather,all_reduce"});
  EXPECT_EQ(o.dtypes, (std::vector{DType::fp32, DType::bf16}));
  EXPECT_EQ(o.reductions.size(), every_reduction.size());
  EXPECT_EQ(o.collectives, (std::vector{Collective::all_gather, Collective::all_reduce}));
}

TEST(CollectivesOptionList, RefusesInOneLineThatNamesTheOption) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"-b", "2M", "-e", "1M"}, "--minbytes 2M"},
      {{"-b", "0", "-e", "1M", "-f", "2"}, "--stepfactor"},
      {{"-b", "0", "-e", "1M", "-i", "0"}, "--stepbytes"},
      {{"-b", "x"}, "--minbytes x"},
      {{"-n", "0"}, "--iters"},
      {{"-w", "-1"}, "--warmup_iters"},
      {{"-c", "yes"}, "--check"},
      {{"-d", "half"}, "--datatype half"},
      {{"-o", "mulsum"}, "--op mulsum"},
      {{"--collective", "broadcast"}, "--collective broadcast"},
      {{"--collective", "all_gather,"}, "--collective "},
      {{"--algorithm", "rings"}, "--algorithm rings"},
      {{"--progress", "streams"}, "--progress streams"},
      {{"--itres", "3"}, "did you mean --iters"},
      {{"--output", ""}, "--output is empty"},
      {{"surplus"}, "surplus"},
      {{"--budget", "5"}, "add --precision"},
  };
  for (const auto& [arguments, part] : cases) {
    const ParsedCollectivesOptions parsed = parse_collectives_options(arguments);
    EXPECT_FALSE(parsed.options);
    EXPECT_NE(parsed.error.find(part), std::string::npos) << parsed.error;
    EXPECT_EQ(parsed.error.find('\n'), std::string::npos) << parsed.error;
  }
}

TEST(CollectivesOptionList, HasOtherDefaultsInASimulation) {
  const CollectivesOptions simulated = *parse_collectives_options({}, Build::simulated).options;
  EXPECT_EQ(simulated.checks, 0) << "buffers then need no memory";
  EXPECT_EQ(simulated.algorithm, Algorithm::nccl);
  EXPECT_EQ(simulated.progress, Progress::stream);
  EXPECT_EQ(options({}).checks, 1);
  EXPECT_EQ(options({}).algorithm, Algorithm::automatic);
}

TEST(CollectivesOptionList, SaysWhatIsEffective) {
  const auto json = nlohmann::json::parse(options_json(options({"-b", "1K", "-d", "bfloat16", "-o", "avg"})));
  EXPECT_EQ(json["minbytes"], 1024);
  EXPECT_EQ(json["datatype"], nlohmann::json({"bfloat16"}));
  EXPECT_EQ(json["op"], nlohmann::json({"avg"}));
  EXPECT_TRUE(json["ranks-per-node"].is_null());
}

// --- when to stop

TEST(StopRuleOfCollectives, CountsInAsFarAsTheBinomialAllows) {
  EXPECT_FALSE(interval_depth(1));
  EXPECT_FALSE(interval_depth(5));
  // Table A3 of Conover's book; from 100 on analysis/shardbench/stats.py in exact arithmetic.
  for (const auto& [samples, depth] : std::vector<std::pair<std::int64_t, std::int64_t>>{{6, 1},
                                                                                         {8, 1},
                                                                                         {9, 2},
                                                                                         {11, 2},
                                                                                         {12, 3},
                                                                                         {20, 6},
                                                                                         {25, 8},
                                                                                         {50, 18},
                                                                                         {100, 40},
                                                                                         {1000, 469},
                                                                                         {1500, 712},
                                                                                         {1600, 761},
                                                                                         {1601, 761},
                                                                                         {2000, 956},
                                                                                         {5000, 2431},
                                                                                         {20'000, 9861}})
    EXPECT_EQ(interval_depth(samples), depth) << samples;
}

SortedSamples samples(const std::vector<double>& values) {
  SortedSamples result;
  for (const double value : values) result.add(value);
  return result;
}

TEST(StopRuleOfCollectives, EstimatesTheMedianWithItsInterval) {
  const MedianEstimate few = samples({5.0, 1.0, 3.0, 2.0}).estimate();
  EXPECT_EQ(few.median, 2.5);
  EXPECT_FALSE(few.low);
  EXPECT_FALSE(few.relative_width());
  const MedianEstimate nine = samples({9, 8, 7, 6, 5, 4, 3, 2, 1}).estimate();
  EXPECT_EQ(nine.median, 5.0);
  EXPECT_EQ(nine.low, 2.0);
  EXPECT_EQ(nine.high, 8.0);
  EXPECT_DOUBLE_EQ(nine.relative_width().value(), 6.0 / 5.0);
  EXPECT_EQ(samples({0, 0, 0, 0, 0, 0}).estimate().relative_width(), 0.0);
}

TEST(StopRuleOfCollectives, StopsAtThePrecisionTheBudgetOrTheRows) {
  const StopRule rule{.precision = 0.125, .budget_s = 2.0, .window_iterations = 20, .most_iterations = 200};
  const std::vector<double> equal(5, 1.0);
  EXPECT_EQ(reason_to_stop(rule, samples(equal), 1.9), std::nullopt);
  EXPECT_EQ(reason_to_stop(rule, samples(equal), 2.0), Stop::budget) << "even without an interval";
  EXPECT_EQ(reason_to_stop(rule, samples({1, 1, 1, 1, 1, 1.125}), 9.0), Stop::precision) << "just as wide";
  EXPECT_EQ(reason_to_stop(rule, samples({1, 1, 1, 1, 1, 1.13}), 0.0), std::nullopt);
  EXPECT_EQ(reason_to_stop(rule, samples({1, 1, 1, 1, 1, 1.13}), 2.0), Stop::budget);
  EXPECT_EQ(reason_to_stop(rule, samples({1, 1, 2, 2, 2, 2, 2, 3, 3}), 0.0), std::nullopt);
  EXPECT_EQ(reason_to_stop(rule, samples({1, 1, 2, 2, 2, 2, 2, 2, 3, 3}), 0.0), Stop::rows);
}

TEST(StopRuleOfCollectives, WithoutAPrecisionHasOneWindow) {
  EXPECT_EQ(reason_to_stop({.precision = {}, .budget_s = 10.0}, samples({1.0}), 0.0), Stop::iterations);
}

// --- test values

struct CheckCase {
  Collective collective;
  Reduction reduction;
  DType dtype;
  Algorithm algorithm;
  int ranks;
};

/// Runs one collective on test values and leaves the results of all ranks.
std::vector<BufferRef> results(Cluster& cluster, const CheckCase& c, std::int64_t size) {
  const TestValues values(c.collective, c.reduction, c.ranks);
  std::vector<BufferRef> buffers;
  std::vector<Pending> pending;
  for (int rank = 0; rank < c.ranks; ++rank) {
    buffers.push_back(cluster.memory(rank).allocate(Category::workspace, c.dtype, Elements(size)));
    values.fill(*buffers.back(), rank);
    pending.push_back(cluster.communicator(rank).start(c.collective, buffers.back(), c.reduction));
  }
  for (const Pending& p : pending) p->wait();
  return buffers;
}

void flip_a_bit(const Buffer& buffer, std::int64_t element) {
  buffer.data()[element * size_of(buffer.dtype())] ^= std::byte{1};
}

TEST(TestValuesOfCollectives, AreExactWhateverTheAlgorithmAndAWrongBitShows) {
  for (const int ranks : {1, 2, 3, 8, 40})
    for (const Algorithm algorithm : {Algorithm::direct, Algorithm::ring, Algorithm::doubling})
      for (const Collective collective : every_collective)
        for (const Reduction reduction : every_reduction)
          for (const DType dtype : {DType::fp32, DType::bf16}) {
            SCOPED_TRACE(std::string(name_of(collective)) + " " + std::string(name_of(reduction)) + " " +
                         std::string(name_of(algorithm)) + " " + std::string(name_of(dtype)) +
                         " n=" + std::to_string(ranks));
            // Enough that not all contribute; one case, because what is expected takes long to work out.
            if (ranks == 40 &&
                (algorithm != Algorithm::ring || dtype != DType::bf16 || reduction != Reduction::average))
              continue;
            const CheckCase c{collective, reduction, dtype, algorithm, ranks};
            const TestValues values(collective, reduction, ranks);
            Cluster cluster(ranks, algorithm);
            const std::int64_t block = 230;
            const auto buffers = results(cluster, c, block * ranks);
            for (int rank = 0; rank < ranks; ++rank) {
              const Buffer& buffer = *buffers[static_cast<std::size_t>(rank)];
              EXPECT_EQ(values.count_wrong(buffer, rank), 0);
              flip_a_bit(buffer, rank * block);
              EXPECT_EQ(values.count_wrong(buffer, rank), 1);
              flip_a_bit(buffer, rank * block + block - 1);
              EXPECT_EQ(values.count_wrong(buffer, rank), 2);
            }
          }
}

TEST(TestValuesOfCollectives, NoticeWhatWasNotDone) {
  for (const Collective collective : every_collective) {
    const TestValues values(collective, Reduction::sum, 4);
    Memory memory;
    const BufferRef buffer = memory.allocate(Category::workspace, DType::fp32, Elements(4000));
    values.fill(*buffer, 2);
    const std::int64_t wrong = values.count_wrong(*buffer, 2);
    if (collective == Collective::all_gather) {
      EXPECT_EQ(wrong, 3000) << "all but the own block";
    } else {
      EXPECT_GT(wrong, collective == Collective::all_reduce ? 3000 : 750);
    }
  }
}

TEST(TestValuesOfCollectives, NoticeNansAndBlocksInTheWrongPlace) {
  const TestValues values(Collective::all_gather, Reduction::sum, 2);
  Memory memory;
  const BufferRef buffer = memory.allocate(Category::workspace, DType::fp32, Elements(64 * 1024));
  const std::int64_t block = 32 * 1024;
  const std::span<float> floats = values_in(*buffer);
  values.fill(*buffer, 1);
  std::vector<float> second(floats.begin() + block, floats.end());
  values.fill(*buffer, 0);
  std::copy(second.begin(), second.end(), floats.begin() + block);
  EXPECT_EQ(values.count_wrong(*buffer, 0), 0);
  floats[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(values.count_wrong(*buffer, 0), 1);
  std::rotate(floats.begin() + block, floats.begin() + block + 1024, floats.end());
  EXPECT_GT(values.count_wrong(*buffer, 0), block * 9 / 10);
}

TEST(TestValuesOfCollectives, StayExactInBf16OnThousandsOfRanks) {
  // Not run, but summed here in the worst way: one rank after the other, rounded each time.
  const int ranks = 4099;
  Memory memory;
  const BufferRef buffer = memory.allocate(Category::workspace, DType::bf16, Elements(300));
  std::vector<double> exact(300, 0.0);
  std::vector<float> rounded(300, 0.0F);
  const TestValues values(Collective::all_reduce, Reduction::sum, ranks);
  const auto* data = reinterpret_cast<const bodies::BFloat16*>(buffer->data());
  for (int rank = 0; rank < ranks; ++rank) {
    values.fill(*buffer, rank);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i] += static_cast<double>(bodies::widen(data[i]));
      rounded[i] = rounded_to(DType::bf16, rounded[i] + bodies::widen(data[i]));
    }
  }
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(static_cast<double>(rounded[i]), exact[i]);
    EXPECT_GT(exact[i], 0.0);
  }
}

// --- texts

TEST(CollectivesReport, FitsNumbersIntoColumns) {
  EXPECT_EQ(number_text(0.0, 6), "  0.00");
  EXPECT_EQ(number_text(12.345, 7), "  12.35");
  EXPECT_EQ(number_text(9999.994, 7), "9999.99");
  EXPECT_EQ(number_text(12345.67, 7), "12345.7");
  EXPECT_EQ(number_text(1234567.8, 7), "1234568");
  EXPECT_EQ(number_text(123456789.0, 7), "1.2e+08");
}

TEST(CollectivesReport, HasThirteenColumns) {
  ResultLine line{.collective = Collective::all_gather,
                  .algorithm = Algorithm::ring,
                  .dtype = DType::bf16,
                  .reduction = Reduction::maximum,
                  .size = Bytes(4096),
                  .count = Elements(512),
                  .iterations = 20,
                  .seconds = 12.5e-6,
                  .algorithm_bandwidth = 0.32768,
                  .bus_bandwidth = 0.24576,
                  .wrong = 3};
  EXPECT_EQ(result_text(line),
            "        4096           512  bfloat16    none      -1      N/A     N/A     N/A     N/A    12.50  "
            "  0.33    "
            "0.25       3\n");
  line.collective = Collective::all_reduce;
  line.wrong.reset();
  EXPECT_EQ(result_text(line),
            "        4096           512  bfloat16     max      -1      N/A     N/A     N/A     N/A    12.50  "
            "  0.33    "
            "0.25     N/A\n");
}

TEST(CollectivesReport, SaysBelowALineWhatEndedIt) {
  ResultLine line;
  line.stop = Stop::precision;
  line.windows = 9;
  line.slowest_rank = {.median = 12.5e-6, .low = 12e-6, .high = 12.5e-6};
  EXPECT_EQ(precision_text(line),
            "#   stop precision: 9 windows; slowest rank 12.5 us in [12, 12.5], 4 % wide\n");
  line.stop = Stop::budget;
  line.slowest_rank.low.reset();
  EXPECT_EQ(precision_text(line),
            "#   stop budget: 9 windows; slowest rank 12.5 us without an interval, which takes 6 windows\n");
}

TEST(CollectivesReport, WritesTheJsonOfNcclTests) {
  const ResultLine line{.collective = Collective::reduce_scatter,
                        .algorithm = Algorithm::direct,
                        .dtype = DType::fp32,
                        .reduction = Reduction::sum,
                        .size = Bytes(64),
                        .count = Elements(8),
                        .iterations = 4,
                        .seconds = 1e-6,
                        .algorithm_bandwidth = 0.064,
                        .bus_bandwidth = 0.032,
                        .wrong = 0};
  const auto json = nlohmann::json::parse(
      json_text({.arguments = {"collectives", "caf\xE9"},
                 .start_time = "a",
                 .end_time = "b",
                 .options = {},
                 .ranks = {{.rank = 0, .pid = 7, .host = "h", .local_rank = 0, .affinity = "0-1"}},
                 .lines = {line},
                 .summary = {.failed_checks = 0, .mean_bus_bandwidth = 0.032}}));
  EXPECT_EQ(json["config"]["step_bytes"], 1 << 20);
  EXPECT_EQ(json["config"]["devices"][0]["hostname"], "h");
  const auto& result = json["results"][0];
  EXPECT_EQ(result["size"], 64);
  EXPECT_EQ(result["stop"], "iterations");
  EXPECT_EQ(result["windows"], 1);
  EXPECT_EQ(result["count"], 8);
  EXPECT_EQ(result["type"], "float");
  EXPECT_EQ(result["redop"], "sum");
  EXPECT_TRUE(result["out_of_place"].is_null());
  EXPECT_EQ(result["in_place"]["nwrong"], 0);
  EXPECT_DOUBLE_EQ(result["in_place"]["time"], 1.0);
  EXPECT_EQ(json["out_of_bounds"]["okay"], "true");
  EXPECT_EQ(json["average_bus_bandwidth"]["bandwidth"], 0.032);
}

}  // namespace
}  // namespace shardbench::test
