// The ledger's formulas against the published tables, and the expected ledger of a schedule against both.
#include <gtest/gtest.h>

#include <numeric>

#include "src/ledger/expected.hpp"
#include "src/ledger/formulas.hpp"

namespace shardbench {
namespace {

/// bf16 parameters and gradients, k = 12; reduction in fp32 as by default.
LedgerQuestion question(std::int64_t psi, std::int64_t n, int stage) {
  return {.sharded_parameters = psi, .n = n, .stage = stage};
}

double gigabytes(const LedgerQuestion& q) { return answer(q).static_bytes.value() / 1e9; }

/// Static GB of stages 0 to 3.
std::vector<double> gigabytes_by_stage(std::int64_t psi, std::int64_t n) {
  std::vector<double> row;
  for (int stage = 0; stage <= 3; ++stage) row.push_back(gigabytes(question(psi, n, stage)));
  return row;
}

constexpr std::int64_t seven_billion = 7'000'000'000;

TEST(LedgerTable, ReproducesSevenBillionToTheDigit) {
  using Row = std::vector<double>;
  EXPECT_EQ(gigabytes_by_stage(seven_billion, 1), (Row{112.0, 112.0, 112.0, 112.0}));
  EXPECT_EQ(gigabytes_by_stage(seven_billion, 8), (Row{112.0, 38.5, 26.25, 14.0}));
  EXPECT_EQ(gigabytes_by_stage(seven_billion, 64), (Row{112.0, 29.3125, 15.53125, 1.75}));
}

TEST(LedgerTable, ReproducesOtherPublishedSizes) {
  EXPECT_EQ(gigabytes(question(70'000'000'000, 64, 0)), 1120.0);
  EXPECT_EQ(gigabytes(question(70'000'000'000, 64, 3)), 17.5);
  const std::vector<double> paper = {120.0, 31.4, 16.6, 1.9};  // Rajbhandari et al., 7.5B on 64
  const std::vector<double> row = gigabytes_by_stage(7'500'000'000, 64);
  for (std::size_t stage = 0; stage < paper.size(); ++stage) EXPECT_NEAR(row[stage], paper[stage], 0.05);
  EXPECT_EQ(gigabytes_by_stage(1'000'000, 4), (std::vector<double>{0.016, 0.007, 0.0055, 0.004}));
}

TEST(LedgerTable, VolumesAreExactIntegers) {
  for (const std::int64_t n : {8, 64})
    for (int stage = 0; stage <= 3; ++stage) {
      const LedgerAnswer a = answer(question(seven_billion, n, stage));
      const std::int64_t times = stage == 3 ? 3 : 2;
      EXPECT_EQ(a.volume_elements.text(), std::to_string(times * (seven_billion / n) * (n - 1))) << stage;
    }
}

TEST(LedgerVolume, SplitsIntoTheStagesCollectives) {
  // In units of Psi (N-1)/N with A = 3 micro-batches: all-reduce, reduce-scatter, all-gather.
  struct Split {
    std::int64_t all_reduce, reduce_scatter, all_gather;
  };
  const std::vector<Split> splits = {{2, 0, 0}, {0, 1, 1}, {0, 3, 1}, {0, 3, 6}};
  for (int stage = 0; stage <= 3; ++stage) {
    LedgerQuestion q = question(4000, 4, stage);
    q.grad_accum = 3;
    const LedgerAnswer a = answer(q);
    const Split& split = splits[static_cast<std::size_t>(stage)];
    EXPECT_EQ(a.all_reduce_elements.text(), std::to_string(3000 * split.all_reduce)) << stage;
    EXPECT_EQ(a.reduce_scatter_elements.text(), std::to_string(3000 * split.reduce_scatter)) << stage;
    EXPECT_EQ(a.all_gather_elements.text(), std::to_string(3000 * split.all_gather)) << stage;
    EXPECT_EQ(a.volume_elements.text(),
              std::to_string(3000 * (split.all_reduce + split.reduce_scatter + split.all_gather)));
  }
}

TEST(LedgerVolume, DependsOnWhatIsResharded) {
  LedgerQuestion q = question(4000, 4, 3);
  q.grad_accum = 2;
  q.kept_parameters = 400;
  q.reshard = ReshardAfterForward::none;
  EXPECT_EQ(answer(q).volume_elements.text(), "12000") << "2A Psi (N-1)/N";
  q.reshard = ReshardAfterForward::blocks;
  EXPECT_EQ(answer(q).volume_elements.text(), "17400") << "A (3 Psi - Psi_last) (N-1)/N";
  q.reshard = ReshardAfterForward::all;
  EXPECT_EQ(answer(q).volume_elements.text(), "18000") << "3A Psi (N-1)/N";
}

TEST(LedgerVolume, BytesDependOnTheReduceDtype) {
  // Without (N-1)/N: at Psi = 7e9 and a large N the lesson's 28 and 42 GB; ZeRO-3's extra vanishes with fp32.
  const auto bytes_per_parameter = [](int stage, DType reduce) {
    LedgerQuestion q = question(seven_billion, 8, stage);
    q.reduce_dtype = reduce;
    return answer(q).volume_bytes.value() / (static_cast<double>(seven_billion) * 7.0 / 8.0);
  };
  for (const int stage : {0, 1, 2}) EXPECT_EQ(bytes_per_parameter(stage, DType::bf16) * 7.0, 28.0);
  EXPECT_EQ(bytes_per_parameter(3, DType::bf16) * 7.0, 42.0);
  EXPECT_EQ(bytes_per_parameter(0, DType::fp32), 8.0);
  EXPECT_EQ(bytes_per_parameter(1, DType::fp32), 6.0);
  EXPECT_EQ(bytes_per_parameter(2, DType::fp32), 6.0);
  EXPECT_EQ(bytes_per_parameter(3, DType::fp32), 8.0);
}

TEST(LedgerVolume, HasTheBusBandwidthFactors) {
  // An all-reduce of Psi moves 2(n-1)/n of it: 1, 1.333, 1.5, 1.99609375 at n = 2, 3, 4, 512.
  for (const auto& [n, factor] : std::vector<std::pair<std::int64_t, double>>{
           {1, 0.0}, {2, 1.0}, {3, 4.0 / 3.0}, {4, 1.5}, {512, 1.99609375}})
    EXPECT_EQ(answer(question(1, n, 0)).all_reduce_elements.value(), factor) << n;
}

TEST(Ledger, OneRankHoldsAllAndSendsNothing) {
  for (int stage = 0; stage <= 3; ++stage) {
    const LedgerAnswer a = answer(question(seven_billion, 1, stage));
    EXPECT_EQ(a.static_bytes.text(), "112000000000");
    EXPECT_EQ(a.volume_elements.text(), "0");
    EXPECT_EQ(a.volume_bytes.text(), "0");
  }
}

TEST(Ledger, StaticBytesFallWithStageAndRanks) {
  for (const std::int64_t n : {2, 3, 8, 1000}) {
    for (int stage = 1; stage <= 3; ++stage) {
      EXPECT_LT(gigabytes(question(seven_billion, n, stage)),
                gigabytes(question(seven_billion, n, stage - 1)));
      EXPECT_LT(gigabytes(question(seven_billion, n + 1, stage)),
                gigabytes(question(seven_billion, n, stage)));
    }
    EXPECT_EQ(gigabytes(question(seven_billion, n, 0)), 112.0);
  }
}

TEST(Ledger, PartsAddUp) {
  for (int stage = 0; stage <= 3; ++stage) {
    const LedgerAnswer a = answer(question(1003, 7, stage));
    EXPECT_DOUBLE_EQ(a.parameters_bytes.value() + a.gradients_bytes.value() + a.optimizer_bytes.value(),
                     a.static_bytes.value());
    EXPECT_DOUBLE_EQ(a.parameters_bytes.value(), 2.0 * 1003 / (stage >= 3 ? 7 : 1));
    EXPECT_DOUBLE_EQ(a.gradients_bytes.value(), 2.0 * 1003 / (stage >= 2 ? 7 : 1));
    EXPECT_DOUBLE_EQ(a.optimizer_bytes.value(), 12.0 * 1003 / (stage >= 1 ? 7 : 1));
  }
}

TEST(Ledger, Fp32AccumulationAddsFourBytes) {
  const std::vector<double> added = {4.0, 4.0, 0.5, 0.5};  // sharded from stage 2 on
  for (int stage = 0; stage <= 3; ++stage) {
    LedgerQuestion q = question(8000, 8, stage);
    const double without = answer(q).static_bytes.value();
    q.fp32_grad_accum = Fp32Accumulation::on;
    EXPECT_EQ(answer(q).static_bytes.value() - without, 8000 * added[static_cast<std::size_t>(stage)]);
  }
}

TEST(Ledger, Fp32ParametersAreTheMaster) {
  LedgerQuestion q = question(1000, 1, 0);
  q.param_dtype = DType::fp32;
  q.k = 8;
  EXPECT_EQ(answer(q).parameters_bytes.text(), "4000");
  EXPECT_EQ(answer(q).gradients_bytes.text(), "4000");
  EXPECT_EQ(answer(q).optimizer_bytes.text(), "8000");
}

TEST(Ledger, TensorParallelismDividesAllButTheNorms) {
  // bytes (Psi_tp/tp + Psi_norm)/dp
  LedgerQuestion q = question(8000, 4, 3);
  q.replicated_parameters = 100;
  q.tp = 2;
  EXPECT_EQ(answer(q).static_bytes.text(), std::to_string(16 * (8000 / 2 + 100) / 4));
  EXPECT_EQ(answer(q).volume_elements.text(), std::to_string(3 * (8000 / 2 + 100) / 4 * 3));
}

TEST(Ledger, DoesNotOverflowAtScale) {
  LedgerQuestion q = question(10'000'000'000'000, 1'000'000, 3);
  q.grad_accum = 1000;
  EXPECT_EQ(answer(q).volume_elements.text(), "29999970000000000");  // 3A (Psi/N) (N-1)
}

TEST(Exact, WritesFractionsAsShortestDecimals) {
  EXPECT_EQ((Exact{0, 7}.text()), "0");
  EXPECT_EQ((Exact{14, 7}.text()), "2");
  EXPECT_EQ((Exact{1, 4}.text()), "0.25");
  EXPECT_EQ((Exact{static_cast<Exact::Wide>(9'000'000'000'000'000'000) * 10, 1}.text()),
            "90000000000000000000");
}

// --- the ledger of a schedule

class ExpectedOfTiny : public testing::Test {
 protected:
  static Options options(std::int64_t accumulation) {
    Options o;
    o.dims = *find_preset("tiny");
    o.grad_accum = accumulation;
    return o;
  }

  static ExpectedLedger zero3(const Options& o, int ranks, int rank) {
    const std::vector<TensorInfo> tensors = declare_tensors(o.dims);
    const Grouping grouping = make_grouping(o.dims, o.wrap);
    std::vector<GroupLayout> layouts;
    for (const Group& group : grouping.groups) {
      std::vector<TensorInfo> members;
      for (const int t : group.tensors) members.push_back(tensors[static_cast<std::size_t>(t)]);
      layouts.emplace_back(o.layout, members, ranks);
    }
    return expected_zero3(o, tensors, grouping, layouts, make_mesh(layouts.front().parts(), 1, rank));
  }

  /// Calls and elements of one kind and phase.
  static std::pair<std::int64_t, std::int64_t> of(const ExpectedLedger& ledger, Collective kind,
                                                  Phase phase) {
    std::pair<std::int64_t, std::int64_t> sum{0, 0};
    for (const ExpectedCollective& c : ledger.collectives)
      if (c.collective == kind && c.phase == phase) sum = {sum.first + c.count, sum.second + c.size.count()};
    return sum;
  }

  static constexpr std::int64_t psi = 131'392;
  static constexpr std::int64_t layers = 2;
  static constexpr std::int64_t last_group = 64 + 256 * 64;      // norm and head
  static constexpr std::int64_t root_group = 2 * 256 * 64 + 64;  // embedding, norm and head
};

TEST_F(ExpectedOfTiny, Zero3CountsFollowTheReshardPolicy) {
  // Forward A(L+2); backward: all A(L+2), blocks A(L+1), none 0; reduce-scatters A(L+2).
  using Calls = std::pair<std::int64_t, std::int64_t>;
  Options o = options(3);
  for (const auto& [reshard, groups, elements] :
       std::vector<std::tuple<ReshardAfterForward, std::int64_t, std::int64_t>>{
           {ReshardAfterForward::all, layers + 2, psi},
           {ReshardAfterForward::blocks, layers + 1, psi - last_group},
           {ReshardAfterForward::none, 0, 0}}) {
    o.reshard = reshard;
    const ExpectedLedger ledger = zero3(o, 4, 1);
    EXPECT_EQ(of(ledger, Collective::all_gather, Phase::forward), (Calls{3 * (layers + 2), 3 * psi}));
    EXPECT_EQ(of(ledger, Collective::all_gather, Phase::backward), (Calls{3 * groups, 3 * elements}));
    EXPECT_EQ(of(ledger, Collective::reduce_scatter, Phase::backward), (Calls{3 * (layers + 2), 3 * psi}));
  }
}

TEST_F(ExpectedOfTiny, Zero3WithARootGathersItOnce) {
  using Calls = std::pair<std::int64_t, std::int64_t>;
  Options o = options(2);
  o.wrap = Wrap::root;
  for (const ReshardAfterForward reshard :
       {ReshardAfterForward::all, ReshardAfterForward::blocks, ReshardAfterForward::none}) {
    o.reshard = reshard;
    const ExpectedLedger ledger = zero3(o, 4, 0);
    const bool none = reshard == ReshardAfterForward::none;
    EXPECT_EQ(of(ledger, Collective::all_gather, Phase::forward), (Calls{2 * (layers + 1), 2 * psi}));
    EXPECT_EQ(of(ledger, Collective::all_gather, Phase::backward),
              none ? (Calls{0, 0}) : (Calls{2 * layers, 2 * (psi - root_group)}));
    EXPECT_EQ(of(ledger, Collective::reduce_scatter, Phase::backward), (Calls{2 * (layers + 1), 2 * psi}));
  }
}

TEST_F(ExpectedOfTiny, Zero3StaticBytesSumToSixteenPsiOverRanks) {
  for (const Layout layout : {Layout::per_parameter, Layout::flat})
    for (const int ranks : {1, 3, 5}) {
      Options o = options(1);
      o.layout = layout;
      Bytes sum;
      for (int rank = 0; rank < ranks; ++rank) {
        const ExpectedLedger ledger = zero3(o, ranks, rank);
        sum += ledger.parameters + ledger.gradients + ledger.optimizer;
      }
      EXPECT_EQ(sum, Bytes(16 * psi)) << ranks;
    }
}

TEST_F(ExpectedOfTiny, DdpReducesEachBucketOnce) {
  const Options o = options(4);
  const ExpectedLedger ledger = expected_ddp(o, declare_tensors(o.dims), 3, 8);
  EXPECT_EQ(ledger.parameters + ledger.gradients + ledger.optimizer, Bytes(16 * psi));
  ASSERT_EQ(ledger.collectives.size(), 1U);
  EXPECT_EQ(ledger.collectives[0].count, 3);
  EXPECT_EQ(ledger.collectives[0].size, Elements(psi));
  EXPECT_DOUBLE_EQ(ledger.textbook_volume_elements, 2.0 * psi * 7.0 / 8.0);
}

TEST_F(ExpectedOfTiny, RowsFindAMissingCollective) {
  const Options o = options(1);
  const ExpectedLedger ledger = expected_ddp(o, declare_tensors(o.dims), 1, 4);
  const StaticBytes held{ledger.parameters, ledger.gradients, ledger.optimizer};
  StepTotals totals;
  CollectiveTotals& all_reduce = totals[{Axis::dp, Collective::all_reduce, Phase::backward}];
  all_reduce = {.count = 1, .size = Elements(psi), .bytes = Bytes(4 * psi), .group_size = 4};
  EXPECT_EQ(first_mismatch(ledger_rows(ledger, held, totals)), nullptr);

  all_reduce.size = Elements(psi - 1);
  const std::vector<LedgerRow> short_rows = ledger_rows(ledger, held, totals);
  ASSERT_NE(first_mismatch(short_rows), nullptr);
  EXPECT_EQ(first_mismatch(short_rows)->quantity, "all_reduce_size");

  const std::vector<LedgerRow> fat_rows =
      ledger_rows(ledger, {held.parameters + Bytes(1), held.gradients, held.optimizer}, StepTotals{});
  ASSERT_NE(first_mismatch(fat_rows), nullptr);
  EXPECT_EQ(first_mismatch(fat_rows)->quantity, "parameters_bytes");
}

}  // namespace
}  // namespace shardbench
