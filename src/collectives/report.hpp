// What `collectives` prints, in nccl-tests' columns, and its JSON twin. Rank 0 only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/collectives/options.hpp"
#include "src/collectives/sizes.hpp"
#include "src/collectives/stop_rule.hpp"

namespace shardbench {

/// Where one rank ran.
struct RankLine {
  int rank = 0;
  int pid = 0;
  std::string host;
  int local_rank = 0;
  std::string affinity;
};

/// One line of the table.
struct ResultLine {
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::local;
  DType dtype = DType::fp32;
  Reduction reduction = Reduction::sum;  ///< an all-gather's column says none
  Bytes size;
  Elements count;
  std::int64_t iterations = 0;        ///< timed ones, of all windows
  double seconds = 0.0;               ///< of one iteration: mean over a window and ranks, median over windows
  double algorithm_bandwidth = 0.0;   ///< GB/s
  double bus_bandwidth = 0.0;         ///< GB/s
  std::optional<std::int64_t> wrong;  ///< elements over all ranks; empty where nothing was checked
  Stop stop = Stop::iterations;
  std::int64_t windows = 1;
  MedianEstimate slowest_rank = {};  ///< seconds of one iteration, over windows
};

/// How a run came out.
struct Summary {
  std::int64_t failed_checks = 0;  ///< checks of a rank that found wrong elements
  double mean_bus_bandwidth = 0.0;
};
double mean_bus_bandwidth(const std::vector<ResultLine>& lines);

// Lines of standard output, each with its line break. All but the results begin with '#'.
std::string preamble_text(const CollectivesOptions& options, const std::vector<RankLine>& ranks);
std::string table_head(Collective collective, Algorithm algorithm);
std::string result_text(const ResultLine& line);
/// What is known of the line above it, and what ended it; for runs with --precision.
std::string precision_text(const ResultLine& line);
std::string summary_text(const Summary& summary);

/// Right-aligned to at least `width`; with fewer decimals the larger the number is, so that it fits.
std::string number_text(double value, int width);

struct JsonReport {
  std::vector<std::string> arguments;
  std::string start_time;
  std::string end_time;
  CollectivesOptions options;
  std::vector<RankLine> ranks;
  std::vector<ResultLine> lines;
  Summary summary;
};
/// The document that nccl-tests writes (its version 2), with its keys and its habit of writing truth as text.
std::string json_text(const JsonReport& report);

/// Now, in local time, as nccl-tests writes it: "YYYY-MM-DD hh:mm:ss".
std::string local_time();

/// A file of this name, or of the first of NAME.0, NAME.1, ... that does not exist yet; created empty.
/// Returns its name. Throws RunError when it cannot be created.
std::string reserve_file(const std::string& name);
/// Throws RunError when it cannot be written.
void write_file(const std::string& name, const std::string& text);

}  // namespace shardbench
