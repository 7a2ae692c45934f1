// The options of the program `collectives`: short forms and meanings as in nccl-tests where it has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/communicator.hpp"
#include "src/comm/world.hpp"
#include "src/options_choices.hpp"
#include "src/supervise/supervisor.hpp"
#include "src/trace/trace_file.hpp"
#include "src/units.hpp"

namespace shardbench {

struct CollectivesOptions {
  // Defaults are nccl-tests'.
  Bytes min_bytes{std::int64_t{32} << 20};
  Bytes max_bytes{std::int64_t{32} << 20};
  Bytes step_bytes{std::int64_t{1} << 20};
  std::int64_t step_factor = 1;  ///< counts from 2 on, and then instead of step_bytes
  int iterations = 20;
  std::optional<double>
      precision;           ///< relative width of the median's interval; empty: one window of iterations
  double budget_s = 10.0;  ///< with precision: of each line
  int warmup = 1;
  int checks = 1;  ///< collectives whose result is checked, after the timed ones
  std::vector<DType> dtypes = {DType::fp32};
  std::vector<Reduction> reductions = {Reduction::sum};
  std::vector<Collective> collectives = {Collective::all_reduce, Collective::reduce_scatter,
                                         Collective::all_gather};
  std::string json_file;  ///< empty: none

  Algorithm algorithm = Algorithm::automatic;
  Progress progress = Progress::poll;
  double stall_timeout_s = default_stall_limit_s;
  std::optional<int> ranks_per_node;
  std::optional<int> ranks;
  std::string output;  ///< HDF5; empty: default_output()
  ExistingFile existing_file = ExistingFile::refuse;
  bool show_version = false;
  bool plan = false;

  /// The size that follows in the sweep, which begins with min_bytes; empty after the last.
  [[nodiscard]] std::optional<Bytes> size_after(Bytes size) const;
};

/// What became of a command line: options, the help text asked for, or why it is refused.
struct ParsedCollectivesOptions {
  std::optional<CollectivesOptions> options;
  std::string help;
  std::string error;
};
/// In a simulation nothing is checked by default, so that buffers need no memory.
ParsedCollectivesOptions parse_collectives_options(const std::vector<std::string>& arguments,
                                                   Build build = Build::real);

/// Every effective option under its long name, as JSON text (an object).
std::string options_json(const CollectivesOptions& options);

/// A size such as 512, 32K, 1.5M or 1g, in powers of 1024; throws UsageError naming `option`.
Bytes parse_size(const std::string& option, const std::string& text);

/// Names as nccl-tests prints them: float, bfloat16; sum, prod, max, min, avg.
std::string nccl_name(DType dtype);
std::string nccl_name(Reduction reduction);

}  // namespace shardbench
