// Schedules as data, and carried out by all ranks at once over an in-process network.
#include "src/comm/schedule.hpp"
#include "src/comm/progress.hpp"
#include "src/errors.hpp"
#include "src/shard/mesh.hpp"

#include <array>

#include "src/comm/nodes.hpp"
#include "tests/unit/in_process_network.hpp"

namespace shardbench::test {
namespace {

const std::vector<int> group_sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17};
const std::vector<Collective> collectives = {Collective::all_gather, Collective::reduce_scatter,
                                             Collective::all_reduce};
const std::vector<Algorithm> algorithms = {Algorithm::direct, Algorithm::ring, Algorithm::doubling,
                                           Algorithm::hierarchical};
const std::vector<DType> dtypes = {DType::bf16, DType::fp32};

/// The node size that tests use unless they try all: the smallest divisor from 2 on.
int a_node_size(int ranks) {
  int size = 2;
  while (size < ranks && ranks % size != 0) ++size;
  return std::min(size, ranks);
}

ScheduleChoice choice(Algorithm algorithm, int ranks) {
  return {.algorithm = algorithm, .node_size = a_node_size(ranks)};
}

// --- schedules as data

ScheduleRequest request(Collective collective, Algorithm algorithm, std::int64_t size, int ranks,
                        int rank = 0, DType dtype = DType::fp32) {
  return {.collective = collective,
          .algorithm = algorithm,
          .dtype = dtype,
          .size = Elements(size),
          .ranks = ranks,
          .rank = rank,
          .node_size = a_node_size(ranks)};
}

std::vector<Schedule> schedules_of_all_ranks(Collective collective, Algorithm algorithm, std::int64_t size,
                                             int ranks, DType dtype = DType::fp32) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < ranks; ++rank)
    schedules.push_back(make_schedule(request(collective, algorithm, size, ranks, rank, dtype)));
  return schedules;
}

/// Elements of each message from one rank to another, in order, by chain.
using Traffic = std::map<std::tuple<int, int, std::size_t>, std::vector<std::int64_t>>;

struct BothSides {
  Traffic sent, received;
};
BothSides traffic(const std::vector<Schedule>& schedules) {
  BothSides sides;
  for (int rank = 0; rank < static_cast<int>(schedules.size()); ++rank) {
    const std::vector<Chain>& chains = schedules[static_cast<std::size_t>(rank)].chains;
    for (std::size_t c = 0; c < chains.size(); ++c)
      for (const Step& step : chains[c].steps) {
        for (const Transfer& t : step.sends) sides.sent[{rank, t.peer, c}].push_back(t.range.count);
        for (const Transfer& t : step.receives) sides.received[{t.peer, rank, c}].push_back(t.range.count);
      }
  }
  return sides;
}

/// Calls `use(collective, algorithm, ranks)` for all of them.
template <class Use>
void for_each_case(Use use) {
  for (const int ranks : group_sizes)
    for (const Algorithm algorithm : algorithms)
      for (const Collective collective : collectives) {
        SCOPED_TRACE(std::string(name_of(collective)) + " " + std::string(name_of(algorithm)) +
                     " n=" + std::to_string(ranks));
        use(collective, algorithm, ranks);
      }
}

