#include "src/train/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/comm/imitated_compute.hpp"
#include "src/comm/nodes.hpp"
#include "src/comm/schedule.hpp"
#include "src/say.hpp"
#include "src/trace/caretaker.hpp"
#include "src/trace/process_memory.hpp"
#include "src/trace/trace_file.hpp"
#include "src/train/calibration.hpp"
#include "src/train/check.hpp"
#include "src/train/clock_sync.hpp"
#include "src/train/collector.hpp"
#include "src/train/optimizer_step.hpp"
#include "src/train/provenance.hpp"
#include "src/train/rank_setup.hpp"
#include "src/train/rank_table.hpp"

namespace shardbench {
namespace {

// One cold rehearsal, then this many whose median is kept if a rehearsal takes less than the limit, else one.
constexpr int rehearsals = 3;
constexpr double long_rehearsal_s = 0.5;

// Medians of the two halves of the timed steps further apart than this mean that the run had not settled.
constexpr double steady_tolerance = 0.10;

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// How the steps ended.
enum class Ending { all_steps, check_failed, interrupted };

class Run {
 public:
  Run(Options options, const ScenarioDefinition& definition, const Surroundings& surroundings,
      const BackendFactory& make_backend, const std::string& command_line)
      : options_(std::move(options)),
        definition_(definition),
        world_(surroundings.world),
        memory_(surroundings.memory),
        supervisor_(surroundings.supervisor),
        collector_(world_.control()),
        process_before_(world_.simulated() ? ProcessMemory{} : read_process_memory()),
        backend_(make_backend(check_output_path(options_), world_, memory_)),
        setup_(options_, definition, world_, memory_, *backend_, Purpose::run) {
    check_polls();
    if (options_.check == Check::on) check_.emplace(setup_.context());
    // Only now: what is refused, or does not fit into memory, shall not have replaced anyone's results.
    create_file(command_line);
    if (!world_.simulated()) vote_ = world_.vote();  // no signal reaches a simulated rank
  }

  ExitCode execute() {
    doing("describing the run");
    const Mesh& mesh = setup_.context().mesh;
    write_ranks(file_.get(), world_,
                {.dp_index = mesh.dp_index,
                 .tp_index = mesh.tp_index,
                 .threads = setup_.threads(),
                 .device = memory_.device()->name()});
    write_memory_samples(-1, process_before_);
    write_clocks();
    const TimerQuality timer = measure_timers(world_);
    if (file_) {
      file_->set("timer_overhead_s", timer.overhead_s);
      file_->set("timer_resolution_s", timer.resolution_s);
    }
    calibrate();
    const Ending ending = stop_ == 0 ? run_windows() : Ending::interrupted;
    doing("finishing");
    if (ending == Ending::interrupted) return close_interrupted();
    const bool verified = ending == Ending::all_steps && finish();
    if (file_) {
      file_->set("check", options_.check == Check::off ? "off" : verified ? "passed" : "failed");
      file_->set("steady", is_steady() ? 1 : 0);
      close_file(verified ? RunStatus::complete : RunStatus::failed);
      if (verified) print_summary();
    }
    return verified ? ExitCode::done : ExitCode::check_failed;
  }

 private:
  bool is_root() const { return world_.rank() == 0; }
  bool writes(TraceLevel level) const { return static_cast<int>(options_.trace) >= static_cast<int>(level); }

  void doing(std::string_view operation) { world_.activity().enter(operation); }

  /// Before anything takes time. Returns its argument, with the output's path in it.
  const Options& check_output_path(Options& options) {
    doing("setting up");
    if (options.output.empty()) options.output = default_output(definition_.name, world_.size());
    agree_with_root(world_.control(), [&] {
      check_output(options.output, options.existing_file);
      return std::string();
    });
    return options;
  }

