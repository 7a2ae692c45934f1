#include "src/collectives/bench.hpp"
#include "src/comm/nodes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>

#include "src/collectives/report.hpp"
#include "src/collectives/sizes.hpp"
#include "src/collectives/stop_rule.hpp"
#include "src/collectives/test_values.hpp"
#include "src/say.hpp"
#include "src/trace/caretaker.hpp"
#include "src/trace/process_memory.hpp"
#include "src/train/clock_sync.hpp"
#include "src/train/collector.hpp"
#include "src/train/provenance.hpp"
#include "src/train/rank_table.hpp"

namespace shardbench {
namespace {

// Rows of one line that a rank keeps until it is over: 100 MB.
constexpr std::int64_t most_repetitions = std::int64_t{1} << 20;

// Values of all simulated ranks lie in one process, as with the scenarios' --payload real.
constexpr int most_checked_simulated_ranks = 256;

/// What the windows of one line came to; the samples on rank 0 only.
struct Windows {
  SortedSamples slowest_rank;   ///< seconds of one iteration, the maximum over ranks
  SortedSamples mean_of_ranks;  ///< and the mean, which nccl-tests prints
  std::int64_t count = 0;
  Stop stop = Stop::iterations;
};

class Bench {
 public:
  Bench(CollectivesOptions options, const Surroundings& surroundings,
        const std::vector<std::string>& arguments)
      : options_(std::move(options)),
        world_(surroundings.world),
        memory_(surroundings.memory),
        supervisor_(surroundings.supervisor),
        arguments_(arguments),
        collector_(world_.control()),
        start_time_(local_time()),
        backing_(world_.simulated() && options_.checks == 0 ? Backing::aliased : Backing::memory) {
    check_memory();
    create_files();
    communicator_ = world_.communicator(everyone(world_));
    supervisor_.finishes_in_order();
  }

  ExitCode execute() {
    write_ranks(file_.get(), world_, {.dp_index = world_.rank(), .tp_index = 0, .threads = 1});
    write_clocks();
    write_timer_quality();
    gather_rank_lines();
    print(preamble_text(options_, rank_lines_));
    for (const Collective collective : options_.collectives) {
      if (stop_ != 0) left_out_ = true;
      if (left_out_) break;
      print(table_head(collective, options_.algorithm));
      for (const Measurement& measured : measurements_of(collective, options_)) sweep(measured);
    }
    world_.activity().enter("finishing");
    write_clocks();
    return left_out_ ? close_interrupted() : finish();
  }

 private:
  [[nodiscard]] bool is_root() const { return world_.rank() == 0; }

  void print(const std::string& text) const {
    if (!is_root()) return;
    say(stdout, text);  // at once: a sweep takes long, and who watches it through a pipe wants to see it
  }

  /// Refuses what the hosts have no memory for: the kernel would grant it and kill the job later.
  void check_memory() const {
    const bool doubles = options_.algorithm == Algorithm::doubling || options_.algorithm == Algorithm::native;
    // Two collectives in flight stage up to half a buffer each with doubling; a library may copy it.
    const Bytes needed = options_.max_bytes * (doubles ? 2 : 1);
    if (backing_ != Backing::memory) return;
    const int sharing = world_.simulated() ? world_.size() : world_.placement().local_size;
    const std::int64_t share = available_memory().count() / sharing;
    const double own = share == 0 ? std::numeric_limits<double>::max()  // the kernel does not tell
                                  : static_cast<double>(share);
    const double least = -maximum(world_.control(), -own);
    if (static_cast<double>(needed.count()) > least)
      throw AgreedError(fmt::format(
          "--maxbytes {} needs {} bytes of memory on each rank, but a host has only {:.0f} left for "
          "each; use smaller sizes or fewer ranks per host",
          options_.max_bytes.count(), needed.count(), least));
  }

