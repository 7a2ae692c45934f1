#include "src/trace/recorder.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {
namespace {

/// Grows by a quarter: doubling could hold twice the trace, on each of a simulation's ranks in one process.
template <class Record>
void append(std::vector<Record>& records, const std::type_identity_t<Record>& record) {
  constexpr std::size_t least = 64;
  if (records.size() == records.capacity())
    records.reserve(records.size() + std::max(least, records.size() / 4));
  records.push_back(record);
}

std::string_view waiting_for(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "waiting for all_reduce";
    case Collective::reduce_scatter:
      return "waiting for reduce_scatter";
    case Collective::all_gather:
      return "waiting for all_gather";
  }
  return "waiting";
}

/// For profilers.
std::string_view name_of_span(EventKind kind, Subject subject) {
  if (kind == EventKind::compute) return subject.layer < 0 ? "compute" : "compute, layer";
  if (kind == EventKind::copy_in) return subject.layer < 0 ? "copy_in, bucket" : "copy_in, layer";
  return subject.layer < 0 ? "copy_out, bucket" : "copy_out, layer";
}

}  // namespace

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, 3> names = {"forward", "backward", "optimizer"};
  return names[static_cast<std::size_t>(phase)];
}
std::string_view name_of(EventKind kind) {
  constexpr std::array<std::string_view, 7> names = {
      "compute", "all_reduce", "reduce_scatter", "all_gather", "copy_in", "copy_out", "wait"};
  return names[static_cast<std::size_t>(kind)];
}
std::string_view name_of(Stream stream) { return stream == Stream::compute ? "compute" : "comm"; }
std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, 4> names = {"none", "world", "dp", "tp"};
  return names[static_cast<std::size_t>(axis)];
}

EventKind kind_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return EventKind::all_reduce;
    case Collective::reduce_scatter:
      return EventKind::reduce_scatter;
    case Collective::all_gather:
      return EventKind::all_gather;
  }
  return EventKind::all_reduce;
}

Recorder::Recorder(const World& world, Timeline& timeline, MemoryTracker& tracker, TraceLevel level)
    : world_(world), timeline_(timeline), tracker_(tracker), level_(level) {
  if (level_ == TraceLevel::events)
    tracker_.observe([this](Category category, Bytes bytes) {
      append(memory_, {step_.step, category, world_.now(), bytes.count()});
    });
}

Recorder::~Recorder() { tracker_.observe({}); }

void Recorder::begin_step(int step, bool warmup) {
  timeline_.restart();
  begin_ = mark();
  step_ = StepRecord{.step = step, .warmup = warmup ? 1 : 0};
  totals_.clear();
  world_.activity().enter(position("beginning", {}));
  timeline_.push("step", step);
}

StepRecord& Recorder::end_step(std::int64_t tokens) {
  SHARDBENCH_ASSERT(in_flight_.empty());  // a step waits for all that it issued
  const Instant end = mark();
  leave_phase();
  timeline_.pop();  // the step
  timeline_.settle();
  for (const auto& work : postponed_) work();
  postponed_.clear();
  step_.start_s = timeline_.seconds(begin_);
  step_.step_s = timeline_.seconds(end) - step_.start_s;
  step_.exposed_s =
      step_.exposed_ag_forward_s + step_.exposed_ag_backward_s + step_.exposed_rs_s + step_.exposed_ar_s;
  step_.other_s = step_.step_s - step_.compute_s - step_.exposed_s - step_.optimizer_s;
  step_.tokens = tokens;
  return steps_.emplace_back(step_);
}

void Recorder::enter(Phase phase, int micro) {
  phase_ = phase;
  micro_ = micro;
  leave_phase();
  timeline_.push(name_of(phase), micro);
  phase_is_named_ = true;
}

void Recorder::leave_phase() {
  if (std::exchange(phase_is_named_, false)) timeline_.pop();
}

Recorder::Span::Span(Recorder& recorder, EventKind kind, Subject subject)
    : recorder_(recorder), kind_(kind), subject_(subject) {
  open();
}

Recorder::Span::~Span() { close(); }

Recorder::Interruption::Interruption(Recorder& recorder) : span_(recorder.open_compute_) {
  if (span_ != nullptr) span_->close();
}

Recorder::Interruption::~Interruption() {
  if (span_ != nullptr) span_->open();
}

void Recorder::Span::open() {
  if (kind_ == EventKind::compute) recorder_.open_compute_ = this;
  recorder_.world_.activity().enter(recorder_.position(name_of(kind_), subject_));
  recorder_.timeline_.push(name_of_span(kind_, subject_), std::max(subject_.layer, subject_.bucket));
  start_ = recorder_.mark();
}

