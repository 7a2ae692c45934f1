#include "src/train/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "src/errors.hpp"

namespace shardbench {
namespace {

constexpr std::array<const char*, 3> kind_names = {"embedding", "block", "head"};

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double seconds_at(const nlohmann::json& json, const std::string& path, const char* kind,
                  const char* direction) {
  const auto outer = json.find(kind);
  if (outer == json.end() || !outer->is_object() || !outer->contains(direction) ||
      !outer->at(direction).is_number())
    throw UsageError(fmt::format("--calibration {}: needs a number of seconds at {}.{}; see docs/contract.md",
                                 path, kind, direction));
  const double seconds = outer->at(direction).get<double>();
  if (!(seconds >= 0.0 && seconds < 1e6))
    throw UsageError(
        fmt::format("--calibration {}: {}.{} is {}, not a time", path, kind, direction, seconds));
  return seconds;
}

}  // namespace

LayerKind kind_of_layer(const ModelDims& dims, int layer) {
  if (layer == 0) return LayerKind::embedding;
  return layer == dims.head_layer() ? LayerKind::head : LayerKind::block;
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
  const std::string& path = options.calibration_file;
  const auto json = nlohmann::json::parse(options.calibration_text, nullptr, false);
  if (!json.is_object()) throw UsageError(fmt::format("--calibration {}: is not a JSON object", path));
  ComputeTimes times;
  for (std::size_t kind = 0; kind < kind_names.size(); ++kind) {
    times.forward[kind] = seconds_at(json, path, kind_names[kind], "forward");
    times.backward[kind] = seconds_at(json, path, kind_names[kind], "backward");
  }
  if (json.contains("optimizer")) times.optimizer = seconds_at(json, path, "optimizer", "step");
  return times;
}

ComputeTimes times_at(const ModelDims& dims, std::int64_t tokens, double flops) {
  ComputeTimes times;
  for (const int layer : {0, 1, dims.head_layer()}) {
    const auto kind = static_cast<std::size_t>(kind_of_layer(dims, layer));
    times.forward[kind] = layer_flops(dims, layer, Direction::forward, tokens) / flops;
    times.backward[kind] = layer_flops(dims, layer, Direction::backward, tokens) / flops;
  }
  return times;
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
