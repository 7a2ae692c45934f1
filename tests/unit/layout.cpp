// Who holds which elements: chunks, shards, buckets and gather groups.
#include "src/shard/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>

namespace shardbench {
namespace {

/// Tensors of these shapes, indexed from `first_index` on.
std::vector<TensorInfo> tensors_of(const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes,
                                   int first_index = 0) {
  std::vector<TensorInfo> tensors;
  for (const auto& [rows, columns] : shapes) {
    TensorInfo t;
    t.index = first_index + static_cast<int>(tensors.size());
    t.rows = rows;
    t.columns = columns;
    tensors.push_back(t);
  }
  return tensors;
}

std::vector<TensorInfo> tensors_at(const ModelDims& dims, const std::vector<int>& indices) {
  const std::vector<TensorInfo> all = declare_tensors(dims);
  std::vector<TensorInfo> tensors;
  for (const int index : indices) tensors.push_back(all[static_cast<std::size_t>(index)]);
  return tensors;
}

TEST(Chunks, AreCeilChunksWithTheEmptyOnesKept) {
  const auto rows_of = [](std::int64_t rows, int parts) {
    std::vector<std::int64_t> counts;
    for (int part = 0; part < parts; ++part) counts.push_back(chunk_of(rows, parts, part).count());
    return counts;
  };
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(rows_of(5, 4), (Counts{2, 2, 1, 0}));
  EXPECT_EQ(rows_of(1, 3), (Counts{1, 0, 0}));
  EXPECT_EQ(rows_of(6, 3), (Counts{2, 2, 2}));
  EXPECT_EQ(rows_of(7, 1), (Counts{7}));
  EXPECT_EQ(rows_of(0, 2), (Counts{0, 0}));
  EXPECT_EQ(chunk_of(5, 4, 2), (RowRange{4, 5}));
  EXPECT_EQ(chunk_of(5, 4, 3), (RowRange{5, 5}));
}

TEST(Chunks, OfAVocabularyOver512RanksLeaveFourEmpty) {
  std::int64_t rows = 0;
  int empty = 0;
  for (int part = 0; part < 512; ++part) {
    rows += chunk_of(50257, 512, part).count();
    empty += chunk_of(50257, 512, part).count() == 0 ? 1 : 0;
  }
  EXPECT_EQ(chunk_of(50257, 512, 0).count(), 99);
  EXPECT_EQ(rows, 50257);
  EXPECT_EQ(empty, 4);
}

TEST(Chunks, Of25ElementsAddUpTo25) {
  for (const int parts : {3, 5, 6, 7}) {
    std::int64_t rows = 0;
    for (int part = 0; part < parts; ++part) rows += chunk_of(25, parts, part).count();
    EXPECT_EQ(rows, 25) << parts;
  }
}

TEST(Chunks, StayExactForHugeTensors) {
  const std::int64_t rows = (std::int64_t{1} << 40) + 3;
  EXPECT_EQ(chunk_of(rows, 1 << 20, (1 << 20) - 1).end, rows);
  EXPECT_EQ(chunk_of(rows, 7, 6).end, rows);
}

class Shards : public testing::TestWithParam<std::tuple<Layout, int>> {
 protected:
  const Layout layout_ = std::get<0>(GetParam());
  const int parts_ = std::get<1>(GetParam());
  // The second group is a tensor of its own, whose gathered buffer is in place under either layout.
  const std::vector<TensorInfo> first_ = tensors_of({{2, 3}, {1, 1}, {5, 7}, {1, 1}});
  const std::vector<TensorInfo> second_ = tensors_of({{6, 5}}, 4);
  const std::vector<GroupLayout> groups_ = {GroupLayout(layout_, first_, parts_),
                                            GroupLayout(layout_, second_, parts_)};

  [[nodiscard]] std::vector<TensorInfo> all() const {
    std::vector<TensorInfo> tensors = first_;
    tensors.insert(tensors.end(), second_.begin(), second_.end());
    return tensors;
  }
};
INSTANTIATE_TEST_SUITE_P(Parts, Shards,
                         testing::Combine(testing::Values(Layout::per_parameter, Layout::flat),
                                          testing::Range(1, 9)),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param) == Layout::flat ? "flat"
                                                                                        : "per_parameter") +
                                  "_" + std::to_string(std::get<1>(tested.param));
                         });

