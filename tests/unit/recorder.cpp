// What a step's record says: where its time went, in which order things happened, and what was communicated.
#include "src/trace/recorder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "src/errors.hpp"

namespace shardbench {
namespace {

/// A world of one rank whose time stands still until told to pass.
class StillWorld final : public World {
 public:
  void pass(double seconds) { now_ += seconds; }

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] double now() const override { return now_; }
  void imitate_compute(double seconds) override { pass(seconds); }
  void poll() override {}
  void check_settings() const override {}
  ControlChannel& control() override { throw std::logic_error("no peers"); }
  std::unique_ptr<Communicator> communicator(std::span<const int> /*members*/) override { return nullptr; }
  [[nodiscard]] Placement placement() const override { return {}; }
  [[nodiscard]] const std::vector<int>& nodes() const override { return nodes_; }
  [[nodiscard]] bool simulated() const override { return false; }
  [[nodiscard]] const Hardware* hardware() const override { return nullptr; }
  [[nodiscard]] std::string library() const override { return ""; }
  [[nodiscard]] std::string wait_policy() const override { return ""; }
  std::unique_ptr<Vote> vote() override { return nullptr; }
  [[nodiscard]] Activity& activity() const override { return activity_; }
  void leave() override {}
  [[noreturn]] void abort(int /*exit_code*/) override { throw std::logic_error("aborted"); }

 private:
  double now_ = 100.0;
  mutable Activity activity_;
  std::vector<int> nodes_ = {0};
};

/// A recorder and the short-hands to tell it a story. All durations are powers of two, so that sums are
/// exact.
class Story : public testing::TestWithParam<TraceLevel> {
 protected:
  void compute(double seconds, Subject subject = {.layer = 1}) {
    const Recorder::Span span = recorder_.compute(subject);
    world_.pass(seconds);
  }
  void copy(double seconds) {
    const Recorder::Span span = recorder_.copy_in({.layer = 1});
    world_.pass(seconds);
  }
  std::size_t issue(Collective collective, std::int64_t elements = 10, Subject subject = {.layer = 1}) {
    return recorder_.collective_issued(subject,
                                       {.collective = collective,
                                        .axis = Axis::dp,
                                        .algorithm = Algorithm::ring,
                                        .dtype = DType::bf16,
                                        .group_size = 4,
                                        .size = Elements(elements),
                                        .sent_bytes = 15},
                                       recorder_.now());
  }
  /// Compute stands still for `seconds` until the collective is over.
  void wait(std::size_t id, double seconds) {
    const double start = world_.now();
    world_.pass(seconds);
    recorder_.collective_done(
        id,
        {.wait_start = {start}, .wait_end = {world_.now()}, .start = {start - 0.5}, .end = {world_.now()}});
  }
  [[nodiscard]] std::vector<std::string> kinds() const {
    std::vector<std::string> names;
    for (const Event& event : recorder_.events()) names.emplace_back(name_of(event.kind));
    return names;
  }

