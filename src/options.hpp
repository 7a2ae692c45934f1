// The options of the five scenarios, parsed and checked before anything starts.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/comm/communicator.hpp"
#include "src/comm/world.hpp"
#include "src/model/decoder.hpp"
#include "src/options_choices.hpp"
#include "src/shard/layout.hpp"
#include "src/supervise/supervisor.hpp"
#include "src/trace/trace_file.hpp"

namespace shardbench {

/// Options that only some scenarios have. Each scenario names the families it accepts.
enum class OptionFamily {
  gather_groups,        ///< --layout --wrap --reshard-after-forward --prefetch
  ordered_collectives,  ///< --communicators --rs-wait
  buckets,              ///< --bucket-mb
  parameter_gather,     ///< --param-gather
  mesh,                 ///< --dp --tp --sequence-parallel
};

enum class Compute { real, timed };
enum class Payload { real, phantom };
enum class ReshardAfterForward { all, blocks, none };
enum class ReduceScatterWait { next, end };
enum class Fp32Accumulation { off, on };
enum class ParameterGather { end, overlap };
enum class Check { off, on };
enum class BackendChoice { mpi, nccl };

/// How many groups are gathered ahead of the one in use.
struct Prefetch {
  int forward = 1;
  int backward = 1;
};

/// Standard deviations of the logarithms by which imitated compute is slowed down; 0 = off.
struct Jitter {
  double rank = 0.0;  ///< for good
  double step = 0.0;  ///< anew in each step, by rank
};

/// PyTorch's. With it, DDP's first bucket is 1 MiB.
constexpr std::int64_t default_bucket_mb = 25;

struct Options {
  std::string scenario;
  std::string model = "tiny";
  ModelDims dims;

  std::int64_t micro_batch = 1;
  std::int64_t grad_accum = 1;
  std::optional<std::int64_t> global_batch;

  int steps = 10;
  int warmup = 2;
  int window = 10;

  Compute compute = Compute::real;
  std::optional<double> flops;
  std::string calibration_file;
  std::string calibration_text;  ///< its contents, once read
  Jitter jitter;
  double contention = 0.0;  ///< imitated compute takes 1 + this times as long while a collective is under way

  DType param_dtype = DType::bf16;
  DType reduce_dtype = DType::fp32;
  Fp32Accumulation fp32_grad_accum = Fp32Accumulation::off;
  double clip = 0.0;

  Layout layout = Layout::per_parameter;
  Wrap wrap = Wrap::blocks;
  ReshardAfterForward reshard = ReshardAfterForward::all;
  Prefetch prefetch;
  int communicators = 1;
  ReduceScatterWait rs_wait = ReduceScatterWait::next;
  std::int64_t bucket_mb = default_bucket_mb;
  ParameterGather parameter_gather = ParameterGather::end;
  Recompute recompute = Recompute::none;

  /// The mesh; -1 is derived from the world size.
  int dp = -1;
  int tp = 1;
  SequenceParallel sequence_parallel = SequenceParallel::off;

  Algorithm algorithm = Algorithm::automatic;
  Progress progress = Progress::poll;
  std::optional<int> ranks_per_node;
  Payload payload = Payload::real;
  double stall_timeout_s = default_stall_limit_s;
  int threads = 0;  ///< 0: allowed CPUs / ranks on the host
  std::uint64_t seed = 1;
  Check check = Check::off;
  BackendChoice backend = BackendChoice::mpi;
  TraceLevel trace = TraceLevel::events;

  bool plan = false;
  int plan_rank = 0;
  std::string output;
  ExistingFile existing_file = ExistingFile::refuse;
  std::optional<int> ranks;
  bool show_version = false;
};

/// What --help prints is thrown, so that main has one way out.
struct HelpRequested {
  std::string text;
};

/// What became of a command line: options, the help text asked for, or why it is refused.
struct ParsedOptions {
  std::optional<Options> options;
  std::string help;
  std::string error;
};

/// parse_options without exceptions.
ParsedOptions try_parse_options(const std::string& scenario, const std::set<OptionFamily>& families,
                                const std::vector<std::string>& arguments, Build build = Build::real);

/// Parses the command line of a scenario that accepts `families`. Throws UsageError or HelpRequested.
Options parse_options(const std::string& scenario, const std::set<OptionFamily>& families,
                      const std::vector<std::string>& arguments, Build build = Build::real);

/// The model's dimensions as JSON text (an object), as they stand in a file's configuration.
std::string model_json(const ModelDims& dims);

/// Every effective option under its long name, as JSON text (an object).
std::string options_json(const Options& options);

/// Derives dp or tp for a world of `ranks`; throws UsageError where they do not multiply to it, or tp cannot
/// divide the model. Outside mesh2d: all ranks are data-parallel.
void resolve_mesh(Options& options, int ranks);

/// Fits grad_accum to --global-batch for `dp` data-parallel ranks; throws UsageError where it does not divide
/// or exceeds the token hash's fields.
void resolve_batch(Options& options, int dp);

/// Throws UsageError where a simulation of `ranks` would compute or move more real values than one process
/// can: with --compute real up to 64 ranks, with --payload real up to 256.
void check_simulated_size(const Options& options, int ranks);

}  // namespace shardbench
