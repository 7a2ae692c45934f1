#include "src/collectives/report.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/errors.hpp"
#include "src/train/provenance.hpp"

namespace shardbench {
namespace {

// nccl-tests' widths. Its JSON calls this layout version 2.
constexpr int json_version = 2;
constexpr int time_width = 7;
constexpr int bandwidth_width = 6;

std::string reduction_name(const ResultLine& line) {
  return line.collective == Collective::all_gather ? "none" : nccl_name(line.reduction);
}

std::string truth(bool value) { return value ? "true" : "false"; }

}  // namespace

double mean_bus_bandwidth(const std::vector<ResultLine>& lines) {
  double sum = 0.0;
  for (const ResultLine& line : lines) sum += line.bus_bandwidth;
  return lines.empty() ? 0.0 : sum / static_cast<double>(lines.size());
}

std::string number_text(double value, int width) {
  for (const int decimals : {2, 1, 0}) {
    std::string text = fmt::format("{:{}.{}f}", value, width, decimals);
    if (std::ssize(text) <= width) return text;
  }
  return fmt::format("{:{}.1e}", value, width);
}

std::string preamble_text(const CollectivesOptions& options, const std::vector<RankLine>& ranks) {
  const bool by_factor = options.step_factor > 1;
  std::string text = fmt::format(
      "# Collective test starting: collectives\n"
      "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: 1 "
      "validation: {} graph: 0\n",
      options.min_bytes.count(), options.max_bytes.count(),
      by_factor ? options.step_factor : options.step_bytes.count(), by_factor ? "factor" : "bytes",
      options.warmup, options.iterations, options.checks);
  if (options.precision)
    text += fmt::format("# Windows of {} iterations until precision {} or budget {} s\n", options.iterations,
                        *options.precision, options.budget_s);
  text += "#\n# Using devices\n";
  for (const RankLine& r : ranks)
    text += fmt::format("#  Rank {:2} Group  0 Pid {:6} on {:>10} device {:2} [{}] cpu\n", r.rank, r.pid,
                        r.host, r.local_rank, r.affinity);
  return text;
}

std::string table_head(Collective collective, Algorithm algorithm) {
  const auto row = [](auto... columns) {
    return fmt::format(
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}\n",
        columns...);
  };
  return fmt::format("#\n# {}, algorithm {}\n#\n", name_of(collective), name_of(algorithm)) +
         fmt::format("# {:44}           out-of-place                       in-place          \n", "") +
         row("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw",
             "busbw", "#wrong") +
         row("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
}

std::string result_text(const ResultLine& line) {
  return fmt::format(
      "{:12}  {:12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {}  {}  {}  {:>6}\n", line.size.count(),
      line.count.count(), nccl_name(line.dtype), reduction_name(line), -1, "N/A", "N/A", "N/A", "N/A",
      number_text(1e6 * line.seconds, time_width), number_text(line.algorithm_bandwidth, bandwidth_width),
      number_text(line.bus_bandwidth, bandwidth_width), line.wrong ? std::to_string(*line.wrong) : "N/A");
}

std::string precision_text(const ResultLine& line) {
  const MedianEstimate& slowest = line.slowest_rank;
  const std::string interval = slowest.low
                                   ? fmt::format("in [{:.5g}, {:.5g}], {:.3g} % wide", 1e6 * *slowest.low,
                                                 1e6 * *slowest.high, 100.0 * *slowest.relative_width())
                                   : "without an interval, which takes 6 windows";
  return fmt::format("#   stop {}: {} windows; slowest rank {:.5g} us {}\n", name_of(line.stop), line.windows,
                     1e6 * slowest.median, interval);
}

std::string summary_text(const Summary& summary) {
  return fmt::format("# {:<20} : {} {}\n# {:<20} : {:g} \n#\n# Collective test concluded: collectives\n",
                     "Out of bounds values", summary.failed_checks,
                     summary.failed_checks == 0 ? "OK" : "FAILED", "Avg bus bandwidth",
                     summary.mean_bus_bandwidth);
}

std::string json_text(const JsonReport& report) {
  using Json = nlohmann::ordered_json;
  const CollectivesOptions& o = report.options;
  Json json = {{"version", json_version}, {"start_time", report.start_time}, {"args", report.arguments}};
  json["env"] = Json::array();
  for (const auto& [name, value] : recorded_environment())
    json["env"].push_back(fmt::format("{}={}", name, value));
  json["nccl_version"] = 0;
  Json& config = json["config"] = {{"nthreads", 1},
                                   {"ngpus", 1},
                                   {"minimum_bytes", o.min_bytes.count()},
                                   {"maximum_bytes", o.max_bytes.count()}};
  if (o.step_factor > 1) {
    config["step_factor"] = o.step_factor;
  } else {
    config["step_bytes"] = o.step_bytes.count();
  }
  config.update({{"warmup_iters", o.warmup},
                 {"iterations", o.iterations},
                 {"aggregated_iterations", 1},
                 {"validation", o.checks},
                 {"graph", 0},
                 {"blocking_collectives", truth(false)},
                 {"parallel_init", truth(false)}});
  config["devices"] = Json::array();
  for (const RankLine& r : report.ranks)
    config["devices"].push_back({{"rank", r.rank},
                                 {"group", 0},
                                 {"pid", r.pid},
                                 {"hostname", r.host},
                                 {"device", r.local_rank},
                                 {"device_hex", r.affinity},
                                 {"device_info", "cpu"}});
  json["results"] = Json::array();
  for (const ResultLine& line : report.lines) {
    Json in_place = {{"time", 1e6 * line.seconds},
                     {"alg_bw", line.algorithm_bandwidth},
                     {"bus_bw", line.bus_bandwidth},
                     {"nwrong", line.wrong ? Json(*line.wrong) : Json(nullptr)}};
    json["results"].push_back({{"size", line.size.count()},
                               {"count", line.count.count()},
                               {"type", nccl_name(line.dtype)},
                               {"redop", reduction_name(line)},
                               {"root", fmt::format("{:6}", -1)},
                               {"out_of_place", nullptr},
                               {"in_place", std::move(in_place)},
                               {"actual_iterations", line.iterations},
                               {"windows", line.windows},
                               {"stop", name_of(line.stop)},
                               {"experiment_name", name_of(line.collective)},
                               {"algorithm", name_of(line.algorithm)}});
  }
  json["out_of_bounds"] = {{"count", report.summary.failed_checks},
                           {"okay", truth(report.summary.failed_checks == 0)}};
  json["average_bus_bandwidth"] = {{"bandwidth", report.summary.mean_bus_bandwidth}, {"okay", "unchecked"}};
  json["errors"] = Json::array();
  json["end_time"] = report.end_time;
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";  // a path need not be UTF-8
}

std::string local_time() { return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr))); }

std::string reserve_file(const std::string& name) {
  for (int attempt = -1;; ++attempt) {
    std::string path = attempt < 0 ? name : fmt::format("{}.{}", name, attempt);
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
      close(file);
      return path;
    }
    if (errno != EEXIST)
      throw RunError(
          fmt::format("cannot write {}: {}; choose a writable --output_file", path, std::strerror(errno)));
  }
}

void write_file(const std::string& name, const std::string& text) {
  errno = 0;
  std::ofstream file(name);
  file << text << std::flush;
  if (!file)
    throw RunError(fmt::format("cannot write {}: {}", name,
                               errno == 0 ? "refused by the file system" : std::strerror(errno)));
}

}  // namespace shardbench