void Recorder::Span::close() {
  if (kind_ == EventKind::compute) recorder_.open_compute_ = nullptr;
  const Instant end = recorder_.mark();
  recorder_.timeline_.pop();
  Event event;
  event.step = recorder_.step_.step;
  event.micro = recorder_.micro_;
  event.subject = subject_;
  event.phase = recorder_.phase_;
  event.kind = kind_;
  event.issue_s = start_.issued_s;
  recorder_.once_settled([&recorder = recorder_, position = recorder_.keep(event),
                          sum = recorder_.sum_of(kind_), start = start_, end] {
    const double start_s = recorder.timeline_.seconds(start);
    const double end_s = recorder.timeline_.seconds(end);
    if (sum != nullptr) *sum += end_s - start_s;
    if (!position) return;
    recorder.events_[*position].start_s = start_s;
    recorder.events_[*position].end_s = end_s;
  });
}

/// Where the time of such a span counts.
double* Recorder::sum_of(EventKind kind) {
  // Copies are neither compute nor communication: they stay in other_s, except within the optimizer.
  if (kind != EventKind::compute) return nullptr;
  return phase_ == Phase::optimizer ? &step_.optimizer_s : &step_.compute_s;
}

std::optional<std::size_t> Recorder::keep(const Event& event) {
  if (level_ != TraceLevel::events) return std::nullopt;
  append(events_, event);
  return events_.size() - 1;
}

std::size_t Recorder::collective_issued(Subject subject, const CollectiveFacts& facts, double issue_s) {
  CollectiveTotals& totals = totals_[{facts.axis, facts.collective, phase_}];
  ++totals.count;
  totals.size += facts.size;
  totals.bytes += bytes_of(facts.dtype, facts.size);
  totals.group_size = facts.group_size;

  Event event;
  event.step = step_.step;
  event.micro = micro_;
  event.subject = subject;
  event.phase = phase_;
  event.kind = kind_of(facts.collective);
  event.stream = Stream::comm;
  event.is_collective = true;
  event.facts = facts;
  event.issue_s = issue_s;
  in_flight_.emplace(next_id_, InFlightEvent{event, keep(event)});
  return next_id_++;
}

Position Recorder::position(std::string_view operation, Subject subject) const {
  return {.operation = operation,
          .phase = name_of(phase_),
          .axis = {},
          .group_size = 0,
          .step = step_.step,
          .layer = subject.layer};
}

void Recorder::collective_waited_for(std::size_t id) {
  const Event& event = in_flight_.at(id).event;
  Position at = position(waiting_for(event.facts.collective), event.subject);
  at.phase = name_of(event.phase);
  at.axis = name_of(event.facts.axis);
  at.group_size = event.facts.group_size;
  world_.activity().enter(at);
}

void Recorder::collective_done(std::size_t id, const CompletedWait& times) {
  auto node = in_flight_.extract(id);
  SHARDBENCH_ASSERT(!node.empty());
  const auto& [collective, position] = node.mapped();
  Event wait = collective;
  wait.phase = phase_;
  wait.micro = micro_;
  wait.kind = EventKind::wait;
  wait.stream = Stream::compute;
  wait.facts.sent_bytes = 0;
  wait.issue_s = times.wait_start.issued_s;
  once_settled([this, facts = collective.facts, phase = collective.phase, position = position,
                wait_position = keep(wait), times] {
    const double begin_s = timeline_.seconds(times.wait_start);
    const double end_s = timeline_.seconds(times.wait_end);
    add_exposed(facts.collective, phase, end_s - begin_s);
    if (!position) return;
    Event& done = events_[*position];
    done.start_s = timeline_.seconds(times.start);
    done.end_s = timeline_.seconds(times.end);
    done.wait_s = end_s - begin_s;
    events_[*wait_position].start_s = begin_s;
    events_[*wait_position].end_s = end_s;
  });
}

void Recorder::add_exposed(Collective collective, Phase phase, double seconds) {
  switch (collective) {
    case Collective::all_reduce:
      step_.exposed_ar_s += seconds;
      break;
    case Collective::reduce_scatter:
      step_.exposed_rs_s += seconds;
      break;
    case Collective::all_gather:
      (phase == Phase::backward ? step_.exposed_ag_backward_s : step_.exposed_ag_forward_s) += seconds;
      break;
  }
}

void Recorder::note_memory_levels() {
  if (level_ != TraceLevel::events) return;
  for (std::size_t i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    append(memory_, {-1, category, now(), tracker_.current(category).count()});
  }
}

void Recorder::clear() {
  SHARDBENCH_ASSERT(in_flight_.empty());
  events_.clear();
  steps_.clear();
  memory_.clear();
}

}  // namespace shardbench