TEST(Schedule, EverySendHasItsReceiveOfEqualSize) {
  for_each_case([](Collective collective, Algorithm algorithm, int ranks) {
    const std::int64_t divisible = ranks * std::int64_t{700'000};  // several segments
    for (const std::int64_t size : {std::int64_t{0}, std::int64_t{ranks}, divisible, divisible + ranks - 1}) {
      const BothSides sides = traffic(schedules_of_all_ranks(collective, algorithm, size, ranks));
      EXPECT_EQ(sides.sent, sides.received) << size;
    }
  });
}

TEST(Schedule, SendsExactlyTheVolume) {
  for_each_case([](Collective collective, Algorithm algorithm, int ranks) {
    const std::int64_t block = 400'001;
    const std::int64_t volume = block * (ranks - 1) * (collective == Collective::all_reduce ? 2 : 1);
    for (const Schedule& schedule : schedules_of_all_ranks(collective, algorithm, block * ranks, ranks))
      EXPECT_EQ(schedule.sent(), Elements(volume));
  });
}

TEST(Schedule, SendsTheVolumeOverAllRanksWhereTheyDoNotDivide) {
  for_each_case([](Collective collective, Algorithm algorithm, int ranks) {
    if (collective != Collective::all_reduce) return;  // only it takes any count
    for (const std::int64_t size : {1, ranks - 1, ranks + 1, 10 * ranks + 3}) {
      Elements sent;
      for (const Schedule& schedule : schedules_of_all_ranks(collective, algorithm, size, ranks))
        sent += schedule.sent();
      EXPECT_EQ(sent, Elements(2 * (ranks - 1) * size));
    }
  });
}

TEST(Schedule, ARanksShareOfAModelledRingIsThatOfItsSchedule) {
  for (const Collective collective :
       {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce})
    for (const int ranks : {2, 3, 5, 24})
      for (const std::int64_t size : {0, 1, 23, 24, 256, 1000}) {
        if (collective != Collective::all_reduce && size % ranks != 0)
          continue;  // only an all-reduce takes any count
        Elements total(0);
        for (int rank = 0; rank < ranks; ++rank) {
          const Elements share = ring_share(collective, Elements(size), ranks, rank);
          const Schedule schedule = make_schedule({.collective = collective,
                                                   .algorithm = Algorithm::ring,
                                                   .dtype = DType::fp32,
                                                   .size = Elements(size),
                                                   .ranks = ranks,
                                                   .rank = rank});
          EXPECT_EQ(share, schedule.sent()) << size << " over " << ranks << ", rank " << rank;
          total += share;
        }
        EXPECT_EQ(total, Elements(ring_passes(collective) * (ranks - 1) * size));
      }
}

TEST(Schedule, TakesAsManyStepsAsItsAlgorithmPromises) {
  for_each_case([](Collective collective, Algorithm algorithm, int ranks) {
    std::size_t steps = static_cast<std::size_t>(ranks - 1);
    if (algorithm == Algorithm::doubling)
      steps = static_cast<std::size_t>(std::ceil(std::log2(static_cast<double>(ranks))));
    if (algorithm == Algorithm::hierarchical) {
      const int node = a_node_size(ranks);
      steps = static_cast<std::size_t>(ranks / node - 1 + node - 1);
    }
    if (collective == Collective::all_reduce) steps *= 2;
    const Schedule schedule = make_schedule(request(collective, algorithm, 1000 * ranks, ranks));
    ASSERT_EQ(schedule.chains.size(), 1U);
    EXPECT_EQ(schedule.chains[0].steps.size(), steps);
  });
}

TEST(Schedule, AllGatherFillsEveryOtherElementOnce) {
  for_each_case([](Collective collective, Algorithm algorithm, int ranks) {
    if (collective != Collective::all_gather) return;
    const std::int64_t block = 300'000;
    const int rank = ranks / 2;
    std::vector<Range> received;
    for (const Chain& chain :
         make_schedule(request(collective, algorithm, block * ranks, ranks, rank)).chains)
      for (const Step& step : chain.steps)
        for (const Transfer& t : step.receives) received.push_back(t.range);
    received.push_back({block * rank, block});
    std::sort(received.begin(), received.end(), [](Range a, Range b) { return a.begin < b.begin; });
    std::int64_t end = 0;
    for (const Range& range : received) {
      EXPECT_EQ(range.begin, end);
      end += range.count;
    }
    EXPECT_EQ(end, block * ranks);
  });
}

/// Calls `use(ranks, node_size)` for every way to put up to 9 ranks on equal nodes.
template <class Use>
void for_each_hierarchy(Use use) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int node_size = 1; node_size <= ranks; ++node_size) {
      if (ranks % node_size != 0) continue;
      SCOPED_TRACE("n=" + std::to_string(ranks) + " in nodes of " + std::to_string(node_size));
      use(ranks, node_size);
    }
}

