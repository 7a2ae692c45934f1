// What one rank did and when, kept in memory while steps run back to back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "src/comm/world.hpp"
#include "src/device/buffer.hpp"
#include "src/device/timeline.hpp"
#include "src/units.hpp"

namespace shardbench {

enum class Phase : std::uint8_t { forward, backward, optimizer };
enum class EventKind : std::uint8_t {
  compute,
  all_reduce,
  reduce_scatter,
  all_gather,
  copy_in,
  copy_out,
  wait
};
enum class Axis : std::uint8_t { none, world, dp, tp };
std::string_view name_of(Phase phase);
std::string_view name_of(EventKind kind);
std::string_view name_of(Stream stream);
std::string_view name_of(Axis axis);
EventKind kind_of(Collective collective);

enum class TraceLevel { none, steps, events };

/// What an operation works on: a layer (-1 none) or gradient bucket (-1 none).
struct Subject {
  int layer = -1;
  int bucket = -1;
};

/// The facts of a collective that its events carry.
struct CollectiveFacts {
  Collective collective = Collective::all_reduce;
  Axis axis = Axis::none;
  Algorithm algorithm = Algorithm::local;
  DType dtype = DType::fp32;
  int group_size = 1;
  Elements size;                ///< S as nccl-tests defines it, padding included
  std::int64_t sent_bytes = 0;  ///< -1 where the library does not tell
};

/// One row of the `events` table; times in seconds since the run's start, on this rank's clock.
struct Event {
  std::int32_t step = 0;
  std::int32_t micro = 0;
  Subject subject;
  Phase phase = Phase::forward;
  EventKind kind = EventKind::compute;
  Stream stream = Stream::compute;
  bool is_collective = false;  ///< whether `facts` says something (also for the wait for a collective)
  CollectiveFacts facts;
  double issue_s = 0.0;
  double start_s = 0.0;
  double end_s = 0.0;
  double wait_s = 0.0;  ///< of a collective: how long compute stood still for it
};

/// One row of the `steps` table. step_s = compute_s + exposed_s + optimizer_s + other_s.
struct StepRecord {
  std::int32_t step = 0;
  std::int32_t warmup = 0;
  double start_s = 0.0;
  double step_s = 0.0;
  double compute_s = 0.0;
  double exposed_s = 0.0;
  double exposed_ag_forward_s = 0.0;
  double exposed_ag_backward_s = 0.0;
  double exposed_rs_s = 0.0;
  double exposed_ar_s = 0.0;
  double optimizer_s = 0.0;
  double other_s = 0.0;
  std::int64_t tokens = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
};

/// A category's tracked bytes after a change.
struct MemoryRecord {
  std::int32_t step = 0;
  Category category = Category::parameters;
  double at_s = 0.0;
  std::int64_t bytes = 0;
};

/// Collectives of one optimizer step by kind, phase and axis: the measured side of the ledger.
struct CollectiveTotals {
  std::int64_t count = 0;
  Elements size;
  Bytes bytes;
  int group_size = 1;
  bool operator==(const CollectiveTotals&) const = default;
};
using CollectiveKey = std::tuple<Axis, Collective, Phase>;
using StepTotals = std::map<CollectiveKey, CollectiveTotals>;

class Recorder {
 public:
  /// Listens to `tracker` for the memory trace; all three outlive the recorder.
  Recorder(const World& world, Timeline& timeline, MemoryTracker& tracker, TraceLevel level);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  void begin_step(int step, bool warmup);
  /// Closes the step when the device has finished it; `tokens` this rank trained.
  StepRecord& end_step(std::int64_t tokens);
  /// Position of what follows.
  void enter(Phase phase, int micro);
  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] double now() const { return world_.now(); }
  /// How far the compute stream has been asked to go.
  [[nodiscard]] Instant mark() { return timeline_.mark(Stream::compute); }