  /// Collective. A simulated collective that polls advance, a step each, would seem slower than it is where
  /// compute has fewer polls than it has steps.
  void check_polls() {
    if (!world_.simulated() || options_.progress != Progress::poll || options_.compute == Compute::real)
      return;
    std::int64_t steps = 0;
    for (const ExpectedCollective& expected : setup_.scenario().expected().collectives)
      if (expected.axis == Axis::dp) steps = std::max(steps, consecutive_steps(expected));
    const double longest = maximum(world_.control(), static_cast<double>(steps));
    const double shortest_s = -maximum(world_.control(), -setup_.shortest_block_s());
    const std::int64_t polls = polls_per_layer(shortest_s);
    if (longest > static_cast<double>(polls))
      throw UsageError(fmt::format(
          "--progress poll advances a collective by a step a poll, but over {} data-parallel ranks one "
          "has {:.0f} steps and a block's shorter pass ({:.3g} ms) has {} polls; use --progress stream",
          options_.dp, longest, 1e3 * shortest_s, polls));
  }

  [[nodiscard]] std::int64_t consecutive_steps(const ExpectedCollective& expected) const {
    if (expected.count == 0 || is_modelled(options_.algorithm)) return 0;
    const std::int64_t mean = ceil_div((expected.size + expected.padding).count(), expected.count);
    const std::vector<int> nodes = nodes_of(setup_.context().mesh.dp_group(), world_.nodes());
    ScheduleRequest request{.collective = expected.collective,
                            .dtype = expected.dtype,
                            .size = Elements(mean),
                            .ranks = expected.group_size,
                            .node_size = node_size_of(nodes).value_or(1)};
    request.algorithm = resolve(options_.algorithm, request);
    return make_schedule(request).consecutive_steps();
  }

  /// On rank 0 the file and who takes care of it; its failure is everyone's.
  void create_file(const std::string& command_line) {
    agree_with_root(world_.control(), [&] {
      file_ = std::make_unique<TraceFile>(options_.output, options_.existing_file);
      if (!world_.simulated()) caretaker_ = start_caretaker(*file_, options_.output);
      describe_run(*file_, {.scenario = definition_.name,
                            .options = options_,
                            .world = world_,
                            .backend = *backend_,
                            .command_line = command_line});
      file_->flush();
      return std::string();
    });
    supervisor_.finishes_in_order();
  }

  void close_file(RunStatus status) {
    file_->finish(status);
    if (caretaker_) caretaker_->dismiss();
  }

  ExitCode close_interrupted() {
    write_clocks();
    if (writes(TraceLevel::steps)) write_memory_peaks();
    if (file_) {
      close_file(RunStatus::interrupted);
      say(stderr,
          fmt::format("{}: interrupted by {} after {} of {} steps, which are in {}\n", definition_.name,
                      name_of_signal(stop_), steps_done_, options_.warmup + options_.steps, options_.output));
    }
    return ExitCode::run_failure;
  }

  void write_clocks() {
    if (!writes(TraceLevel::steps)) return;
    const auto rows = measure_clocks(world_);
    if (file_) file_->append(std::span<const ClockRow>(rows));
  }

  /// Not in a simulation, where all ranks are the simulator's one process.
  [[nodiscard]] bool samples_process() const { return writes(TraceLevel::steps) && !world_.simulated(); }

  void sample_memory(int step) {
    if (samples_process()) write_memory_samples(step, read_process_memory());
  }

  void write_memory_samples(int step, const ProcessMemory& process) {
    if (!samples_process()) return;
    std::vector<std::pair<std::string, Bytes>> samples = {
        {"process_rss", process.rss}, {"process_hwm", process.hwm}, {"process_pss", process.pss}};
    if (const std::optional<DeviceMemory> device = memory_.device()->usage())
      samples.insert(samples.end(), {{"device_used", device->used},
                                     {"device_active", device->active},
                                     {"device_reserved", device->reserved}});
    nlohmann::json own = {{"at", world_.now()}, {"samples", nlohmann::json::array()}};
    for (const auto& [category, bytes] : samples) {
      sample_peaks_[category] = std::max(sample_peaks_[category], bytes);
      own["samples"].push_back({category, bytes.count()});
    }
    collector_.for_each_rank_json(own, [&](int rank, const nlohmann::json& json) {
      std::vector<MemoryRow> rows;
      for (const auto& sample : json["samples"])
        rows.push_back({rank, step, json["at"], sample[0].get<std::string>(), sample[1]});
      file_->append(std::span<const MemoryRow>(rows));
    });
  }