TEST(Hierarchical, SendsOneBlockToEachOtherNodesRing) {
  for_each_hierarchy([](int ranks, int node_size) {
    const std::int64_t block = 300'001;  // two segments of fp32
    for (const Collective collective : collectives)
      for (int rank = 0; rank < ranks; ++rank) {
        ScheduleRequest r =
            request(collective, Algorithm::hierarchical, block * ranks, ranks, rank, DType::fp32);
        r.node_size = node_size;
        std::int64_t between = 0;
        std::int64_t inside = 0;
        for (const Chain& chain : make_schedule(r).chains)
          for (const Step& step : chain.steps)
            for (const Transfer& t : step.sends) {
              const bool same_node = t.peer / node_size == rank / node_size;
              EXPECT_TRUE(same_node || t.peer % node_size == rank % node_size) << "off its rail";
              (same_node ? inside : between) += t.range.count;
            }
        const int times = collective == Collective::all_reduce ? 2 : 1;
        const int nodes = ranks / node_size;
        EXPECT_EQ(between, times * (nodes - 1) * block);
        EXPECT_EQ(inside, times * (node_size - 1) * nodes * block);
      }
  });
}

TEST(Hierarchical, ReduceScatterLeavesTheNodeLastAndAllGatherFirst) {
  for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter}) {
    ScheduleRequest r = request(collective, Algorithm::hierarchical, 600, 6, 3);
    r.node_size = 3;
    const Schedule schedule = make_schedule(r);
    std::vector<int> peers;
    for (const Step& step : schedule.chains.at(0).steps) peers.push_back(step.sends.at(0).peer);
    EXPECT_EQ(peers, collective == Collective::all_gather ? (std::vector<int>{0, 4, 4})
                                                          : (std::vector<int>{4, 4, 0}));
  }
}

TEST(Hierarchical, NeedsNodesThatDivideTheGroup) {
  ScheduleRequest r = request(Collective::all_gather, Algorithm::hierarchical, 600, 6);
  for (const int node_size : {0, 4, 5, 7}) {
    r.node_size = node_size;
    EXPECT_ANY_THROW(static_cast<void>(make_schedule(r)));
  }
}