  StillWorld world_;
  MemoryTracker tracker_;
  HostTimeline timeline_{[this] { return world_.now(); }};
  Recorder recorder_{world_, timeline_, tracker_, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Levels, Story,
                         testing::Values(TraceLevel::none, TraceLevel::steps, TraceLevel::events),
                         [](const auto& tested) {
                           return tested.param == TraceLevel::none    ? "none"
                                  : tested.param == TraceLevel::steps ? "steps"
                                                                      : "events";
                         });

TEST_P(Story, StepTimeIsComputePlusExposedPlusOptimizerPlusOther) {
  recorder_.begin_step(3, false);
  recorder_.enter(Phase::forward, 0);
  const std::size_t gather = issue(Collective::all_gather);
  compute(1.0);
  wait(gather, 0.25);
  copy(0.125);
  recorder_.enter(Phase::backward, 0);
  const std::size_t again = issue(Collective::all_gather);
  compute(2.0);
  wait(again, 0.5);
  const std::size_t scatter = issue(Collective::reduce_scatter);
  wait(scatter, 1.0);
  recorder_.enter(Phase::optimizer, 0);
  const std::size_t norm = issue(Collective::all_reduce);
  wait(norm, 2.0);
  compute(4.0);
  world_.pass(8.0);
  const StepRecord step = recorder_.end_step(64);

  EXPECT_EQ(step.step, 3);
  EXPECT_EQ(step.warmup, 0);
  EXPECT_EQ(step.start_s, 100.0);
  EXPECT_EQ(step.compute_s, 3.0);
  EXPECT_EQ(step.exposed_ag_forward_s, 0.25);
  EXPECT_EQ(step.exposed_ag_backward_s, 0.5);
  EXPECT_EQ(step.exposed_rs_s, 1.0);
  EXPECT_EQ(step.exposed_ar_s, 2.0);
  EXPECT_EQ(step.exposed_s, 3.75);
  EXPECT_EQ(step.optimizer_s, 4.0);
  EXPECT_EQ(step.other_s, 8.125) << "copies and what nothing else covers";
  EXPECT_EQ(step.step_s, step.compute_s + step.exposed_s + step.optimizer_s + step.other_s);
  EXPECT_EQ(step.tokens, 64);
}

TEST_P(Story, InterruptedComputeCountsOnlyItsOwnTime) {
  recorder_.begin_step(0, false);
  recorder_.enter(Phase::forward, 0);
  {
    const Recorder::Span span = recorder_.compute({.layer = 1});
    world_.pass(1.0);
    for (int time = 0; time < 2; ++time) {
      const Recorder::Interruption interruption = recorder_.interrupt_compute();
      copy(0.125);
      wait(issue(Collective::all_reduce), 0.5);
    }
    world_.pass(2.0);
  }
  const StepRecord step = recorder_.end_step(0);
  EXPECT_EQ(step.compute_s, 3.0);
  EXPECT_EQ(step.exposed_ar_s, 1.0);
  EXPECT_EQ(step.other_s, 0.25) << "copies";
  EXPECT_EQ(step.step_s, 4.25);
}

TEST_P(Story, InterruptionInTheOptimizerCountsThere) {
  recorder_.begin_step(0, false);
  recorder_.enter(Phase::optimizer, 0);
  {
    const Recorder::Span span = recorder_.compute({});
    world_.pass(1.0);
    {
      const Recorder::Interruption interruption = recorder_.interrupt_compute();
      world_.pass(4.0);
    }
    world_.pass(2.0);
  }
  const StepRecord step = recorder_.end_step(0);
  EXPECT_EQ(step.optimizer_s, 3.0);
  EXPECT_EQ(step.other_s, 4.0);
}

TEST_P(Story, NothingIsInterruptedWhereNothingIsComputed) {
  recorder_.begin_step(0, false);
  compute(1.0);
  {
    const Recorder::Interruption interruption = recorder_.interrupt_compute();
    world_.pass(0.5);
  }
  {
    const Recorder::Span span = recorder_.copy_in({.layer = 1});
    const Recorder::Interruption interruption = recorder_.interrupt_compute();
    world_.pass(0.25);
  }
  compute(2.0);
  const StepRecord step = recorder_.end_step(0);
  EXPECT_EQ(step.compute_s, 3.0);
  EXPECT_EQ(step.other_s, 0.75);
  if (GetParam() == TraceLevel::events) {
    EXPECT_EQ(kinds(), (std::vector<std::string>{"compute", "copy_in", "compute"}));
  }
}

TEST_P(Story, GatherIssuedInForwardAndWaitedForInBackwardCountsAsForward) {
  recorder_.begin_step(0, true);
  recorder_.enter(Phase::forward, 0);
  const std::size_t gather = issue(Collective::all_gather);
  recorder_.enter(Phase::backward, 0);
  wait(gather, 0.5);
  const StepRecord step = recorder_.end_step(0);
  EXPECT_EQ(step.exposed_ag_forward_s, 0.5);
  EXPECT_EQ(step.exposed_ag_backward_s, 0.0);
  EXPECT_EQ(step.warmup, 1);
}

TEST_P(Story, StepsDoNotLeakIntoEachOther) {
  for (int step = 0; step < 2; ++step) {
    recorder_.begin_step(step, step == 0);
    compute(1.0);
    wait(issue(Collective::all_reduce), 0.5);
    recorder_.end_step(8);
  }
  ASSERT_EQ(recorder_.steps().size(), 2U);
  for (const StepRecord& step : recorder_.steps()) {
    EXPECT_EQ(step.step_s, 1.5);
    EXPECT_EQ(step.compute_s, 1.0);
    EXPECT_EQ(step.exposed_s, 0.5);
  }
  EXPECT_EQ((recorder_.totals().at({Axis::dp, Collective::all_reduce, Phase::forward}).count), 1)
      << "totals are those of the last step";
}

TEST_P(Story, TotalsCountByAxisKindAndPhase) {
  recorder_.begin_step(0, false);
  recorder_.enter(Phase::forward, 0);
  wait(issue(Collective::all_gather, 10), 0.0);
  wait(issue(Collective::all_gather, 30), 0.0);
  recorder_.enter(Phase::backward, 0);
  wait(issue(Collective::all_gather, 5), 0.0);
  recorder_.end_step(0);
  const StepTotals expected = {{{Axis::dp, Collective::all_gather, Phase::forward},
                                {.count = 2, .size = Elements(40), .bytes = Bytes(80), .group_size = 4}},
                               {{Axis::dp, Collective::all_gather, Phase::backward},
                                {.count = 1, .size = Elements(5), .bytes = Bytes(10), .group_size = 4}}};
  EXPECT_EQ(recorder_.totals(), expected);
}

TEST_P(Story, EventsKeepIssueOrder) {
  recorder_.begin_step(0, false);
  recorder_.enter(Phase::forward, 0);
  const std::size_t first = issue(Collective::all_gather);
  const std::size_t second = issue(Collective::reduce_scatter);
  compute(1.0);
  wait(second, 0.5);  // completions come in another order
  wait(first, 0.25);
  recorder_.end_step(0);
  if (GetParam() != TraceLevel::events) {
    EXPECT_TRUE(recorder_.events().empty());
    return;
  }
  EXPECT_EQ(kinds(), (std::vector<std::string>{"all_gather", "reduce_scatter", "compute", "wait", "wait"}));
}

TEST_P(Story, StepCannotEndWithACollectiveInFlight) {
  recorder_.begin_step(0, false);
  static_cast<void>(issue(Collective::all_gather));
  EXPECT_THROW(recorder_.end_step(0), InternalError);
}

TEST_P(Story, CollectiveIsDoneOnce) {
  recorder_.begin_step(0, false);
  const std::size_t id = issue(Collective::all_gather);
  wait(id, 0.5);
  EXPECT_THROW(wait(id, 0.5), InternalError);
}

TEST_P(Story, MemoryIsFollowedOnlyWithEvents) {
  recorder_.begin_step(5, false);
  tracker_.add(Category::activations, Bytes(64));
  world_.pass(1.0);
  tracker_.add(Category::activations, Bytes(-64));
  if (GetParam() != TraceLevel::events) {
    EXPECT_TRUE(recorder_.memory().empty());
    return;
  }
  ASSERT_EQ(recorder_.memory().size(), 2U);
  EXPECT_EQ(recorder_.memory()[0].step, 5);
  EXPECT_EQ(recorder_.memory()[0].at_s, 100.0);
  EXPECT_EQ(recorder_.memory()[0].bytes, 64);
  EXPECT_EQ(recorder_.memory()[1].at_s, 101.0);
  EXPECT_EQ(recorder_.memory()[1].bytes, 0);
}

TEST_P(Story, MemoryTraceStartsFromTheLevelsOfAllCategories) {
  tracker_.add(Category::parameters, Bytes(10));
  tracker_.add(Category::parameters, Bytes(-3));
  recorder_.clear();
  recorder_.note_memory_levels();
  if (GetParam() != TraceLevel::events) {
    EXPECT_TRUE(recorder_.memory().empty());
    return;
  }
  ASSERT_EQ(recorder_.memory().size(), category_count);
  for (const MemoryRecord& record : recorder_.memory()) {
    EXPECT_EQ(record.step, -1) << "before the first step";
    EXPECT_EQ(record.bytes, record.category == Category::parameters ? 7 : 0);
  }
}

TEST_P(Story, ClearForgetsWhatWasWritten) {
  recorder_.begin_step(0, false);
  compute(1.0);
  wait(issue(Collective::all_gather), 0.5);
  tracker_.add(Category::activations, Bytes(64));
  recorder_.end_step(0);
  recorder_.clear();
  EXPECT_TRUE(recorder_.events().empty());
  EXPECT_TRUE(recorder_.steps().empty());
  EXPECT_TRUE(recorder_.memory().empty());
}

class Events : public Story {};
INSTANTIATE_TEST_SUITE_P(Level, Events, testing::Values(TraceLevel::events));

TEST_P(Events, CarryTheFactsOfACollectiveAndOfTheWaitForIt) {
  recorder_.begin_step(7, false);
  recorder_.enter(Phase::forward, 2);
  const std::size_t id = issue(Collective::all_gather, 12, {.layer = 3, .bucket = 1});
  world_.pass(1.0);
  recorder_.enter(Phase::backward, 3);
  wait(id, 0.5);
  ASSERT_EQ(recorder_.events().size(), 2U);
  const Event& gather = recorder_.events()[0];
  EXPECT_EQ(gather.step, 7);
  EXPECT_EQ(gather.micro, 2);
  EXPECT_EQ(gather.subject.layer, 3);
  EXPECT_EQ(gather.subject.bucket, 1);
  EXPECT_EQ(gather.phase, Phase::forward);
  EXPECT_EQ(gather.kind, EventKind::all_gather);
  EXPECT_EQ(gather.stream, Stream::comm);
  EXPECT_TRUE(gather.is_collective);
  EXPECT_EQ(gather.facts.size, Elements(12));
  EXPECT_EQ(gather.facts.sent_bytes, 15);
  EXPECT_EQ(gather.issue_s, 100.0);
  EXPECT_EQ(gather.start_s, 100.5);
  EXPECT_EQ(gather.end_s, 101.5);
  EXPECT_EQ(gather.wait_s, 0.5);

  const Event& wait = recorder_.events()[1];
  EXPECT_EQ(wait.kind, EventKind::wait);
  EXPECT_EQ(wait.stream, Stream::compute);
  EXPECT_EQ(wait.phase, Phase::backward);
  EXPECT_EQ(wait.micro, 3);
  EXPECT_EQ(wait.subject.layer, 3);
  EXPECT_EQ(wait.facts.sent_bytes, 0) << "else it would be counted twice";
  EXPECT_EQ(wait.start_s, 101.0);
  EXPECT_EQ(wait.end_s, 101.5);
}

TEST_P(Events, OfInterruptedComputeAreOneBeforeAndOneAfter) {
  recorder_.begin_step(4, false);
  recorder_.enter(Phase::backward, 1);
  {
    const Recorder::Span span = recorder_.compute({.layer = 2});
    world_.pass(1.0);
    {
      const Recorder::Interruption interruption = recorder_.interrupt_compute();
      wait(issue(Collective::reduce_scatter), 0.5);
    }
    world_.pass(2.0);
  }
  EXPECT_EQ(kinds(), (std::vector<std::string>{"compute", "reduce_scatter", "wait", "compute"}));
  const Event& before = recorder_.events()[0];
  const Event& after = recorder_.events()[3];
  for (const Event* event : {&before, &after}) {
    EXPECT_EQ(event->step, 4);
    EXPECT_EQ(event->micro, 1);
    EXPECT_EQ(event->phase, Phase::backward);
    EXPECT_EQ(event->subject.layer, 2);
    EXPECT_FALSE(event->is_collective);
  }
  EXPECT_EQ(before.start_s, 100.0);
  EXPECT_EQ(before.end_s, 101.0);
  EXPECT_EQ(after.start_s, 101.5);
  EXPECT_EQ(after.end_s, 103.5);
}

TEST_P(Events, OfComputeSpanTheirTime) {
  recorder_.begin_step(0, false);
  recorder_.enter(Phase::optimizer, 1);
  world_.pass(1.0);
  compute(0.5, {.layer = 2});
  ASSERT_EQ(recorder_.events().size(), 1U);
  const Event& event = recorder_.events()[0];
  EXPECT_EQ(event.kind, EventKind::compute);
  EXPECT_EQ(event.stream, Stream::compute);
  EXPECT_EQ(event.phase, Phase::optimizer);
  EXPECT_FALSE(event.is_collective);
  EXPECT_EQ(event.start_s, 101.0);
  EXPECT_EQ(event.end_s, 101.5);
}

/// A device that takes twice as long as it takes the host to ask, and tells only when the step is over.
class SlowDevice final : public Timeline {
 public:
  explicit SlowDevice(const StillWorld& world) : world_(world) {}