  /// What follows is warm. Returns how many rehearsals are worth their time.
  int rehearse_cold() {
    const double begin = world_.now();
    setup_.rehearse(0);
    setup_.recorder().clear();
    return maximum(world_.control(), world_.now() - begin) < long_rehearsal_s ? rehearsals : 1;
  }

  /// Times each layer's compute and communication alone, without changing parameters.
  void calibrate() {
    if (!writes(TraceLevel::events)) return;
    doing("rehearsing");
    const int repetitions = world_.simulated() ? 1 : rehearse_cold();
    for (int i = 0; i < repetitions && stop_ == 0; ++i) {
      if (vote_) stop_ = requests_of_all({world_, memory_, supervisor_});
      if (stop_ == 0) setup_.rehearse(i);
    }
    nlohmann::json own = nlohmann::json::array();
    for (const CalibrationRow& row : summarise_rehearsal(options_.dims, setup_.recorder().events()))
      own.push_back({row.kind, row.layer, row.direction, row.compute_alone_s, row.communication_alone_s});
    setup_.recorder().clear();

    // The slowest rank sets the pace.
    std::vector<CalibrationRow> slowest;
    collector_.for_each_rank_json(own, [&](int /*rank*/, const nlohmann::json& json) {
      for (std::size_t i = 0; i < json.size(); ++i) {
        if (i == slowest.size()) slowest.push_back({json[i][0], json[i][1], json[i][2], 0.0, 0.0});
        slowest[i].compute_alone_s = std::max(slowest[i].compute_alone_s, json[i][3].get<double>());
        slowest[i].communication_alone_s =
            std::max(slowest[i].communication_alone_s, json[i][4].get<double>());
      }
    });
    if (file_) file_->append(std::span<const CalibrationRow>(slowest));
  }

  Ending run_windows() {
    memory_.tracker().restart_peaks();
    setup_.recorder().note_memory_levels();
    if (file_) file_->flush();
    const int all = options_.warmup + options_.steps;
    int step = 0;
    while (step < all) {
      const int first = step;
      const int end = std::min(all, first == 0 ? options_.warmup + options_.window : first + options_.window);
      doing("waiting for all ranks to begin a window");
      barrier(world_.control());
      bool agrees = true;
      for (; step < end && agrees && stop_ == 0; ++step) {
        const bool warmup = step < options_.warmup || (first > 0 && step == first);
        if (vote_) vote_->cast(supervisor_.requests());
        setup_.step(step, warmup);
        if (vote_) stop_ = vote_->outcome();
        if (check_) agrees = compare([&] { return check_->compare_step(step, setup_.scenario()); });
      }
      steps_done_ = step;
      if (stop_ != 0 && caretaker_) caretaker_->expect(RunStatus::interrupted);
      doing("gathering the traces of a window");
      make_global(setup_.recorder().steps());
      flush_window();
      sample_memory(step - 1);
      if (file_) file_->flush();
      if (!agrees) return Ending::check_failed;
      if (stop_ != 0 && step < all) return Ending::interrupted;
    }
    return Ending::all_steps;
  }

  /// Turns this rank's loss sums and gradient squares into the job's loss and gradient norm.
  void make_global(std::vector<StepRecord>& steps) {
    std::vector<double> values;
    for (const StepRecord& step : steps) values.insert(values.end(), {step.loss, step.grad_norm});
    const std::vector<double> sums = sum(world_.control(), values);
    const double tokens =
        static_cast<double>(options_.micro_batch * options_.grad_accum * options_.dims.seq) *
        static_cast<double>(options_.dp);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      steps[i].loss = sums[2 * i] / tokens;
      const bool sharded = setup_.scenario().replication() == Replication::sharded;
      steps[i].grad_norm = std::sqrt(sharded ? sums[2 * i + 1] : steps[i].grad_norm);
    }
  }

  void flush_window() {
    Recorder& recorder = setup_.recorder();
    collector_.for_each_rank<StepRecord>(recorder.steps(), [&](int rank, std::span<const StepRecord> steps) {
      file_->append(rank, steps);
      remember(steps);
    });
    if (options_.trace == TraceLevel::events) {
      collector_.for_each_rank<Event>(
          recorder.events(), [&](int rank, std::span<const Event> events) { file_->append(rank, events); });
      collector_.for_each_rank<MemoryRecord>(
          recorder.memory(), [&](int rank, std::span<const MemoryRecord> changes) {
            std::vector<MemoryRow> rows;
            for (const MemoryRecord& m : changes)
              rows.push_back({rank, m.step, m.at_s, std::string(name_of(m.category)), m.bytes});
            file_->append(std::span<const MemoryRow>(rows));
          });
    }
    recorder.clear();
  }

