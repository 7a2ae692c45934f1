#include "src/train/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>
#include <tuple>

#include "src/command_line.hpp"
#include "src/errors.hpp"
#include "src/model/initial_state.hpp"

namespace shardbench {
namespace {

constexpr std::array<const char*, 3> kind_names = {"embedding", "block", "head"};

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

constexpr auto block = static_cast<std::size_t>(LayerKind::block);

/// What recomputation repeats of a block's forward.
double recomputed(double forward_s, const ModelDims& dims) {
  return (1.0 - block_shares(dims).mlp_output) * forward_s;
}

/// A calibration file's numbers by name.
class CalibrationFile {
 public:
  CalibrationFile(std::string path, const std::string& text)
      : path_(std::move(path)), json_(nlohmann::json::parse(text, nullptr, false)) {
    if (!json_.is_object()) refuse("is not a JSON object");
  }

  double seconds(const std::string& kind, const std::string& direction) {
    const std::optional<double> value = seconds_if_given(kind, direction);
    if (!value) refuse(fmt::format("needs a number of seconds at {}.{}", kind, direction));
    return *value;
  }

  std::optional<double> seconds_if_given(const std::string& kind, const std::string& direction) {
    known_.push_back(kind + '.' + direction);
    if (!json_.contains(kind)) return std::nullopt;
    const nlohmann::json& directions = json_[kind];
    if (!directions.is_object()) refuse(fmt::format("{} is not an object of seconds by direction", kind));
    if (!directions.contains(direction)) return std::nullopt;
    const nlohmann::json& value = directions[direction];
    const double seconds = value.is_number() ? value.get<double>() : -1.0;
    if (!(seconds >= 0.0 && seconds < longest_s))
      refuse(fmt::format("{}.{} is {}, not a number of seconds from 0 to below {:g}", kind, direction,
                         value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), longest_s));
    return seconds;
  }

  /// What nothing has asked for is a mistake.
  void refuse_unknown() const {
    for (const auto& [kind, directions] : json_.items()) {
      if (!directions.is_object() || directions.empty()) refuse_key(kind);
      for (const auto& [direction, value] : directions.items()) refuse_key(fmt::format("{}.{}", kind, direction));
    }
  }

 private:
  static constexpr double longest_s = 1e6;

  void refuse_key(const std::string& key) const {
    if (std::find(known_.begin(), known_.end(), key) == known_.end())
      refuse(
          fmt::format("the key {} is unknown: did you mean {}?", one_line(key), nearest_name(key, known_)));
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw UsageError(fmt::format("--calibration {}: {}; see docs/contract.md", path_, reason));
  }

  std::string path_;
  nlohmann::json json_;
  std::vector<std::string> known_;
};

/// Standard normal (Box and Muller, Ann. Math. Statist. 29, 1958), the same for the same key.
double standard_normal(std::uint64_t key) {
  const std::uint64_t first = splitmix64(key);
  const double u = static_cast<double>((first >> 11U) + 1) * 0x1p-53;  // in (0, 1]
  const double v = static_cast<double>(splitmix64(first) >> 11U) * 0x1p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace

double ComputeTimes::of(LayerKind kind, Pass pass) const {
  if (pass == Pass::recompute) return recompute;
  return (pass == Pass::forward ? forward : backward)[static_cast<std::size_t>(kind)];
}

std::string read_calibration_file(const std::string& path) {
  constexpr std::uintmax_t largest = 1 << 20;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) > largest)
    throw UsageError(
        fmt::format("--calibration {}: is not a regular file of at most 1 MiB; check the path", path));
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    throw UsageError(fmt::format("--calibration {}: cannot be read or is empty; check the path", path));
  return text.str();
}

ComputeTimes parse_calibration(const Options& options) {
  CalibrationFile file(options.calibration_file, options.calibration_text);
  ComputeTimes times;
  for (std::size_t kind = 0; kind < kind_names.size(); ++kind) {
    times.forward[kind] = file.seconds(kind_names[kind], "forward");
    times.backward[kind] = file.seconds(kind_names[kind], "backward");
  }
  times.recompute =
      file.seconds_if_given("block", "recompute").value_or(recomputed(times.forward[block], options.dims));
  times.optimizer = file.seconds_if_given("optimizer", "step").value_or(0.0);
  file.refuse_unknown();
  return times;
}