/// How often each element of each tensor is held.
class Coverage {
 public:
  explicit Coverage(std::span<const TensorInfo> tensors) {
    for (const TensorInfo& t : tensors) held_.emplace_back(static_cast<std::size_t>(t.elements().count()), 0);
  }
  void add(std::span<const Slice> slices) {
    for (const Slice& s : slices)
      for (std::int64_t i = 0; i < s.count; ++i)
        ++held_.at(static_cast<std::size_t>(s.tensor)).at(static_cast<std::size_t>(s.begin + i));
  }
  void expect_each_once() const {
    for (std::size_t t = 0; t < held_.size(); ++t)
      for (const int times : held_[t]) EXPECT_EQ(times, 1) << "tensor " << t;
  }

 private:
  std::vector<std::vector<int>> held_;
};

TEST_P(Shards, HoldEveryElementExactlyOnce) {
  Coverage in_groups(all());
  Coverage resident(all());
  for (int part = 0; part < parts_; ++part) {
    for (const GroupLayout& group : groups_) in_groups.add(group.slices(part));
    resident.add(resident_slices(groups_, part));
  }
  in_groups.expect_each_once();
  resident.expect_each_once();
}

TEST_P(Shards, FitTheirBlockWithoutOverlap) {
  for (const GroupLayout& group : groups_)
    for (int part = 0; part < parts_; ++part) {
      std::int64_t end = 0;
      for (const Slice& slice : group.slices(part)) {
        EXPECT_GE(slice.offset, end);
        EXPECT_GT(slice.count, 0);
        end = slice.offset + slice.count;
      }
      EXPECT_LE(end, group.block().count());
    }
}

TEST_P(Shards, ResidentOnesAreDense) {
  for (int part = 0; part < parts_; ++part) {
    std::int64_t end = 0;
    for (const Slice& slice : resident_slices(groups_, part)) {
      EXPECT_EQ(slice.offset, end);
      end += slice.count;
    }
    EXPECT_EQ(Elements(end), total(groups_[0].slices(part)) + total(groups_[1].slices(part)));
  }
}

TEST_P(Shards, HaveTheBlockTheirLayoutDefines) {
  const GroupLayout& group = groups_[0];
  const std::int64_t real = 6 + 1 + 35 + 1;
  const std::int64_t rows = ceil_div(2, parts_) * 3 + 1 + ceil_div(5, parts_) * 7 + 1;
  EXPECT_EQ(group.real(), Elements(real));
  EXPECT_EQ(group.block(), Elements(layout_ == Layout::flat ? ceil_div(real, parts_) : rows));
  EXPECT_EQ(group.gathered(), group.block() * parts_);
  EXPECT_EQ(group.parts(), parts_);
}

TEST_P(Shards, GatheredInPlaceLieWhereWholeSaysTheyDo) {
  for (const GroupLayout& group : groups_) {
    if (!group.in_place()) continue;
    const std::vector<Slice> whole = group.whole();
    for (int part = 0; part < parts_; ++part)
      for (const Slice& slice : group.slices(part)) {
        const auto tensor = std::find_if(whole.begin(), whole.end(),
                                         [&](const Slice& s) { return s.tensor == slice.tensor; });
        ASSERT_NE(tensor, whole.end());
        EXPECT_EQ(part * group.block().count() + slice.offset, tensor->offset + slice.begin);
      }
  }
  EXPECT_TRUE(groups_[1].in_place());
  EXPECT_EQ(groups_[0].in_place(), layout_ == Layout::flat || parts_ == 1);
}

TEST(PerParameterShards, AreWholeRows) {
  const std::vector<TensorInfo> tensors = tensors_of({{2, 3}, {1, 1}, {5, 7}});
  for (int parts = 1; parts <= 8; ++parts) {
    const GroupLayout group(Layout::per_parameter, tensors, parts);
    for (int part = 0; part < parts; ++part)
      for (const Slice& slice : group.slices(part)) {
        const TensorInfo& t = tensors[static_cast<std::size_t>(slice.tensor)];
        const RowRange rows = chunk_of(t.rows, parts, part);
        EXPECT_EQ(slice.begin, rows.begin * t.columns);
        EXPECT_EQ(slice.count, rows.count() * t.columns);
      }
  }
}