  /// Keeps, at rank 0, the maximum over ranks of each timed step.
  void remember(std::span<const StepRecord> steps) {
    for (const StepRecord& step : steps) {
      if (step.warmup != 0) continue;
      StepRecord& slowest = slowest_.try_emplace(step.step, StepRecord{}).first->second;
      slowest.step_s = std::max(slowest.step_s, step.step_s);
      slowest.exposed_s = std::max(slowest.exposed_s, step.exposed_s);
      slowest.tokens += step.tokens;
      slowest.loss = step.loss;
    }
  }

  [[nodiscard]] bool is_steady() const {
    std::vector<double> first;
    std::vector<double> second;
    for (const auto& [step, slowest] : slowest_)
      (2 * first.size() < slowest_.size() ? first : second).push_back(slowest.step_s);
    if (second.empty()) return false;
    return std::abs(median(first) - median(second)) <= steady_tolerance * median(first);
  }

  bool finish() {
    write_clocks();
    const std::vector<LedgerRow> ledger = setup_.ledger();
    const LedgerRow* mismatch = first_mismatch(ledger);
    if (mismatch != nullptr)
      say(stderr, fmt::format("rank {}: ledger: {} should be {} + {} padding, but is {}\n", world_.rank(),
                              mismatch->quantity, mismatch->expected, mismatch->padding, mismatch->measured));
    bool verified = maximum(world_.control(), mismatch == nullptr ? 0.0 : 1.0) == 0.0;
    if (writes(TraceLevel::steps)) {
      write_ledger(ledger);
      write_memory_peaks();
    }
    peak_ = maximum(world_.control(), ledger.back().measured);
    expected_peak_ = maximum(world_.control(), ledger.back().expected);
    if (check_) verified = compare([&] { return check_->compare_masters(setup_.scenario()); }) && verified;
    if (writes(TraceLevel::steps) && setup_.scenario().state().holds_values()) write_tensors();
    return verified;
  }

  /// Rank 0 trains the whole batch alone for it, and the others wait: nobody can say how long.
  bool compare(const std::function<std::optional<std::string>()>& check) {
    world_.activity().enter({.operation = "comparing with the reference", .patience = Patience::unlimited});
    const bool agrees = report(check());
    doing("comparing with the reference");
    return agrees;
  }

  bool report(const std::optional<std::string>& failure) {
    if (failure && is_root()) say(stderr, fmt::format("{}: check failed: {}\n", definition_.name, *failure));
    return !failure;
  }

  void write_ledger(const std::vector<LedgerRow>& ledger) {
    nlohmann::json own = nlohmann::json::array();
    for (const LedgerRow& row : ledger)
      own.push_back(
          {static_cast<int>(row.axis), row.quantity, row.expected, row.measured, row.padding, row.unit});
    collector_.for_each_rank_json(own, [&](int rank, const nlohmann::json& json) {
      std::vector<RankLedgerRow> rows;
      for (const auto& r : json)
        rows.push_back({rank, {static_cast<Axis>(r[0].get<int>()), r[1], r[2], r[3], r[4], r[5]}});
      file_->append(std::span<const RankLedgerRow>(rows));
    });
  }

  void write_memory_peaks() {
    const MemoryTracker& tracker = memory_.tracker();
    nlohmann::json own;
    for (std::size_t i = 0; i < category_count; ++i) {
      const auto category = static_cast<Category>(i);
      own[std::string(name_of(category))] = tracker.peak(category).count();
    }
    own["total_tracked"] = tracker.total_peak().count();
    for (const auto& [category, bytes] : sample_peaks_) own[category] = bytes.count();
    collector_.for_each_rank_json(own, [&](int rank, const nlohmann::json& json) {
      std::vector<MemoryPeakRow> rows;
      for (const auto& [category, bytes] : json.items()) rows.push_back({rank, category, bytes});
      file_->append(std::span<const MemoryPeakRow>(rows));
    });
  }

