// Compute that only takes time, on a clock of the test's: its length, its polls, and how contention stretches
// it while the engine has a collective under way.
#include "src/comm/imitated_compute.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "src/comm/progress.hpp"

namespace shardbench {
namespace {

/// Ends at a given moment.
class Transfer final : public Operation {
 public:
  Transfer(const double& now, double end_s, bool contends = true)
      : now_(now), ends_at_s_(end_s), contends_(contends) {}
  [[nodiscard]] bool contends() const override { return contends_; }

 private:
  void start() override {}
  bool advance() override { return now_ >= ends_at_s_; }

  const double& now_;
  double ends_at_s_;
  bool contends_;
};

class ImitatedCompute : public testing::Test {
 protected:
  double elapsed(double seconds, double contention) {
    const double begin = now_;
    imitate_compute(seconds, contention,
                    {.now = [this] { return now_; },
                     .sleep = [this](double length) { now_ += length + oversleep_s_; },
                     .poll =
                         [this] {
                           ++polls_;
                           engine_.advance();
                         },
                     .collective_under_way = [this] { return engine_.collective_under_way(); }});
    return now_ - begin;
  }
  void start(double seconds, bool contends = true) {
    engine_.submit(engine_.add_queue(), std::make_shared<Transfer>(now_, now_ + seconds, contends));
  }

  double now_ = 100.0;
  double oversleep_s_ = 0.0;
  std::int64_t polls_ = 0;
  ProgressEngine engine_{{.now = [this] { return now_; }, .pause = [](int) {}}};
};

TEST_F(ImitatedCompute, TakesAsLongAsAsked) {
  EXPECT_EQ(elapsed(0.0, 1.0), 0.0);
  EXPECT_NEAR(elapsed(3.14e-3, 0.0), 3.14e-3, 1e-8);
  oversleep_s_ = 60e-6;  // a real sleep's
  const double late = elapsed(3.14e-3, 0.0);
  EXPECT_GE(late, 3.14e-3);
  EXPECT_LT(late, 3.14e-3 + 2 * oversleep_s_);
}

TEST_F(ImitatedCompute, PollsAsOftenAsPromised) {
  for (const double seconds : {0.0, 0.1e-3, 0.25e-3, 0.3e-3, 1e-3, 10.1e-3}) {
    polls_ = 0;
    elapsed(seconds, 0.0);
    EXPECT_EQ(polls_, polls_per_layer(seconds)) << seconds;
  }
}

TEST_F(ImitatedCompute, IsUndisturbedWithoutContentionOrCollective) {
  EXPECT_NEAR(elapsed(5e-3, 0.5), 5e-3, 1e-8);
  start(1.0);
  EXPECT_NEAR(elapsed(5e-3, 0.0), 5e-3, 1e-8);
}

TEST_F(ImitatedCompute, IsStretchedWhileACollectiveIsUnderWay) {
  start(1.0);
  EXPECT_NEAR(elapsed(5e-3, 0.5), 7.5e-3, 1e-8);
}

TEST_F(ImitatedCompute, IsStretchedUntilTheCollectiveIsSeenToEnd) {
  start(3e-3);
  // In the 3 ms of the transfer 2 ms of compute get done; the other 3 ms take as long as they are.
  EXPECT_NEAR(elapsed(5e-3, 0.5), 6e-3, 0.25e-3);
}

TEST_F(ImitatedCompute, CountsSeveralCollectivesOnce) {
  start(1.0);
  start(1.0);
  EXPECT_NEAR(elapsed(5e-3, 0.5), 7.5e-3, 1e-8);
}

TEST_F(ImitatedCompute, IsNotStretchedByVotes) {
  start(1.0, false);
  EXPECT_FALSE(engine_.collective_under_way());
  EXPECT_NEAR(elapsed(5e-3, 0.5), 5e-3, 1e-8);
}

}  // namespace
}  // namespace shardbench