  /// A stretch of the compute stream, from construction to destruction.
  class Span {
   public:
    Span(Recorder& recorder, EventKind kind, Subject subject);
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span();

   private:
    friend class Recorder;
    void close();
    void open();

    Recorder& recorder_;
    EventKind kind_;
    Subject subject_;
    Instant start_;
  };
  /// Communication in the middle of a layer's compute: the open compute span ends where this begins, and a
  /// further one of the same subject begins where it ends. Nothing happens where no compute is recorded.
  class Interruption {
   public:
    explicit Interruption(Recorder& recorder);
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;
    ~Interruption();

   private:
    Span* span_;
  };
  [[nodiscard]] Interruption interrupt_compute() { return Interruption(*this); }
  /// Compute of a layer; counts as optimizer time in the optimizer phase. Spans do not nest.
  [[nodiscard]] Span compute(Subject subject) { return {*this, EventKind::compute, subject}; }
  [[nodiscard]] Span copy_in(Subject subject) { return {*this, EventKind::copy_in, subject}; }
  [[nodiscard]] Span copy_out(Subject subject) { return {*this, EventKind::copy_out, subject}; }

  /// A collective goes to its stream; returns its event's id for `collective_done`.
  std::size_t collective_issued(Subject subject, const CollectiveFacts& facts, double issue_s);
  struct CompletedWait {
    Instant wait_start;  ///< when compute began to wait
    Instant wait_end;
    Instant start;  ///< of the collective
    Instant end;
  };
  /// Compute stands still for that collective from now on.
  void collective_waited_for(std::size_t id);
  void collective_done(std::size_t id, const CompletedWait& times);

  /// In a rehearsal every collective is waited for as soon as it is issued, so that compute and communication
  /// are each timed alone.
  void set_rehearsal(bool rehearsal) { rehearsal_ = rehearsal; }
  [[nodiscard]] bool rehearsal() const { return rehearsal_; }

  [[nodiscard]] const std::vector<Event>& events() const { return events_; }
  [[nodiscard]] std::vector<StepRecord>& steps() { return steps_; }
  [[nodiscard]] const std::vector<MemoryRecord>& memory() const { return memory_; }
  [[nodiscard]] const StepTotals& totals() const { return totals_; }
  [[nodiscard]] int step() const { return step_.step; }
  /// Adds a memory record for every category's present level: where the memory trace starts from.
  void note_memory_levels();
  /// Forgets what has been written to the file, or rehearsed.
  void clear();

 private:
  struct InFlightEvent {
    Event event;
    std::optional<std::size_t> position;  ///< in events_
  };

  [[nodiscard]] Position position(std::string_view operation, Subject subject) const;
  [[nodiscard]] double* sum_of(EventKind kind);
  /// Appends the event where events are kept; its place there.
  std::optional<std::size_t> keep(const Event& event);
  /// Does what needs instants' seconds: at once, or else when the step is over.
  template <class Work>
  void once_settled(Work work) {
    if (timeline_.is_immediate()) {
      work();
    } else {
      postponed_.emplace_back(std::move(work));
    }
  }
  /// Ends the name that profilers see.
  void leave_phase();
  void add_exposed(Collective collective, Phase phase, double seconds);

  const World& world_;
  Timeline& timeline_;
  MemoryTracker& tracker_;
  TraceLevel level_;
  Phase phase_ = Phase::forward;
  int micro_ = 0;
  bool phase_is_named_ = false;  ///< between `enter` and the step's end
  StepRecord step_;
  Instant begin_;  ///< of the step
  std::vector<std::function<void()>> postponed_;
  StepTotals totals_;
  bool rehearsal_ = false;
  Span* open_compute_ = nullptr;
  std::vector<Event> events_;  ///< in issue order
  std::map<std::size_t, InFlightEvent> in_flight_;
  std::size_t next_id_ = 0;
  std::vector<StepRecord> steps_;
  std::vector<MemoryRecord> memory_;
};

}  // namespace shardbench