  Instant mark(Stream /*stream*/) override {
    EXPECT_FALSE(settled_) << "marks of a step that is over";
    reached_s_.push_back(2.0 * world_.now());
    return {.issued_s = world_.now(), .mark = std::ssize(reached_s_) - 1};
  }
  [[nodiscard]] bool is_immediate() const override { return false; }
  void settle() override { settled_ = true; }
  [[nodiscard]] double seconds(const Instant& instant) const override {
    EXPECT_TRUE(settled_) << "nobody knows yet";
    return reached_s_[static_cast<std::size_t>(instant.mark)];
  }
  void restart() override {
    reached_s_.clear();
    settled_ = false;
  }
  void push(std::string_view name, int number) override {
    names_.push_back(fmt::format("{} {}", name, number));
    names_seen.push_back(fmt::format("{}", fmt::join(names_, "/")));
  }
  void pop() override {
    ASSERT_FALSE(names_.empty());
    names_.pop_back();
  }
  [[nodiscard]] bool all_names_ended() const { return names_.empty(); }

  std::vector<std::string> names_seen;

 private:
  const StillWorld& world_;
  std::vector<std::string> names_;
  std::vector<double> reached_s_;
  bool settled_ = false;
};

TEST(Recorder, NamesPhasesAndLayersForProfilers) {
  StillWorld world;
  SlowDevice timeline(world);
  MemoryTracker tracker;
  Recorder recorder(world, timeline, tracker, TraceLevel::none);
  recorder.begin_step(7, false);
  recorder.enter(Phase::forward, 0);
  {
    const auto span = recorder.compute({.layer = 2});
    const auto interruption = recorder.interrupt_compute();
    const auto copy = recorder.copy_in({.bucket = 1});
  }
  recorder.enter(Phase::optimizer, 0);
  { const auto span = recorder.compute({}); }
  recorder.end_step(1);
  EXPECT_TRUE(timeline.all_names_ended());
  const std::vector<std::string> wanted = {"step 7",
                                           "step 7/forward 0",
                                           "step 7/forward 0/compute, layer 2",
                                           "step 7/forward 0/copy_in, bucket 1",
                                           "step 7/forward 0/compute, layer 2",
                                           "step 7/optimizer 0",
                                           "step 7/optimizer 0/compute -1"};
  EXPECT_EQ(timeline.names_seen, wanted);
}

TEST(Recorder, TakesADevicesTimesWhenTheStepIsOver) {
  StillWorld world;
  SlowDevice timeline(world);
  MemoryTracker tracker;
  Recorder recorder(world, timeline, tracker, TraceLevel::events);
  for (int step = 0; step < 2; ++step) {
    const double begin = world.now();
    recorder.begin_step(step, false);
    recorder.enter(Phase::backward, 0);
    CollectiveFacts facts;
    facts.collective = Collective::reduce_scatter;
    const std::size_t id = recorder.collective_issued({.layer = 1}, facts, begin);
    const Instant started = timeline.mark(Stream::comm);
    {
      const auto span = recorder.compute({.layer = 0});
      world.pass(1.0);
    }
    const Instant wait_start = recorder.mark();
    world.pass(0.25);
    recorder.collective_done(id, {.wait_start = wait_start,
                                  .wait_end = recorder.mark(),
                                  .start = started,
                                  .end = timeline.mark(Stream::comm)});
    recorder.enter(Phase::optimizer, 0);
    {
      const auto span = recorder.compute({});
      world.pass(0.5);
    }
    const StepRecord& record = recorder.end_step(1);
    EXPECT_EQ(record.start_s, 2.0 * begin);
    EXPECT_EQ(record.step_s, 3.5);
    EXPECT_EQ(record.compute_s, 2.0);
    EXPECT_EQ(record.exposed_rs_s, 0.5);
    EXPECT_EQ(record.optimizer_s, 1.0);
    EXPECT_EQ(record.other_s, 0.0);
    ASSERT_EQ(recorder.events().size(), 4U);
    const Event& collective = recorder.events()[0];
    EXPECT_EQ(collective.issue_s, begin) << "asked for by the host";
    EXPECT_EQ(collective.start_s, 2.0 * begin);
    EXPECT_EQ(collective.end_s, 2.0 * begin + 2.5);
    EXPECT_EQ(collective.wait_s, 0.5);
    const Event& wait = recorder.events()[2];
    EXPECT_EQ(wait.kind, EventKind::wait);
    EXPECT_EQ(wait.issue_s, begin + 1.0);
    EXPECT_EQ(wait.end_s - wait.start_s, 0.5);
    const Event& update = recorder.events()[3];
    EXPECT_EQ(update.phase, Phase::optimizer);
    EXPECT_EQ(update.end_s - update.start_s, 1.0);
    recorder.clear();
  }
}

TEST(Recorder, StopsListeningWhenItIsGone) {
  const StillWorld world;
  MemoryTracker tracker;
  HostTimeline timeline([&world] { return world.now(); });
  { const Recorder recorder(world, timeline, tracker, TraceLevel::events); }
  tracker.add(Category::activations, Bytes(1));  // must not reach the recorder that was
  EXPECT_EQ(tracker.total(), Bytes(1));
}

}  // namespace
}  // namespace shardbench