ComputeTimes times_at(const ModelDims& dims, std::int64_t tokens, double flops) {
  ComputeTimes times;
  for (const int layer : {0, 1, dims.head_layer()}) {
    const auto kind = static_cast<std::size_t>(kind_of_layer(dims, layer));
    times.forward[kind] = layer_flops(dims, layer, Direction::forward, tokens) / flops;
    times.backward[kind] = layer_flops(dims, layer, Direction::backward, tokens) / flops;
  }
  times.recompute = recomputed(times.forward[block], dims);
  return times;
}

RankWork rank_work(const Options& options, const Mesh& mesh) {
  const std::int64_t tokens = options.micro_batch * options.dims.seq;
  const bool cuts_sequence = options.sequence_parallel == SequenceParallel::on;
  return {.dims = options.dims,
          .local = local_dims(options.dims, mesh.tp, mesh.tp_index),
          .tokens = tokens,
          .stream_tokens = cuts_sequence ? tokens / mesh.tp : tokens,
          .dtype = options.param_dtype};
}

ComputeTimes compute_times(const Options& options, const Mesh& mesh, const Hardware* hardware) {
  if (!options.calibration_file.empty()) return parse_calibration(options);
  if (options.flops)
    return times_at(options.dims, options.micro_batch * options.dims.seq, *options.flops * mesh.tp);
  if (hardware == nullptr) return {};
  const RankWork work = rank_work(options, mesh);
  const auto seconds = [&](LayerKind kind, Pass pass) {
    return roofline_seconds(kernels_of(work, kind, pass), *hardware);
  };
  ComputeTimes times;
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
    times.forward[static_cast<std::size_t>(kind)] = seconds(kind, Pass::forward);
    times.backward[static_cast<std::size_t>(kind)] = seconds(kind, Pass::backward);
  }
  times.recompute = seconds(LayerKind::block, Pass::recompute);
  return times;
}

double optimizer_seconds(const ComputeTimes& times, const Options& options, Elements elements,
                         const Hardware* hardware) {
  if (times.optimizer) return *times.optimizer;
  if (options.flops) return adamw_flops_per_element * static_cast<double>(elements.count()) / *options.flops;
  if (hardware == nullptr) return 0.0;
  const bool accumulates = options.fp32_grad_accum == Fp32Accumulation::on;
  return roofline_seconds(
      adamw_kernel(elements, options.param_dtype, accumulates ? DType::fp32 : options.param_dtype),
      *hardware);
}

double slowdown(const Jitter& jitter, std::uint64_t seed, int rank, int step) {
  const auto key = [&](int draw) {
    return splitmix64((seed << 48U) ^ (static_cast<std::uint64_t>(rank) << 16U) ^
                      static_cast<std::uint64_t>(draw));
  };
  return std::exp(jitter.rank * standard_normal(key(0)) + jitter.step * standard_normal(key(step + 1)));
}

std::vector<CalibrationRow> summarise_rehearsal(const ModelDims& dims, std::span<const Event> events) {
  struct Samples {
    // By step, micro-batch, layer or bucket.
    std::map<std::tuple<int, int, int>, double> compute;
    std::map<std::tuple<int, int, int>, double> communication;
  };
  struct Place {
    std::string kind;
    int layer;
    std::string direction;
    auto operator<=>(const Place&) const = default;
  };
  std::map<Place, Samples> places;
  for (const Event& event : events) {
    const bool compute = event.kind == EventKind::compute;
    if (!compute && event.stream != Stream::comm) continue;
    Place place{.kind = "bucket", .layer = -1, .direction = std::string(name_of(event.phase))};
    if (event.subject.layer >= 0) {
      const LayerKind kind = kind_of_layer(dims, event.subject.layer);
      place.kind = kind_names[static_cast<std::size_t>(kind)];
      place.layer = kind == LayerKind::block ? 1 : event.subject.layer;
    }
    Samples& samples = places[place];
    // A layer's stretches of compute and its collectives in one direction add up; repetitions do not.
    const int subject = std::max(event.subject.layer, event.subject.bucket);
    (compute ? samples.compute : samples.communication)[{event.step, event.micro, subject}] +=
        event.end_s - event.start_s;
  }
  std::vector<CalibrationRow> rows;
  for (const auto& [place, samples] : places) {
    const auto typical = [](const std::map<std::tuple<int, int, int>, double>& sums) {
      std::vector<double> values;
      values.reserve(sums.size());
      for (const auto& [where, seconds] : sums) values.push_back(seconds);
      return median(std::move(values));
    };
    rows.push_back(
        {place.kind, place.layer, place.direction, typical(samples.compute), typical(samples.communication)});
  }
  return rows;
}

}  // namespace shardbench
