// What a rank's supervisor hears and when it ends the process. Each case runs in a process of its own.
#include "src/supervise/supervisor.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace shardbench {
namespace {

using namespace std::chrono_literals;

Supervisor::Settings settings(double stall_limit_s) {
  return {.program = "zero3", .stall_limit_s = stall_limit_s, .kind = Supervisor::Kind::active};
}

StopRequests bit(int signal) { return 1U << static_cast<unsigned>(signal); }

/// Ends the process with 0 when `holds` does within seconds, else with 9.
template <class Condition>
[[noreturn]] void exit_when(Condition holds) {
  for (int i = 0; i < 1000 && !holds(); ++i) std::this_thread::sleep_for(10ms);
  std::_Exit(holds() ? 0 : 9);
}

class SupervisorOfARank : public testing::Test {
 protected:
  SupervisorOfARank() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SupervisorOfARank, KeepsASignalForTheRunToAskFor) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1})
    EXPECT_EXIT(
        {
          Supervisor supervisor(settings(0.0));
          supervisor.finishes_in_order();
          kill(getpid(), signal);
          exit_when([&] { return supervisor.requests() == bit(signal); });
        },
        testing::ExitedWithCode(0), "");
}

TEST_F(SupervisorOfARank, JoinsSignalsOfDifferentKinds) {
  EXPECT_EXIT(
      {
        Supervisor supervisor(settings(0.0));
        supervisor.finishes_in_order();
        kill(getpid(), SIGUSR1);
        kill(getpid(), SIGTERM);
        exit_when([&] { return supervisor.requests() == (bit(SIGUSR1) | bit(SIGTERM)); });
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(SupervisorOfARank, EndsAtOnceWhereNobodyWouldAsk) {
  EXPECT_EXIT(
      {
        Supervisor supervisor(settings(0.0));
        kill(getpid(), SIGTERM);
        exit_when([] { return false; });
      },
      testing::ExitedWithCode(1), "zero3: ended by SIGTERM before the output was created");
}

TEST_F(SupervisorOfARank, EndsAtOnceOnTheSameSignalAgain) {
  EXPECT_EXIT(
      {
        Supervisor supervisor(settings(0.0));
        supervisor.set_rank(5);
        supervisor.finishes_in_order();
        kill(getpid(), SIGINT);
        std::this_thread::sleep_for(700ms);
        kill(getpid(), SIGINT);
        exit_when([] { return false; });
      },
      testing::ExitedWithCode(1), "zero3: rank 5: ended by a second SIGINT");
}

TEST_F(SupervisorOfARank, NamesWhereARankStandsStill) {
  EXPECT_EXIT(
      {
        Supervisor supervisor(settings(0.3));
        supervisor.set_rank(2);
        supervisor.activity().enter({.operation = "waiting for reduce_scatter",
                                     .phase = "backward",
                                     .axis = "dp",
                                     .group_size = 4,
                                     .step = 12,
                                     .layer = 5});
        exit_when([] { return false; });
      },
      testing::ExitedWithCode(1),
      "zero3: rank 2: no progress for 0.3 s at step 12, backward, layer 5, waiting for reduce_scatter "
      "\\(axis dp, 4 ranks\\)");
}

TEST_F(SupervisorOfARank, LetsALongOperationThatGetsOnBe) {
  EXPECT_EXIT(
      {
        Supervisor supervisor(settings(1.0));
        supervisor.activity().enter("computing");
        for (int i = 0; i < 40; ++i) {
          supervisor.activity().progressed();
          std::this_thread::sleep_for(50ms);
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(SupervisorOfARank, LeavesSignalsAloneInASimulator) {
  EXPECT_EXIT(
      {
        const Supervisor supervisor(
            {.program = "zero3", .stall_limit_s = 0.1, .kind = Supervisor::Kind::inert});
        kill(getpid(), SIGTERM);
        exit_when([] { return false; });
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(NameOfSignal, IsTheSystems) {
  EXPECT_EQ(name_of_signal(bit(SIGTERM)), "SIGTERM");
  EXPECT_EQ(name_of_signal(bit(SIGINT)), "SIGINT");
  EXPECT_EQ(name_of_signal(bit(SIGUSR1)), "SIGUSR1");
}

}  // namespace
}  // namespace shardbench
