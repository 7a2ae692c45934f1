// All ranks learn what any of them has asked for, at the same step, however the steps interleave.
#include "src/comm/vote.hpp"

#include "tests/unit/in_process_network.hpp"

namespace shardbench::test {
namespace {

class Voters {
 public:
  explicit Voters(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      engines_.push_back(std::make_unique<ProgressEngine>(ProgressEngine::Hooks{
          .now = [] { return 0.0; }, .pause = [this](int attempt) { drive(attempt); }}));
      votes_.push_back(
          make_vote(std::make_unique<InProcessTransport>(network_, rank, ranks), *engines_.back()));
    }
  }
  Vote& of(int rank) { return *votes_[static_cast<std::size_t>(rank)]; }
  Network& network() { return network_; }

 private:
  void drive(int attempt) {
    if (attempt > 100'000) throw std::runtime_error("the ranks wait for each other");
    for (const auto& engine : engines_) engine->advance();
  }

  Network network_;
  std::vector<std::unique_ptr<ProgressEngine>> engines_;
  std::vector<std::unique_ptr<Vote>> votes_;
};

class VoteOfRanks : public testing::TestWithParam<int> {};

TEST_P(VoteOfRanks, TellsEveryoneWhatAnyoneHasCast) {
  const int n = GetParam();
  for (int voter = 0; voter < n; ++voter) {
    Voters voters(n);
    for (int rank = 0; rank < n; ++rank) voters.of(rank).cast(rank == voter ? 1U << 15U : 0U);
    for (int rank = 0; rank < n; ++rank)
      EXPECT_EQ(voters.of(rank).outcome(), 1U << 15U) << voter << " to " << rank;
    EXPECT_EQ(voters.network().undelivered(), 0U);
  }
}

TEST_P(VoteOfRanks, JoinsBallotsAndForgetsThemByTheNextVote) {
  const int n = GetParam();
  Voters voters(n);
  std::uint32_t all = 0;
  for (int rank = 0; rank < n; ++rank) {
    voters.of(rank).cast(1U << static_cast<unsigned>(rank));
    all |= 1U << static_cast<unsigned>(rank);
  }
  // Who counts first casts the next vote before others have counted this one.
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(voters.of(rank).outcome(), all);
    voters.of(rank).cast(0);
  }
  for (int rank = n - 1; rank >= 0; --rank) EXPECT_EQ(voters.of(rank).outcome(), 0U);
}

TEST_P(VoteOfRanks, CostsAMessageOfFourBytesForEachDoubling) {
  const int n = GetParam();
  Voters voters(n);
  for (int rank = 0; rank < n; ++rank) voters.of(rank).cast(0);
  for (int rank = 0; rank < n; ++rank) voters.of(rank).outcome();
  std::int64_t rounds = 0;
  for (int distance = 1; distance < n; distance *= 2) ++rounds;
  for (int rank = 0; rank < n; ++rank) EXPECT_EQ(voters.network().sent(rank), Bytes(4 * rounds));
}

INSTANTIATE_TEST_SUITE_P(AnyNumber, VoteOfRanks, testing::Values(1, 2, 3, 4, 5, 7, 8, 13, 16, 31));

}  // namespace
}  // namespace shardbench::test