TEST(Schedule, IsExactBeyondThirtyTwoBits) {
  struct Case {
    std::int64_t size;
    int ranks;
  };
  // 2^31 + 10; 2^32 + 4, which wraps to 4; 2048 blocks of 524,288.
  for (const auto& [size, ranks] : {Case{(std::int64_t{1} << 31) + 10, 2},
                                    Case{(std::int64_t{1} << 32) + 4, 4}, Case{2048 * 524'288LL, 2048}})
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::doubling}) {
      const int last = ranks - 1;
      const std::int64_t volume = size / ranks * (ranks - 1);
      EXPECT_EQ(make_schedule(request(Collective::all_gather, algorithm, size, ranks, last)).sent(),
                Elements(volume));
      const Schedule reduce =
          make_schedule(request(Collective::reduce_scatter, algorithm, size, ranks, last));
      EXPECT_EQ(reduce.sent(), Elements(volume));
      std::int64_t end = 0;
      for (const Chain& chain : reduce.chains)
        for (const Step& step : chain.steps)
          for (const Transfer& t : step.receives) {
            EXPECT_GE(t.range.begin, 0);
            end = std::max(end, t.range.begin + t.range.count);
          }
      EXPECT_EQ(end, size) << "the last rank's block ends the buffer";
    }
}

TEST(Schedule, SplitsAnyCountBeyondThirtyTwoBitsIntoAdjacentBlocks) {
  for (const std::int64_t size :
       {(std::int64_t{1} << 31) + 10, (std::int64_t{1} << 32) + 4, std::int64_t{1} << 50})
    for (const int parts : {3, 4, 4096}) {
      std::int64_t end = 0;
      for (int block = 0; block < parts; ++block) {
        const Range range = block_range(Elements(size), parts, block);
        EXPECT_EQ(range.begin, end);
        EXPECT_LE(std::abs(range.count - size / parts), 1);
        end += range.count;
      }
      EXPECT_EQ(end, size);
    }
}

TEST(Schedule, AutomaticIsDirectThenDoublingThenRing) {
  const auto resolved = [](std::int64_t block, int ranks) {
    return resolve(Algorithm::automatic,
                   request(Collective::all_gather, Algorithm::automatic, block * ranks, ranks));
  };
  EXPECT_EQ(resolved(10, 1), Algorithm::local);
  EXPECT_EQ(resolved(10, 2), Algorithm::direct);
  EXPECT_EQ(resolved(10'000'000, 8), Algorithm::direct);
  EXPECT_EQ(resolved(10, 9), Algorithm::doubling);
  EXPECT_EQ(resolved(10'000'000, 9), Algorithm::ring);
  EXPECT_EQ(resolve(Algorithm::ring, request(Collective::all_gather, Algorithm::ring, 8, 4)),
            Algorithm::ring);
}

// --- nodes

using Nodes = std::vector<int>;

/// What check_hierarchy says to a world that is one group.
std::string refusal_of(const Nodes& nodes) {
  std::vector<int> everyone(nodes.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  try {
    check_hierarchy(std::span(&everyone, 1), nodes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(NodesOfAGroup, AreEqualRuns) {
  EXPECT_EQ(node_size_of(Nodes{0, 0, 0}), 3);
  EXPECT_EQ(node_size_of(Nodes{5, 2, 7}), 1);
  EXPECT_EQ(node_size_of(Nodes{0, 0, 4, 4, 2, 2}), 2);
  EXPECT_EQ(node_size_of(Nodes{9}), 1);
  for (const Nodes& refused :
       {Nodes{}, Nodes{0, 0, 1}, Nodes{0, 1, 1}, Nodes{0, 1, 0, 1}, Nodes{0, 0, 1, 1, 0, 0}}) {
    EXPECT_FALSE(node_size_of(refused));
    EXPECT_NE(refusal_of(refused), "");
  }
  EXPECT_EQ(refusal_of(Nodes{0, 0, 1, 1}), "");
}

TEST(NodesOfAGroup, FollowFromTheRanksPerNode) {
  const Nodes world = equal_nodes(7, 3);
  EXPECT_EQ(world, (Nodes{0, 0, 0, 1, 1, 1, 2}));
  EXPECT_EQ(nodes_of(Nodes{6, 1, 4}, world), (Nodes{2, 0, 1}));
}

TEST(NodesOfAGroup, AreRefusedWithTheReasonAndWhatToDo) {
  const std::string refusal = refusal_of(equal_nodes(5, 2));
  for (const char* part : {"--algorithm hierarchical", "5 ranks", "0,0,1,1,2", "--ranks-per-node"})
    EXPECT_NE(refusal.find(part), std::string::npos) << refusal;
  EXPECT_LT(refusal_of(equal_nodes(4099, 8)).size(), 450U);
}

TEST(NodesOfAGroup, EveryGroupOfAMeshIsChecked) {
  // 3 x 2 on nodes of 3: tp pairs straddle a border, dp groups of 3 have two members on one node.
  EXPECT_THROW(check_hierarchy(groups_of_mesh(3, 2), equal_nodes(6, 3)), UsageError);
  EXPECT_NO_THROW(check_hierarchy(groups_of_mesh(4, 2), equal_nodes(8, 4)));
  EXPECT_NO_THROW(check_hierarchy(groups_of_mesh(3, 2), equal_nodes(6, 2)));
}

// --- the engine that carries operations

/// Never done.
class Endless final : public Operation {
  void start() override {}
  bool advance() override { return false; }
};

TEST(ProgressEngine, TellsAWaiterOfAFailureElsewhere) {
  ProgressEngine engine({.now = [] { return 0.0; }, .pause = [](int) {}});
  const auto operation = std::make_shared<Endless>();
  engine.submit(engine.add_queue(), operation);
  engine.fail(std::make_exception_ptr(RunError("the network is gone")));
  EXPECT_THROW(engine.wait(*operation), RunError);
}

// --- schedules carried out

/// Small integers that differ between ranks and neighbours; the sum of 17 ranks is exact in bf16.
float contribution(int rank, std::int64_t element) {
  return static_cast<float>((3 * rank + element) % 7 - 3 + (rank == 1 ? 1 : 0));
}

void write(const Buffer& buffer, std::int64_t element, float value) {
  if (buffer.dtype() == DType::fp32) {
    reinterpret_cast<float*>(buffer.data())[element] = value;
  } else {
    reinterpret_cast<bodies::BFloat16*>(buffer.data())[element] = bodies::narrow<bodies::BFloat16>(value);
  }
}
float read(const Buffer& buffer, std::int64_t element) {
  return buffer.dtype() == DType::fp32
             ? reinterpret_cast<const float*>(buffer.data())[element]
             : bodies::widen(reinterpret_cast<const bodies::BFloat16*>(buffer.data())[element]);
}

/// A collective that every rank takes part in, with a buffer each.
class Joint {
 public:
  using Value = float (*)(int rank, std::int64_t element);

  Joint(Cluster& cluster, Collective collective, DType dtype, std::int64_t size, Value value = contribution,
        std::size_t communicator = 0, Reduction reduction = Reduction::sum)
      : cluster_(cluster),
        collective_(collective),
        reduction_(reduction),
        size_(size),
        value_(value),
        communicator_(communicator) {
    for (int rank = 0; rank < cluster.size(); ++rank) {
      buffers_.push_back(cluster.memory(rank).allocate(Category::reduce_buffers, dtype, Elements(size)));
      for (std::int64_t i = 0; i < size; ++i) write(*buffers_.back(), i, value(rank, i));
    }
    pending_.resize(buffers_.size());
  }

  void issue(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    pending_[r] = cluster_.communicator(rank, communicator_).start(collective_, buffers_[r], reduction_);
  }
  void issue_everywhere() {
    for (int rank = 0; rank < cluster_.size(); ++rank) issue(rank);
  }
  void wait() {
    for (const Pending& pending : pending_) pending->wait();
  }
  [[nodiscard]] const PendingCollective& pending(int rank) const {
    return *pending_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const Buffer& buffer(int rank) const { return *buffers_[static_cast<std::size_t>(rank)]; }

  /// What the collective defines: sums of (and copies of) small integers are exact.
  void expect_exact_results() const {
    for (std::int64_t i = 0; i < size_; ++i) {
      const float wanted = expected(i);
      for (int rank = 0; rank < cluster_.size(); ++rank) {
        if (collective_ == Collective::reduce_scatter && owner(i) != rank) continue;
        const float value = read(buffer(rank), i);
        if (value != wanted)
          FAIL() << "rank " << rank << " element " << i << ": " << value << ", not " << wanted;
      }
    }
  }

 private:
  [[nodiscard]] int owner(std::int64_t element) const {
    return static_cast<int>(element / (size_ / cluster_.size()));
  }
  [[nodiscard]] float expected(std::int64_t element) const {
    if (collective_ == Collective::all_gather) return value_(owner(element), element);
    float result = value_(0, element);
    for (int rank = 1; rank < cluster_.size(); ++rank) {
      const float value = value_(rank, element);
      switch (reduction_) {
        case Reduction::sum:
        case Reduction::average:
          result += value;
          break;
        case Reduction::product:
          result *= value;
          break;
        case Reduction::minimum:
          result = std::min(result, value);
          break;
        case Reduction::maximum:
          result = std::max(result, value);
          break;
      }
    }
    if (reduction_ == Reduction::average) result /= static_cast<float>(cluster_.size());
    return rounded_to(buffers_.front()->dtype(), result);
  }

  Cluster& cluster_;
  Collective collective_;
  Reduction reduction_;
  std::int64_t size_;
  Value value_;
  std::size_t communicator_;
  std::vector<BufferRef> buffers_;
  std::vector<Pending> pending_;
};

std::vector<std::int64_t> sizes_for(Collective collective, std::int64_t ranks) {
  if (collective == Collective::all_reduce)
    return {0, 1, ranks - 1, ranks, ranks + 1, 37 * ranks, 37 * ranks + 5};
  return {0, ranks, 3 * ranks, 37 * ranks};
}

class Carried : public testing::TestWithParam<Algorithm> {
 protected:
  /// Runs one collective on a fresh cluster and checks results, volume and that no message is left.
  static void expect_works(int ranks, Collective collective, DType dtype, std::int64_t size) {
    SCOPED_TRACE(std::string(name_of(collective)) + " n=" + std::to_string(ranks) +
                 " size=" + std::to_string(size) + " " + std::string(name_of(dtype)));
    Cluster cluster(ranks, choice(GetParam(), ranks));
    Joint joint(cluster, collective, dtype, size);
    joint.issue_everywhere();
    joint.wait();
    joint.expect_exact_results();
    EXPECT_EQ(cluster.network().undelivered(), 0U);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(joint.pending(rank).sent(), cluster.network().sent(rank));
      if (GetParam() != Algorithm::automatic) {
        EXPECT_EQ(joint.pending(rank).algorithm(), ranks == 1 ? Algorithm::local : GetParam());
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Algorithms, Carried,
                         testing::Values(Algorithm::direct, Algorithm::ring, Algorithm::doubling,
                                         Algorithm::hierarchical, Algorithm::automatic),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(Carried, IsExactForAnyGroupAndSize) {
  for (const int ranks : group_sizes)
    for (const Collective collective : collectives)
      for (const DType dtype : dtypes)
        for (const std::int64_t size : sizes_for(collective, ranks))
          expect_works(ranks, collective, dtype, size);
}

/// Powers of two of either sign: products of 17 are exact in bf16.
float power(int rank, std::int64_t element) {
  constexpr std::array<float, 4> values = {1.0F, -2.0F, 0.5F, 2.0F};
  return values[static_cast<std::size_t>(rank + element) % values.size()];
}

TEST_P(Carried, CombinesByEveryReduction) {
  for (const int ranks : {1, 2, 3, 6, 8, 9, 17})
    for (const Reduction reduction :
         {Reduction::product, Reduction::minimum, Reduction::maximum, Reduction::average})
      for (const Collective collective : {Collective::reduce_scatter, Collective::all_reduce})
        for (const DType dtype : dtypes) {
          SCOPED_TRACE(std::string(name_of(collective)) + " " + std::string(name_of(reduction)) +
                       " n=" + std::to_string(ranks) + " " + std::string(name_of(dtype)));
          Cluster cluster(ranks, choice(GetParam(), ranks));
          const std::int64_t size = 37 * ranks + (collective == Collective::all_reduce ? ranks - 1 : 0);
          Joint joint(cluster, collective, dtype, size,
                      reduction == Reduction::product ? power : contribution, 0, reduction);
          joint.issue_everywhere();
          joint.wait();
          joint.expect_exact_results();
        }
}

TEST_P(Carried, IsExactOverSeveralSegments) {
  // Blocks beyond 1 MiB are cut into segments, of which four run at once: six a block at n = 2.
  expect_works(2, Collective::all_reduce, DType::fp32, 2 * 1'400'000 + 1);
  for (const Collective collective : collectives) expect_works(3, collective, DType::bf16, 3 * 550'001);
}

TEST(Hierarchical, IsExactForAnyNodesAndSize) {
  for_each_hierarchy([](int ranks, int node_size) {
    for (const Collective collective : collectives)
      for (const DType dtype : dtypes)
        for (const std::int64_t size : sizes_for(collective, ranks)) {
          Cluster cluster(ranks,
                          ScheduleChoice{.algorithm = Algorithm::hierarchical, .node_size = node_size});
          Joint joint(cluster, collective, dtype, size);
          joint.issue_everywhere();
          joint.wait();
          joint.expect_exact_results();
          EXPECT_EQ(cluster.network().undelivered(), 0U);
          Bytes sent;
          for (int rank = 0; rank < ranks; ++rank) {
            EXPECT_EQ(joint.pending(rank).sent(), cluster.network().sent(rank));
            sent += cluster.network().sent(rank);
          }
          const int times = collective == Collective::all_reduce ? 2 : 1;
          EXPECT_EQ(sent, bytes_of(dtype, Elements(times * (ranks - 1) * size)));
        }
  });
}

TEST(Hierarchical, IsExactOverSeveralSegments) {
  for (const Collective collective : collectives) {
    Cluster cluster(6, ScheduleChoice{.algorithm = Algorithm::hierarchical, .node_size = 3});
    Joint joint(cluster, collective, DType::bf16, 6 * 1'100'001);  // five segments, four of which run at once
    joint.issue_everywhere();
    joint.wait();
    joint.expect_exact_results();
  }
}

TEST_P(Carried, CompletesInIssueOrder) {
  Cluster cluster(5, GetParam());
  std::vector<std::unique_ptr<Joint>> joints;
  for (const Collective collective : {Collective::reduce_scatter, Collective::all_gather,
                                      Collective::all_reduce, Collective::reduce_scatter})
    joints.push_back(std::make_unique<Joint>(cluster, collective, DType::fp32, 5 * 60));
  // Ranks issue all of theirs one after another, as if each had run ahead of the next.
  for (int rank = 0; rank < cluster.size(); ++rank)
    for (const auto& joint : joints) joint->issue(rank);
  joints.back()->wait();
  for (const auto& joint : joints)
    joint->expect_exact_results();  // all done, though only the last was waited for
  for (int rank = 0; rank < cluster.size(); ++rank)
    for (std::size_t j = 1; j < joints.size(); ++j) {
      EXPECT_LT(joints[j - 1]->pending(rank).ended().issued_s, joints[j]->pending(rank).began().issued_s);
      EXPECT_LT(joints[j]->pending(rank).began().issued_s, joints[j]->pending(rank).ended().issued_s);
    }
}

TEST_P(Carried, TwoCommunicatorsProgressIndependently) {
  Cluster cluster(3, GetParam(), 2);
  Joint stuck(cluster, Collective::all_gather, DType::fp32, 30, contribution, 0);
  Joint free(cluster, Collective::reduce_scatter, DType::fp32, 30, contribution, 1);
  stuck.issue(0);  // the others come late
  stuck.issue(1);
  free.issue_everywhere();
  free.wait();
  free.expect_exact_results();
  stuck.issue(2);
  stuck.wait();
  stuck.expect_exact_results();
}

TEST_P(Carried, SendsTrueSizesWithoutContents) {
  Cluster cluster(4, GetParam());
  std::vector<Pending> pending;
  for (int rank = 0; rank < 4; ++rank)
    pending.push_back(cluster.communicator(rank).all_reduce(cluster.memory(rank).allocate(
        Category::reduce_buffers, DType::bf16, Elements(4 * 1000), Backing::aliased)));
  for (int rank = 0; rank < 4; ++rank) {
    pending[static_cast<std::size_t>(rank)]->wait();
    EXPECT_EQ(pending[static_cast<std::size_t>(rank)]->sent(), Bytes(2 * 2 * 3 * 1000));
    EXPECT_EQ(cluster.network().sent(rank), Bytes(2 * 2 * 3 * 1000));
  }
}

TEST_P(Carried, FreesItsScratchWhenTheHandleIsGone) {
  Cluster cluster(4, GetParam());
  {
    Joint joint(cluster, Collective::reduce_scatter, DType::bf16, 400);
    joint.issue_everywhere();
    joint.wait();
  }
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(cluster.memory(rank).tracker().total(), Bytes(0));
}

TEST_P(Carried, RefusesSizesThatDoNotDivide) {
  Cluster cluster(3, GetParam());
  const BufferRef buffer = cluster.memory(0).allocate(Category::reduce_buffers, DType::fp32, Elements(10));
  EXPECT_ANY_THROW(static_cast<void>(cluster.communicator(0).all_gather(buffer)));
  EXPECT_ANY_THROW(static_cast<void>(cluster.communicator(0).reduce_scatter(buffer)));
}

/// bf16 values whose exact sum needs more digits than bf16 has, yet fits fp32 in any order.
float fraction(int rank, std::int64_t element) {
  const auto hash = static_cast<std::uint32_t>(rank * 7919 + element * 104'729) * 2'654'435'761U;
  return static_cast<float>(static_cast<int>((hash >> 20U) % 255U) - 127) /
         static_cast<float>(1U << (hash >> 30U));
}

/// How many of the elements that `rank` owns are the exact sum rounded once.
std::int64_t rounded_once(Algorithm algorithm, Collective collective, int ranks, std::int64_t block) {
  Cluster cluster(ranks, algorithm);
  Joint joint(cluster, collective, DType::bf16, block * ranks, fraction);
  joint.issue_everywhere();
  joint.wait();
  std::int64_t exact = 0;
  for (std::int64_t i = 0; i < block * ranks; ++i) {
    float sum = 0.0F;
    for (int rank = 0; rank < ranks; ++rank) sum += fraction(rank, i);
    exact += read(joint.buffer(static_cast<int>(i / block)), i) == rounded_to(DType::bf16, sum) ? 1 : 0;
  }
  return exact;
}

TEST(Rounding, DirectSumsBf16InFp32AndRoundsOnce) {
  constexpr std::int64_t block = 200;
  for (const Collective collective : {Collective::reduce_scatter, Collective::all_reduce})
    for (const int ranks : {2, 3, 8, 17}) {
      EXPECT_EQ(rounded_once(Algorithm::direct, collective, ranks, block), block * ranks);
      if (ranks > 2) {  // the values tell the difference: these round at every hop
        EXPECT_LT(rounded_once(Algorithm::ring, collective, ranks, block), block * ranks);
        EXPECT_LT(rounded_once(Algorithm::doubling, collective, ranks, block), block * ranks);
      }
    }
}

TEST(Rounding, DirectAveragesBf16WithOneRounding) {
  Cluster cluster(3, Algorithm::direct);
  Joint joint(cluster, Collective::all_reduce, DType::bf16, 300, fraction, 0, Reduction::average);
  joint.issue_everywhere();
  joint.wait();
  joint.expect_exact_results();  // of the exact sum, divided in fp32
}

TEST(Rounding, DirectRoundsOnceInEverySegment) {
  constexpr std::int64_t block = 600'000;  // 1.2 MB: two segments
  EXPECT_EQ(rounded_once(Algorithm::direct, Collective::all_reduce, 3, block), 3 * block);
}

TEST(ManyCollectives, ReuseTagsAfterTheLastOne) {
  // Tags are counted modulo 32,768; one more round than that must still pair the right messages.
  Cluster cluster(2, Algorithm::ring);
  const BufferRef a = cluster.memory(0).allocate(Category::reduce_buffers, DType::fp32, Elements(2));
  const BufferRef b = cluster.memory(1).allocate(Category::reduce_buffers, DType::fp32, Elements(2));
  for (int round = 0; round < 32'769; ++round) {
    write(*a, 0, static_cast<float>(round));
    write(*b, 1, static_cast<float>(-round));
    const Pending first = cluster.communicator(0).all_gather(a);
    const Pending second = cluster.communicator(1).all_gather(b);
    first->wait();
    second->wait();
    ASSERT_EQ(read(*a, 1), static_cast<float>(-round));
    ASSERT_EQ(read(*b, 0), static_cast<float>(round));
  }
}

TEST(ConsecutiveSteps, AreThoseOfOneChainForAsManyAsRunAtOnce) {
  const auto steps = [](Collective collective, Algorithm algorithm, std::int64_t mebibytes, int ranks) {
    return make_schedule({.collective = collective,
                          .algorithm = algorithm,
                          .dtype = DType::fp32,
                          .size = Elements((mebibytes << 18) * ranks),
                          .ranks = ranks,
                          .rank = ranks - 1})
        .consecutive_steps();
  };
  EXPECT_EQ(steps(Collective::all_gather, Algorithm::ring, 1, 16), 15);
  EXPECT_EQ(steps(Collective::all_reduce, Algorithm::ring, 1, 16), 30);
  EXPECT_EQ(steps(Collective::reduce_scatter, Algorithm::doubling, 1, 24), 5);
  // Five segments of 1 MiB: four at once, then the fifth.
  EXPECT_EQ(steps(Collective::all_gather, Algorithm::ring, 4, 16), 15);
  EXPECT_EQ(steps(Collective::all_gather, Algorithm::ring, 5, 16), 30);
}

}  // namespace
}  // namespace shardbench::test