TEST(PerParameterShards, LieAtTheSameOffsetOnEveryPart) {
  // As in FSDP2: each tensor's chunk is padded, not the block as a whole.
  const GroupLayout group(Layout::per_parameter, tensors_of({{5, 7}, {1, 1}, {2, 3}}), 4);
  EXPECT_EQ(group.slices(0), (std::vector<Slice>{{0, 0, 14, 0}, {1, 0, 1, 14}, {2, 0, 3, 15}}));
  EXPECT_EQ(group.slices(1), (std::vector<Slice>{{0, 14, 14, 0}, {2, 3, 3, 15}}));
  EXPECT_EQ(group.slices(2), (std::vector<Slice>{{0, 28, 7, 0}}));
  EXPECT_TRUE(group.slices(3).empty());
}

TEST(WholeTensors, LieGroupAfterGroupWithOrWithoutPadding) {
  // 7 elements in blocks of 2, 35 in blocks of 9.
  const std::vector<GroupLayout> groups = {GroupLayout(Layout::flat, tensors_of({{2, 3}, {1, 1}}), 4),
                                           GroupLayout(Layout::flat, tensors_of({{5, 7}}), 4)};
  EXPECT_EQ(whole_tensors(groups, Padding::none),
            (std::vector<Slice>{{0, 0, 6, 0}, {1, 0, 1, 6}, {0, 0, 35, 7}}));
  EXPECT_EQ(whole_tensors(groups, Padding::included),
            (std::vector<Slice>{{0, 0, 6, 0}, {1, 0, 1, 6}, {0, 0, 35, 8}}));

  const Holding padded = hold_whole(groups, 3, Padding::included);
  EXPECT_EQ(padded.size, Elements(8 + 36));
  EXPECT_EQ(padded.owned_at, (std::vector<std::int64_t>{6, 8 + 27}));
  const Holding dense = hold_whole(groups, 3, Padding::none);
  EXPECT_EQ(dense.size, Elements(7 + 35));
  EXPECT_EQ(dense.owned_at, (std::vector<std::int64_t>{6, 7 + 27}));
}

TEST(TensorParallelPart, ThenDataParallelShardsOfIt) {
  // Ten rows over tp 2 x dp 2: (dp, tp) = (0,0) 3, (1,0) 2, (0,1) 3, (1,1) 2.
  for (int tp = 0; tp < 2; ++tp) {
    const RowRange part = chunk_of(10, 2, tp);
    EXPECT_EQ(chunk_of(part.count(), 2, 0).count(), 3);
    EXPECT_EQ(chunk_of(part.count(), 2, 1).count(), 2);
  }
}

TEST(TensorParallelPart, HoldsEveryElementOfAMatrixOnceAndEveryNormEverywhere) {
  const ModelDims dims{1, 12, 6, 3, 7, 10, 4, Head::own};
  const std::vector<TensorInfo> declared = declare_tensors(dims);
  for (const int tp : {1, 3}) {
    for (const TensorInfo& tensor : declared) {
      std::vector<int> seen(static_cast<std::size_t>(tensor.elements().count()));
      int primaries = 0;
      for (int index = 0; index < tp; ++index) {
        const TensorInfo part =
            tensor_parallel_part(declared, tp, index)[static_cast<std::size_t>(tensor.index)];
        for (std::int64_t i = 0; i < part.elements().count(); ++i)
          ++seen[static_cast<std::size_t>(part.declared_element(i))];
        primaries += part.copy == Copy::primary ? 1 : 0;
      }
      for (const int times : seen) EXPECT_EQ(times, tensor.is_norm() ? tp : 1) << tensor.name;
      EXPECT_EQ(primaries, tensor.is_norm() ? 1 : tp);
    }
  }
  // w2 is cut along its columns.
  const TensorInfo w2 =
      tensor_parallel_part(declared, 3, 1)[static_cast<std::size_t>(tensor_index(dims, TensorRole::w2, 1))];
  EXPECT_EQ(std::pair(w2.rows, w2.columns), std::pair(std::int64_t{12}, std::int64_t{3}));
  EXPECT_EQ(w2.declared_element(3), 7 + 3);  // the first of its second row
}