  void write_tensors() {
    const std::vector<TensorInfo> tensors = declare_tensors(options_.dims);
    std::vector<double> sums(2 * tensors.size());
    ResidentState& state = setup_.scenario().state();
    const bool counts = setup_.scenario().replication() == Replication::sharded || is_root();
    for (std::size_t i = 0; i < state.owned().size(); ++i) {
      const auto t = static_cast<std::size_t>(state.owned()[i].tensor);
      if (!counts || setup_.context().tensors[t].copy == Copy::replica) continue;
      for (const float value : read_values<float>(*memory_.device(), state.masters(i))) {
        sums[2 * t] += static_cast<double>(value);
        sums[2 * t + 1] += static_cast<double>(value) * static_cast<double>(value);
      }
    }
    sums = sum(world_.control(), sums);
    if (!file_) return;
    std::vector<TensorRow> rows;
    for (const TensorInfo& tensor : tensors) {
      const auto t = static_cast<std::size_t>(tensor.index);
      rows.push_back({tensor.index, tensor.name, tensor.elements().count(), sums[2 * t], sums[2 * t + 1]});
    }
    file_->append(std::span<const TensorRow>(rows));
  }

  void print_summary() const {
    std::vector<double> steps;
    std::vector<double> exposed;
    for (const auto& [step, slowest] : slowest_) {
      steps.push_back(slowest.step_s);
      exposed.push_back(slowest.exposed_s);
    }
    const StepRecord& last = slowest_.rbegin()->second;
    say(stdout,
        fmt::format(
            "{} N={}: step {:.3f} ms (median over {} steps of the maximum over ranks), {:.0f} tokens/s, "
            "exposed {:.3f} ms, tracked peak {:.1f} MB ({:.1f} expected), loss {:.6f}, check {}\n"
            "wrote {}\n",
            definition_.name, world_.size(), 1e3 * median(steps), steps.size(),
            static_cast<double>(last.tokens) / median(steps), 1e3 * median(exposed), peak_ / 1e6,
            expected_peak_ / 1e6, last.loss, options_.check == Check::on ? "passed" : "off",
            options_.output));
  }

  Options options_;
  const ScenarioDefinition& definition_;
  World& world_;
  Memory& memory_;
  Supervisor& supervisor_;
  Collector collector_;
  ProcessMemory process_before_;  ///< before anything is allocated
  std::unique_ptr<Backend> backend_;
  RankSetup setup_;
  std::optional<ReferenceCheck> check_;
  std::unique_ptr<Caretaker> caretaker_;  ///< rank 0 only, like the next
  std::unique_ptr<TraceFile> file_;
  std::unique_ptr<Vote> vote_;  ///< on stopping; null in a simulation
  StopRequests stop_ = 0;       ///< what the ranks have agreed to stop for
  int steps_done_ = 0;
  std::map<int, StepRecord> slowest_;
  double peak_ = 0.0;  ///< tracked bytes, largest over ranks
  double expected_peak_ = 0.0;
  std::map<std::string, Bytes> sample_peaks_;  ///< largest samples of this rank, by category
};

}  // namespace

ExitCode run_scenario(Options options, const ScenarioDefinition& definition, const Surroundings& surroundings,
                      const BackendFactory& make_backend, const std::string& command_line) {
  World& world = surroundings.world;
  resolve_mesh(options, world.size());
  resolve_batch(options, options.dp);
  check_groups(options, world);
  if (world.simulated()) check_simulated_size(options, world.size());
  if (options.compute == Compute::timed && !options.flops && options.calibration_file.empty() &&
      world.hardware() == nullptr)
    throw UsageError(
        "--compute timed needs to know how long, but the platform describes no GPU; pass --flops F or "
        "--calibration FILE, or start it with shardbench simulate");
  // One rank reads, so that all agree on what it says, and before there is an output file.
  if (!options.calibration_file.empty()) {
    options.calibration_text =
        agree_with_root(world.control(), [&] { return read_calibration_file(options.calibration_file); });
    static_cast<void>(parse_calibration(options));
  }
  return Run(std::move(options), definition, surroundings, make_backend, command_line).execute();
}

}  // namespace shardbench