  /// On rank 0 the files, elsewhere nothing; a failure is everyone's.
  void create_files() {
    if (options_.output.empty()) options_.output = default_output("collectives", world_.size());
    options_.output = agree_with_root(world_.control(), [&] {
      file_ = std::make_unique<TraceFile>(options_.output, options_.existing_file, Tables::collectives);
      if (!world_.simulated()) caretaker_ = start_caretaker(*file_, options_.output);
      try {
        if (!options_.json_file.empty()) options_.json_file = reserve_file(options_.json_file);
      } catch (const RunError&) {
        file_->finish(RunStatus::failed);
        throw;
      }
      describe_program(*file_, "collectives", world_, fmt::format("{}", fmt::join(arguments_, " ")));
      file_->set("dp", world_.size());
      file_->set("tp", 1);
      file_->set("psi", 0);
      file_->set("compute", "none");
      file_->set("payload", backing_ == Backing::memory ? "real" : "phantom");
      file_->set("seed", 0);
      file_->set("check", options_.checks > 0 ? "running" : "off");
      nlohmann::ordered_json config;
      config["options"] = nlohmann::ordered_json::parse(options_json(options_));
      config["model"] = nlohmann::ordered_json::object();
      config["wait_policy"] = world_.wait_policy();
      config["threads_per_rank"] = 1;
      config["environment"] = recorded_environment();
      if (world_.simulated()) config["simulation"] = nlohmann::json::parse(simulation_json(world_));
      file_->set_config(config.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      file_->flush();
      return options_.output;
    });
  }

  void write_clocks() {
    const auto rows = measure_clocks(world_);
    if (file_) file_->append(std::span<const ClockRow>(rows));
  }

  void write_timer_quality() {
    const TimerQuality worst = measure_timers(world_);
    if (!file_) return;
    file_->set("timer_overhead_s", worst.overhead_s);
    file_->set("timer_resolution_s", worst.resolution_s);
  }

  void gather_rank_lines() {
    const Placement p = world_.placement();
    const nlohmann::json own = {{"pid", static_cast<int>(getpid())},
                                {"host", p.host},
                                {"local_rank", p.local_rank},
                                {"affinity", p.affinity}};
    collector_.for_each_rank_json(own, [&](int rank, const nlohmann::json& json) {
      rank_lines_.push_back({.rank = rank,
                             .pid = json["pid"],
                             .host = json["host"],
                             .local_rank = json["local_rank"],
                             .affinity = json["affinity"]});
    });
  }

  void sweep(const Measurement& measured) {
    for (std::optional<Bytes> size = options_.min_bytes; size; size = options_.size_after(*size)) {
      if (stop_ != 0) left_out_ = true;
      if (left_out_) return;
      world_.activity().enter(
          {.operation = name_of(measured.collective), .axis = "world", .group_size = world_.size()});
      measure(measured, *size);
      hear_requests();
    }
  }

  /// Collective, outside of what is timed.
  void hear_requests() {
    stop_ = requests_of_all({world_, memory_, supervisor_});
    if (stop_ != 0 && caretaker_) caretaker_->expect(RunStatus::interrupted);
  }

  /// The lines so far are whole.
  ExitCode close_interrupted() {
    if (file_) {
      file_->finish(RunStatus::interrupted);
      if (caretaker_) caretaker_->dismiss();
      if (!options_.json_file.empty())
        std::remove(options_.json_file.c_str());  // it has no place for a status
      say(stderr, fmt::format("collectives: interrupted by {} after {} lines, which are in {}\n",
                              name_of_signal(stop_), line_, options_.output));
    }
    return ExitCode::run_failure;
  }

  void measure(const Measurement& measured, Bytes requested) {
    const SizedCollective sizes = sized(measured.collective, measured.dtype, requested, world_.size());
    const BufferRef buffer = allocate(measured.dtype, sizes.buffer);
    const TestValues values(measured.collective, measured.reduction, world_.size());
    const CollectiveRecord common{.line = line_,
                                  .collective = measured.collective,
                                  .algorithm = Algorithm::local,
                                  .dtype = measured.dtype,
                                  .reduction = measured.reduction,
                                  .size = sizes.size,
                                  .count = sizes.count};
    std::vector<CollectiveRecord> records;
    if (buffer->holds_values()) values.fill(*buffer, world_.rank());
    barrier(world_.control());
    run_back_to_back(common, buffer, options_.warmup, records);
    for (CollectiveRecord& record : records) record.warmup = 1;
    const Windows windows = measure_windows(common, buffer, records);
    if (left_out_) return;  // half a line says nothing
    for (int i = 0; i < options_.checks; ++i) {
      values.fill(*buffer, world_.rank());
      run_back_to_back(common, buffer, 1, records);
      records.back().warmup = 1;
      records.back().wrong = values.count_wrong(*buffer, world_.rank());
    }
    for (std::size_t i = 0; i < records.size(); ++i) {
      records[i].repetition = static_cast<std::int32_t>(i);
      records[i].stop = windows.stop;
    }
    report(records, windows);
    ++line_;
  }

  /// Windows until the rule is content. Every rank leaves after the same one.
  Windows measure_windows(const CollectiveRecord& common, const BufferRef& buffer,
                          std::vector<CollectiveRecord>& records) {
    const StopRule rule{.precision = options_.precision,
                        .budget_s = options_.budget_s,
                        .window_iterations = options_.iterations,
                        .most_iterations = most_repetitions};
    Windows windows;
    const double begin_s = world_.now();
    for (std::optional<Stop> stop; !stop; ++windows.count) {
      const std::size_t first = records.size();
      barrier(world_.control());
      run_back_to_back(common, buffer, options_.iterations, records);
      const std::span<CollectiveRecord> window = std::span(records).subspan(first);
      for (CollectiveRecord& record : window) record.window = static_cast<std::int32_t>(windows.count);
      add_window(seconds_per_iteration(window), windows);
      stop = root_decides([&] { return reason_to_stop(rule, windows.slowest_rank, world_.now() - begin_s); });
      if (!stop) hear_requests();
      left_out_ = !stop && stop_ != 0;
      if (left_out_) return windows;
      windows.stop = stop.value_or(Stop::iterations);
    }
    return windows;
  }

  /// Collective: rank 0 hears how long the window took on each rank.
  void add_window(double seconds, Windows& windows) {
    const auto messages = gather(world_.control(), as_message<double>(std::span<const double>(&seconds, 1)));
    if (!is_root()) return;
    double slowest = 0.0;
    double sum_of_ranks = 0.0;
    for (const auto& message : messages) {
      const double of_rank = from_message<double>(message).front();
      slowest = std::max(slowest, of_rank);
      sum_of_ranks += of_rank;
    }
    windows.slowest_rank.add(slowest);
    windows.mean_of_ranks.add(sum_of_ranks / world_.size());
  }

  /// Collective: what `decide` says on rank 0, whose clock it is.
  std::optional<Stop> root_decides(const std::function<std::optional<Stop>()>& decide) {
    constexpr std::int32_t go_on = -1;
    std::int32_t decision = go_on;
    if (is_root())
      if (const std::optional<Stop> stop = decide()) decision = static_cast<std::int32_t>(*stop);
    const auto bytes = as_message<std::int32_t>(std::span<const std::int32_t>(&decision, 1));
    decision = from_message<std::int32_t>(broadcast(world_.control(), {bytes.begin(), bytes.end()})).front();
    return decision == go_on ? std::nullopt : std::optional(static_cast<Stop>(decision));
  }

  /// Memory may be short on one rank only.
  BufferRef allocate(DType dtype, Elements elements) {
    BufferRef buffer;
    double refused = 0.0;
    try {
      buffer = memory_.allocate(Category::workspace, dtype, elements, backing_);
    } catch (const RunError&) {
      refused = 1.0;
    }
    if (maximum(world_.control(), refused) > 0.0)
      throw AgreedError(
          fmt::format("out of memory: a rank cannot have a buffer of {} bytes; use smaller sizes "
                      "or fewer ranks per host",
                      bytes_of(dtype, elements).count()));
    return buffer;
  }

  /// Appends a record of each; the next has been issued before one is waited for.
  void run_back_to_back(const CollectiveRecord& common, const BufferRef& buffer, int repetitions,
                        std::vector<CollectiveRecord>& records) {
    std::deque<Pending> pending;
    for (int i = 0; i < repetitions; ++i) {
      if (std::ssize(pending) == collectives_in_flight) take_first(common, pending, records);
      pending.push_back(communicator_->start(common.collective, buffer, common.reduction));
    }
    while (!pending.empty()) take_first(common, pending, records);
  }

  static void take_first(const CollectiveRecord& common, std::deque<Pending>& pending,
                         std::vector<CollectiveRecord>& records) {
    const PendingCollective& first = *pending.front();
    pending.front()->wait();
    CollectiveRecord& record = records.emplace_back(common);
    record.algorithm = first.algorithm();
    record.start_s = first.began().issued_s;
    record.end_s = first.ended().issued_s;
    record.sent_bytes = first.sent() ? first.sent()->count() : -1;
    pending.pop_front();
  }

  /// Rank 0 writes every rank's records and prints their line.
  void report(const std::vector<CollectiveRecord>& records, const Windows& windows) {
    std::int64_t wrong = 0;
    collector_.for_each_rank<CollectiveRecord>(records,
                                               [&](int rank, std::span<const CollectiveRecord> of_rank) {
                                                 file_->append(rank, of_rank);
                                                 for (const CollectiveRecord& record : of_rank) {
                                                   wrong += std::max<std::int64_t>(record.wrong, 0);
                                                   if (record.wrong > 0) ++failed_checks_;
                                                 }
                                               });
    if (!is_root()) return;
    file_->flush();
    const CollectiveRecord& own = records.back();
    ResultLine line{.collective = own.collective,
                    .algorithm = own.algorithm,
                    .dtype = own.dtype,
                    .reduction = own.reduction,
                    .size = own.size,
                    .count = own.count,
                    .iterations = windows.count * options_.iterations,
                    .seconds = windows.mean_of_ranks.estimate().median,
                    .wrong = options_.checks > 0 ? std::optional(wrong) : std::nullopt,
                    .stop = windows.stop,
                    .windows = windows.count,
                    .slowest_rank = windows.slowest_rank.estimate()};
    line.algorithm_bandwidth = algorithm_bandwidth(line.size, line.seconds);
    line.bus_bandwidth = line.algorithm_bandwidth * bus_factor(line.collective, world_.size());
    print(result_text(line));
    if (options_.precision) print(precision_text(line));
    lines_.push_back(line);
  }

  /// From when the first iteration of a window began to when the last was done, over their number.
  [[nodiscard]] static double seconds_per_iteration(std::span<const CollectiveRecord> window) {
    double first = std::numeric_limits<double>::infinity();
    double last = 0.0;
    for (const CollectiveRecord& record : window) {
      first = std::min(first, record.start_s);
      last = std::max(last, record.end_s);
    }
    return (last - first) / static_cast<double>(window.size());
  }

  ExitCode finish() {
    const bool verified = maximum(world_.control(), failed_checks_ > 0 ? 1.0 : 0.0) == 0.0;
    const Summary summary{.failed_checks = failed_checks_, .mean_bus_bandwidth = mean_bus_bandwidth(lines_)};
    print(summary_text(summary));
    agree_with_root(world_.control(), [&] {
      if (!options_.json_file.empty())
        write_file(options_.json_file, json_text({.arguments = arguments_,
                                                  .start_time = start_time_,
                                                  .end_time = local_time(),
                                                  .options = options_,
                                                  .ranks = rank_lines_,
                                                  .lines = lines_,
                                                  .summary = summary}));
      file_->set("check", options_.checks == 0 ? "off" : verified ? "passed" : "failed");
      file_->finish(verified ? RunStatus::complete : RunStatus::failed);
      if (caretaker_) caretaker_->dismiss();
      return std::string();
    });
    print(fmt::format("# Wrote {}\n", options_.output));
    if (!options_.json_file.empty()) print(fmt::format("# Wrote {}\n", options_.json_file));
    return verified ? ExitCode::done : ExitCode::check_failed;
  }

  CollectivesOptions options_;
  World& world_;
  Memory& memory_;
  Supervisor& supervisor_;
  StopRequests stop_ = 0;  ///< what the ranks have agreed to stop for
  bool left_out_ = false;  ///< whether something was not measured for it
  const std::vector<std::string>& arguments_;
  Collector collector_;
  std::string start_time_;
  Backing backing_;  ///< of what collectives move: without values where a simulation checks nothing
  std::unique_ptr<Caretaker> caretaker_;  ///< rank 0 only, like the next five
  std::unique_ptr<TraceFile> file_;
  std::vector<RankLine> rank_lines_;
  std::vector<ResultLine> lines_;
  std::int64_t failed_checks_ = 0;
  std::unique_ptr<Communicator> communicator_;
  std::int32_t line_ = 0;
};

}  // namespace

std::vector<Measurement> measurements_of(Collective collective, const CollectivesOptions& options) {
  std::vector<Measurement> measurements;
  for (const DType dtype : options.dtypes)
    for (const Reduction reduction : options.reductions) {
      measurements.push_back({collective, dtype, reduction});
      if (collective == Collective::all_gather) break;  // it reduces nothing
    }
  return measurements;
}

std::vector<int> everyone(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void check_request(const CollectivesOptions& options, const World& world) {
  const bool only_simulated = is_modelled(options.algorithm) || options.progress == Progress::stream;
  if ((world.simulated() || only_simulated) && options.checks > 0 &&
      world.size() > most_checked_simulated_ranks)
    throw UsageError(fmt::format(
        "--check {} needs every simulated rank's values in one process, up to {} ranks, not {}; use "
        "-c 0",
        options.checks, most_checked_simulated_ranks, world.size()));
  if (options.algorithm == Algorithm::hierarchical) {
    const std::vector<int> ranks = everyone(world);
    check_hierarchy(std::span(&ranks, 1), world.nodes());
  }
}

ExitCode run_collectives(CollectivesOptions options, const Surroundings& surroundings,
                         const std::vector<std::string>& arguments) {
  check_request(options, surroundings.world);
  return Bench(std::move(options), surroundings, arguments).execute();
}

}  // namespace shardbench