TEST(GroupLayouts, OfATensorParallelGroupCutNormsAlike) {
  // ffn 5 and vocabulary 7 over tp 2 and 4: the ranks' parts differ in size, their norms must not.
  const ModelDims dims{2, 8, 4, 4, 5, 7, 4, Head::own};
  for (const int tp : {2, 4})
    for (const int dp : {1, 2, 3, 5})
      for (const Wrap wrap : {Wrap::blocks, Wrap::root})
        for (const Layout layout : {Layout::flat, Layout::per_parameter}) {
          const Grouping grouping = make_grouping(dims, wrap);
          const auto norms = [&](int dp_index, int tp_index) {
            std::vector<std::tuple<int, std::int64_t, std::int64_t>> owned;
            const Mesh mesh{.dp = dp, .tp = tp, .dp_index = dp_index, .tp_index = tp_index};
            for (const Slice& slice :
                 resident_slices(make_group_layouts(layout, grouping.groups, dims, mesh), dp_index))
              if (declare_tensors(dims)[static_cast<std::size_t>(slice.tensor)].is_norm())
                owned.emplace_back(slice.tensor, slice.begin, slice.count);
            return owned;
          };
          for (int dp_index = 0; dp_index < dp; ++dp_index)
            for (int tp_index = 1; tp_index < tp; ++tp_index)
              EXPECT_EQ(norms(dp_index, tp_index), norms(dp_index, 0)) << "tp " << tp << " dp " << dp;
        }
}

/// Gathered over real elements of the first block, in thousandths (three digits are published).
std::int64_t inflation(const char* preset, Layout layout, int parts) {
  const ModelDims dims = *find_preset(preset);
  const GroupLayout group(layout, tensors_at(dims, tensors_of_layer(dims, 1)), parts);
  const double ratio =
      static_cast<double>(group.gathered().count()) / static_cast<double>(group.real().count());
  return std::llround(1000.0 * ratio);
}

TEST(Padding, InflatesBlocksAsPublished) {
  const std::vector<int> ranks = {512, 768, 1024, 2048};
  const auto row = [&](const char* preset, Layout layout) {
    std::vector<std::int64_t> values;
    for (const int n : ranks) values.push_back(inflation(preset, layout, n));
    return values;
  };
  using Row = std::vector<std::int64_t>;
  EXPECT_EQ(row("8b", Layout::per_parameter), (Row{1000, 1082, 1000, 1038}));
  EXPECT_EQ(row("124m", Layout::per_parameter), (Row{1185, 1056, 1185, 1926}));
  EXPECT_EQ(row("8b", Layout::flat), (Row{1000, 1000, 1000, 1000}));
  EXPECT_EQ(row("124m", Layout::flat), (Row{1000, 1000, 1000, 1000}));
}

// --- buckets

constexpr Bytes mebibytes(std::int64_t count) { return Bytes(count << 20); }

TEST(Buckets, CloseWhenTheirCapIsReachedAndNeverSplitATensor) {
  // fp32 sizes in MiB, declared: 3, 20, 4, 2, 0.5. Reverse: {0.5, 2} reaches 1; {4, 20} misses 25, so 3
  // joins.
  const auto elements = [](std::int64_t kibibytes) { return kibibytes * 256; };
  const std::vector<TensorInfo> tensors = tensors_of({{elements(3072), 1},
                                                      {elements(20480), 1},
                                                      {elements(4096), 1},
                                                      {elements(2048), 1},
                                                      {elements(512), 1}});
  const std::vector<Bucket> buckets = make_buckets(tensors, DType::fp32, mebibytes(1), mebibytes(25));
  ASSERT_EQ(buckets.size(), 2U);
  EXPECT_EQ(buckets[0].tensors, (std::vector<int>{4, 3}));
  EXPECT_EQ(buckets[1].tensors, (std::vector<int>{2, 1, 0}));
  EXPECT_EQ(bytes_of(DType::fp32, buckets[1].elements), mebibytes(27));

  // In bf16 everything is half as large: the first needs the 4 MiB tensor no more, the second never fills.
  const std::vector<Bucket> halves = make_buckets(tensors, DType::bf16, mebibytes(1), mebibytes(10));
  ASSERT_EQ(halves.size(), 3U);
  EXPECT_EQ(halves[0].tensors, (std::vector<int>{4, 3}));
  EXPECT_EQ(halves[1].tensors, (std::vector<int>{2, 1}));
  EXPECT_EQ(halves[2].tensors, (std::vector<int>{0}));
}

TEST(Buckets, CloseExactlyAtTheCap) {
  const std::vector<TensorInfo> tensors = tensors_of({{1, 1}, {1 << 18, 1}, {(1 << 18) - 1, 1}});
  const std::vector<Bucket> buckets = make_buckets(tensors, DType::fp32, mebibytes(1), mebibytes(1));
  ASSERT_EQ(buckets.size(), 2U);
  EXPECT_EQ(buckets[0].tensors, (std::vector<int>{2, 1})) << "one element short of the cap stays open";
  const std::vector<TensorInfo> exact = tensors_of({{1, 1}, {1 << 18, 1}});
  EXPECT_EQ(make_buckets(exact, DType::fp32, mebibytes(1), mebibytes(1)).size(), 2U)
      << "the cap itself closes";
}

TEST(Buckets, OfAModelCoverItInReverseOrder) {
  for (const char* preset : {"tiny", "25m", "124m"}) {
    const ModelDims dims = *find_preset(preset);
    const std::vector<TensorInfo> tensors = declare_tensors(dims);
    std::vector<int> order;
    Elements elements;
    for (const Bucket& bucket : make_buckets(tensors, DType::fp32, mebibytes(1), mebibytes(25))) {
      order.insert(order.end(), bucket.tensors.begin(), bucket.tensors.end());
      elements += bucket.elements;
    }
    std::vector<int> reversed(tensors.size());
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    EXPECT_EQ(order, reversed) << preset;
    EXPECT_EQ(elements, parameter_count(dims)) << preset;
  }
}

TEST(Buckets, WithDefaultCapsStartWithTheHead) {
  // 25m in fp32: the head alone is 16 MiB, beyond the first cap of 1 MiB.
  const std::vector<TensorInfo> tensors = declare_tensors(*find_preset("25m"));
  const std::vector<Bucket> buckets = make_buckets(tensors, DType::fp32, mebibytes(1), mebibytes(25));
  EXPECT_EQ(buckets.front().tensors, std::vector<int>{tensors.back().index});
}

// --- gather groups

std::vector<std::vector<int>> tensors_of_groups(const Grouping& grouping) {
  std::vector<std::vector<int>> tensors;
  for (const Group& group : grouping.groups) tensors.push_back(group.tensors);
  return tensors;
}

const ModelDims two_blocks{2, 64, 4, 2, 192, 256, 32, Head::own};
const std::vector<int> first_block = {1, 2, 3, 4, 5, 6, 7, 8, 9};
const std::vector<int> second_block = {10, 11, 12, 13, 14, 15, 16, 17, 18};

TEST(Grouping, BlocksGiveLPlusTwoGroups) {
  const Grouping grouping = make_grouping(two_blocks, Wrap::blocks);
  EXPECT_EQ(tensors_of_groups(grouping),
            (std::vector<std::vector<int>>{{0}, first_block, second_block, {19, 20}}));
  EXPECT_EQ(grouping.group_of_layer, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(grouping.groups.back().id, 3);
}

TEST(Grouping, RootHoldsEmbeddingNormAndHead) {
  const Grouping grouping = make_grouping(two_blocks, Wrap::root);
  EXPECT_EQ(tensors_of_groups(grouping),
            (std::vector<std::vector<int>>{{0, 19, 20}, first_block, second_block}));
  EXPECT_EQ(grouping.group_of_layer, (std::vector<int>{0, 1, 2, 0}));
  EXPECT_EQ(grouping.groups.front().id, 0);
}

TEST(Grouping, TiedWeightsAreInTheRootOnce) {
  ModelDims tied = two_blocks;
  tied.head = Head::tied;
  const Grouping grouping = make_grouping(tied, Wrap::root);
  EXPECT_EQ(tensors_of_groups(grouping), (std::vector<std::vector<int>>{{0, 19}, first_block, second_block}));
  EXPECT_ANY_THROW(make_grouping(tied, Wrap::blocks));
}

}  // namespace
}  // namespace shardbench
