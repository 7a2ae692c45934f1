#include "src/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "src/command_line.hpp"
#include "src/errors.hpp"
#include "src/model/initial_state.hpp"
#include "src/option_parsing.hpp"
#include "src/options_choices.hpp"

namespace shardbench {
namespace {

const Choices<Compute> compute_choices = {{"real", Compute::real}, {"timed", Compute::timed}};
const Choices<DType> dtype_choices = {{"bf16", DType::bf16}, {"fp32", DType::fp32}};
const Choices<Layout> layout_choices = {{"per-parameter", Layout::per_parameter}, {"flat", Layout::flat}};
const Choices<Wrap> wrap_choices = {{"blocks", Wrap::blocks}, {"root", Wrap::root}};
const Choices<ReshardAfterForward> reshard_choices = {{"all", ReshardAfterForward::all},
                                                      {"blocks", ReshardAfterForward::blocks},
                                                      {"none", ReshardAfterForward::none}};
const Choices<ReduceScatterWait> rs_wait_choices = {{"next", ReduceScatterWait::next},
                                                    {"end", ReduceScatterWait::end}};
const Choices<ParameterGather> parameter_gather_choices = {{"end", ParameterGather::end},
                                                           {"overlap", ParameterGather::overlap}};
const Choices<Recompute> recompute_choices = {{"none", Recompute::none}, {"full", Recompute::full}};
const Choices<BackendChoice> backend_choices = {{"mpi", BackendChoice::mpi}, {"nccl", BackendChoice::nccl}};
const Choices<Payload> payload_choices = {{"real", Payload::real}, {"phantom", Payload::phantom}};
const Choices<TraceLevel> trace_choices = {
    {"none", TraceLevel::none}, {"steps", TraceLevel::steps}, {"events", TraceLevel::events}};

/// Options of other scenarios, so that using one is explained instead of merely unknown.
const std::vector<std::pair<std::string, std::string>>& options_elsewhere() {
  static const std::vector<std::pair<std::string, std::string>> table = {
      {"--layout", "zero3, mesh2d"},
      {"--wrap", "zero3, mesh2d"},
      {"--reshard-after-forward", "zero3, mesh2d"},
      {"--prefetch", "zero3, mesh2d"},
      {"--communicators", "zero1, zero2, zero3, mesh2d"},
      {"--rs-wait", "zero1, zero2, zero3, mesh2d"},
      {"--bucket-mb", "ddp, zero1, zero2"},
      {"--param-gather", "zero1, zero2"},
      {"--dp", "mesh2d"},
      {"--tp", "mesh2d"},
      {"--sequence-parallel", "mesh2d"},
  };
  return table;
}

/// Of --jitter and --contention: beyond it nothing is imitated but a rank that stands still.
constexpr double slowest = 10.0;

// One process holds all simulated ranks' values and computes all of their arithmetic.
constexpr int most_real_payloads = 256;
constexpr int most_real_computes = 64;

/// Declares options on a CLI11 app and keeps the text values that are converted after parsing.
class Parser {
 public:
  Parser(const std::string& scenario, const std::set<OptionFamily>& families, Build build)
      : app_("shardbench: " + scenario), build_(build) {
    options_.scenario = scenario;
    if (build == Build::simulated) {
      options_.compute = Compute::timed;
      options_.payload = Payload::phantom;
      options_.progress = Progress::stream;
      options_.algorithm = Algorithm::nccl;
    }
    app_.allow_extras();
    app_.set_help_flag();  // handled by parse(), whose caller owns the output
    app_.add_flag("-h,--help", help_, "this text");
    app_.add_flag("--version", options_.show_version, "versions of shardbench and its libraries, then exit");
    add_model();
    add_training();
    add_compute();
    if (families.contains(OptionFamily::gather_groups)) add_gather_groups();
    if (families.contains(OptionFamily::ordered_collectives)) add_ordered_collectives();
    if (families.contains(OptionFamily::buckets))
      add_whole(app_, "--bucket-mb", options_.bucket_mb, {1, 1 << 20}, "bucket cap, MiB of the reduce dtype");
    if (families.contains(OptionFamily::parameter_gather))
      add_choice("--param-gather", options_.parameter_gather, parameter_gather_choices,
                 "parameters gathered after the update, or bucket by bucket under the next forward");
    if (families.contains(OptionFamily::mesh)) add_mesh();
    add_communication();
    add_output();
  }

  Options parse(std::vector<std::string> arguments) {
    parse_arguments(app_, std::move(arguments));
    if (help_) throw HelpRequested{app_.help()};
    for (const std::string& extra : app_.remaining()) refuse(extra);
    refuse_repeated(app_);
    finish();
    return options_;
  }

 private:
  template <class T>
  void add_choice(const std::string& flags, T& value, const Choices<T>& choices, const std::string& help) {
    const auto convert = [&value, &choices, flags](const std::string& text) {
      for (const auto& [name, candidate] : choices)
        if (name == text) {
          value = candidate;
          return true;
        }
      throw CLI::ValidationError(fmt::format("{} {} is not one of {}", flags, text, list_of(choices)));
    };
    app_.add_option_function<std::string>(
            flags, [convert](const std::string& text) { convert(text); },
            fmt::format("{}: {}", list_of(choices), help))
        ->type_name("CHOICE")
        ->default_str(name_in(choices, value));
  }

  void add_model() {
    app_.add_option("--model", options_.model, "preset: tiny 25m 124m 1b 7b 8b 70b 405b")
        ->type_name("CHOICE")
        ->capture_default_str();
    add_whole(app_, "--layers", layers_, {1, 1 << 24}, "override: blocks");
    add_whole(app_, "--hidden", hidden_, {1, 1 << 24}, "override: width of the residual stream");
    add_whole(app_, "--heads", heads_, {1, 1 << 24}, "override: query heads");
    add_whole(app_, "--kv-heads", kv_heads_, {1, 1 << 24}, "override: key/value heads");
    add_whole(app_, "--ffn", ffn_, {1, 1 << 24}, "override: width of the feed-forward layer");
    add_whole(app_, "--vocab", vocab_, {1, 1 << 24}, "override: vocabulary size");
    add_whole(app_, "--seq", seq_, {1, 1 << 24}, "override: tokens per sequence");
    app_.add_flag("--tied", tied_, "override: the head is the embedding");
    app_.add_flag("--untied", untied_, "override: the head has a tensor of its own");
  }

  void add_training() {
    const WholeRange positive{1, sequence_limit - 1};
    const WholeRange steps{1, step_limit};
    add_whole(app_, "--micro-batch", options_.micro_batch, positive, "sequences per micro-batch and rank");
    accum_ =
        add_whole(app_, "--grad-accum", options_.grad_accum, positive, "micro-batches per optimizer step");
    add_whole(app_, "--global-batch", options_.global_batch, positive,
              "sequences per optimizer step; derives --grad-accum");
    add_whole(app_, "-n,--steps", options_.steps, steps, "timed optimizer steps");
    add_whole(app_, "-w,--warmup", options_.warmup, {0, step_limit}, "warm-up optimizer steps");
    add_whole(app_, "--window", options_.window, steps,
              "steps that run back to back; from the second window on, the first counts as warm-up");
    add_choice("--param-dtype", options_.param_dtype, dtype_choices,
               "storage of parameters and resting gradients");
    add_choice("--reduce-dtype", options_.reduce_dtype, dtype_choices, "gradients on the wire");
    app_.add_flag("--fp32-grad-accum", fp32_grad_accum_,
                  "accumulate gradients in fp32 beside the resting ones");
    add_real(app_, "--clip", options_.clip, {0.0, 1e30}, "clip gradients to this global norm; 0 = off");
    add_whole(app_, "--seed", options_.seed, {0, seed_limit - 1}, "of parameters and data, below 65536");
    app_.add_flag("-c,--check", check_, "compare gradients and masters with an unsharded reference");
    add_choice("--recompute", options_.recompute, recompute_choices,
               "keep a block's activations, or only its input and run its forward again in backward");
  }

  void add_compute() {
    add_choice("--compute", options_.compute, compute_choices,
               "a transformer step, or sleeps of the same length");
    add_real(app_, "--flops", options_.flops, {1.0, 1e30},
             build_ != Build::simulated
                 ? "with timed: sustained FLOP/s to imitate"
                 : "with timed: sustained FLOP/s, instead of what the platform's GPU would take");
    calibration_ = app_.add_option("--calibration", options_.calibration_file,
                                   "with timed: seconds per layer kind (JSON)")
                       ->type_name("FILE");
    app_.add_option(
            "--jitter", jitter_,
            "with timed: rank=S,step=S or one of them: random slow-downs of a rank, and of a rank in a "
            "step; S from 0 to 10 is the standard deviation of their logarithm")
        ->type_name("SIGMAS");
    add_real(app_, "--contention", options_.contention, {0.0, slowest},
             "with timed: compute takes 1 + this times as long while a collective is under way");
    add_whole(app_, "--threads", options_.threads, {0, 4096},
              "OpenMP threads per rank; 0 = allowed CPUs / ranks on the host");
  }

  void add_gather_groups() {
    add_choice("--layout", options_.layout, layout_choices, "FSDP2 or FSDP1 style shards");
    add_choice("--wrap", options_.wrap, wrap_choices, "gather groups; tied weights need root");
    wrap_ = app_.get_option("--wrap");
    add_choice("--reshard-after-forward", options_.reshard, reshard_choices, "groups freed after forward");
    app_.add_option("--prefetch", prefetch_, "groups gathered ahead: F[,B]; 0 = off")
        ->type_name("F[,B]")
        ->capture_default_str();
  }

  void add_ordered_collectives() {
    add_whole(app_, "--communicators", options_.communicators, {1, 2},
              "all-gathers and reduce-scatters in one order, or in two");
    add_choice("--rs-wait", options_.rs_wait, rs_wait_choices,
               "wait for a reduce-scatter before the next, or at the end");
  }

  void add_mesh() {
    add_whole(app_, "--dp", options_.dp, {-1, 1 << 24}, "data-parallel ranks; -1 = derived");
    add_whole(app_, "--tp", options_.tp, {-1, 1 << 24}, "tensor-parallel ranks; -1 = derived");
    app_.add_flag("--sequence-parallel", sequence_parallel_,
                  "cut the residual stream along the sequence between tensor-parallel regions");
  }

  void add_communication() {
    add_choice("--algorithm", options_.algorithm, algorithm_choices,
               "our schedules, or the library's collectives; nccl and coarse in simulation and plans only");
    add_choice("--progress", options_.progress, progress_choices,
               "how pending collectives advance; stream in simulation only");
    add_choice("--payload", options_.payload, payload_choices,
               "phantom: true sizes, no contents (with timed)");
    payload_ = app_.get_option("--payload");
    app_.add_option("--backend", backend_, "mpi, or where it is built in nccl (CUDA devices)")
        ->type_name("CHOICE")
        ->capture_default_str();
    add_real(app_, "--stall-timeout", options_.stall_timeout_s, {0.0, 1e9}, stall_timeout_help);
    add_whole(app_, "--ranks-per-node", options_.ranks_per_node, {1, 1 << 24},
              "node size, for hierarchical; default: what MPI says, with --plan one node");
    add_whole(app_, "--ranks", options_.ranks, {1, 1 << 24},
              "the world size expected (or, with --plan, planned for)");
  }

  void add_output() {
    add_choice("--trace", options_.trace, trace_choices, "how much is kept");
    app_.add_flag("--plan", options_.plan,
                  "print one step's events, ledger and memory as JSON; runs nothing");
    rank_ = add_whole(app_, "--rank", options_.plan_rank, {0, 1 << 24}, "with --plan: whose");
    output_ =
        app_.add_option("-o,--output", options_.output, "HDF5 file; default <scenario>_n<N>_<time>_<job>.h5")
            ->type_name("FILE");
    app_.add_flag("--overwrite", overwrite_, "replace an existing output file");
  }

  [[noreturn]] void refuse(const std::string& argument) {
    const std::string name = argument.substr(0, argument.find('='));
    for (const auto& [option, scenarios] : options_elsewhere())
      if (option == name)
        throw UsageError(fmt::format("{} is not an option of {} (it belongs to {}); leave it out", name,
                                     options_.scenario, scenarios));
    refuse_unknown(app_, argument);
  }

  void finish() {
    finish_model();
    if (sequence_parallel_) options_.sequence_parallel = SequenceParallel::on;
    if (options_.global_batch && accum_->count() > 0)
      throw UsageError("--global-batch derives what --grad-accum sets; pass one of them");
    finish_backend();
    if (overwrite_) options_.existing_file = ExistingFile::overwrite;
    if (check_) options_.check = Check::on;
    if (fp32_grad_accum_) options_.fp32_grad_accum = Fp32Accumulation::on;

    finish_prefetch();
    finish_jitter();
    for (const CLI::Option* path : {output_, calibration_})
      if (path->count() > 0 && path->as<std::string>().empty())
        throw UsageError(fmt::format("{} is empty (an unset variable?); name a file", path->get_name()));
    if (options_.fp32_grad_accum == Fp32Accumulation::on && options_.param_dtype == DType::fp32)
      throw UsageError(
          "--fp32-grad-accum with --param-dtype fp32 would keep the same sum twice; leave one out");
    finish_compute();
    if (options_.plan && options_.plan_rank >= options_.ranks.value_or(1))
      throw UsageError(fmt::format("--rank {} does not exist among --ranks {}; ranks count from 0",
                                   options_.plan_rank, options_.ranks.value_or(1)));
    if (!options_.plan && rank_->count() > 0)
      throw UsageError("--rank says whose plan to print; add --plan, or leave it out");
    const std::int64_t all_steps = std::int64_t{options_.steps} + options_.warmup;
    if (all_steps > step_limit)
      throw UsageError(
          fmt::format("--warmup + --steps is {}, but steps enter the data's hash below {}; run fewer",
                      all_steps, step_limit));
  }

  /// --backend and what it cannot do.
  void finish_backend() {
    if (backend_ == "mpi") return;
    if (backend_ != "nccl" || build_ != Build::accelerated)
      throw UsageError(fmt::format("--backend {} is not built in; use --backend mpi", backend_));
    options_.backend = BackendChoice::nccl;
    if (options_.compute == Compute::timed)
      throw UsageError(
          "--backend nccl computes on its devices; leave out --compute timed or use --backend mpi");
    if (options_.algorithm != Algorithm::automatic && options_.algorithm != Algorithm::native)
      throw UsageError(fmt::format(
          "--backend nccl leaves the algorithm to NCCL; leave out --algorithm {} or use --backend mpi",
          name_of(options_.algorithm)));
  }

  /// --compute and what only makes sense with one of its choices.
  void finish_compute() {
    const bool timed = options_.compute == Compute::timed;
    if (!timed && payload_->count() == 0) options_.payload = Payload::real;
    const int rates = (options_.flops ? 1 : 0) + (options_.calibration_file.empty() ? 0 : 1);
    if (timed && rates == 0 && build_ != Build::simulated)
      throw UsageError("--compute timed needs to know how long: pass --flops F or --calibration FILE");
    if (timed && rates == 2) throw UsageError("--flops and --calibration contradict each other; pass one");
    if (!timed && rates != 0)
      throw UsageError("--flops and --calibration describe imitated compute; add --compute timed");
    if (!timed && (options_.jitter.rank > 0.0 || options_.jitter.step > 0.0 || options_.contention > 0.0))
      throw UsageError("--jitter and --contention slow imitated compute down; add --compute timed");
    if (options_.payload == Payload::phantom && !timed)
      throw UsageError("--payload phantom has no contents to compute with; add --compute timed");
    if (options_.check == Check::on && timed)
      throw UsageError(
          "--check compares numbers, which --compute timed does not produce; use --compute real or "
          "leave it out");
  }

  void finish_model() {
    const auto preset = find_preset(options_.model);
    if (!preset) {
      std::string names;
      for (const ModelPreset& p : model_presets()) names += fmt::format(" {}", p.name);
      throw UsageError(fmt::format("--model {} is unknown; presets:{}", options_.model, names));
    }
    if (tied_ && untied_) throw UsageError("--tied and --untied contradict each other; pass one");
    ModelDims& d = options_.dims = *preset;
    d.layers = layers_.value_or(d.layers);
    d.hidden = hidden_.value_or(d.hidden);
    d.heads = heads_.value_or(d.heads);
    d.kv_heads = kv_heads_.value_or(d.kv_heads);
    d.ffn = ffn_.value_or(d.ffn);
    d.vocab = vocab_.value_or(d.vocab);
    d.seq = seq_.value_or(d.seq);
    if (tied_) d.head = Head::tied;
    if (untied_) d.head = Head::own;
    validate(d);
    if (d.head == Head::tied) {
      if (wrap_ != nullptr && wrap_->count() > 0 && options_.wrap == Wrap::blocks)
        throw UsageError(
            "--wrap blocks would put the tied embedding into two groups; use --wrap root or --untied");
      options_.wrap = Wrap::root;
    }
  }

  void finish_prefetch() {
    const auto number = [&](const std::string& text) {
      const std::optional<std::int64_t> groups = whole_number(text);
      if (!groups || *groups < 0 || *groups > 999'999)
        throw UsageError(
            fmt::format("--prefetch '{}' is not F or F,B with whole numbers from 0 to 999999", prefetch_));
      return static_cast<int>(*groups);
    };
    const std::size_t comma = prefetch_.find(',');
    options_.prefetch.forward = number(prefetch_.substr(0, comma));
    options_.prefetch.backward =
        comma == std::string::npos ? options_.prefetch.forward : number(prefetch_.substr(comma + 1));
  }

  void finish_jitter() {
    if (app_.count("--jitter") == 0) return;
    std::vector<std::string> given;
    for (std::size_t begin = 0; begin <= jitter_.size();) {
      const std::size_t comma = std::min(jitter_.find(',', begin), jitter_.size());
      const std::string part = jitter_.substr(begin, comma - begin);
      const std::size_t equals = std::min(part.find('='), part.size());
      const std::string name = part.substr(0, equals);
      const bool again = std::find(given.begin(), given.end(), name) != given.end();
      if ((name != "rank" && name != "step") || equals == part.size() || again)
        throw UsageError(fmt::format(
            "--jitter '{}' is not rank=S,step=S or one of them; pass such as rank=0.02,step=0.05", jitter_));
      (name == "rank" ? options_.jitter.rank : options_.jitter.step) =
          parse_real("--jitter " + name, part.substr(equals + 1), {0.0, slowest});
      given.push_back(name);
      begin = comma + 1;
    }
  }

  CLI::App app_;
  Build build_;
  Options options_;
  std::optional<std::int64_t> layers_, hidden_, heads_, kv_heads_, ffn_, vocab_, seq_;
  std::string prefetch_ = "1";
  std::string jitter_;
  std::string backend_ = "mpi";
  CLI::Option* wrap_ = nullptr;
  CLI::Option* output_ = nullptr;
  CLI::Option* calibration_ = nullptr;
  CLI::Option* payload_ = nullptr;
  CLI::Option* accum_ = nullptr;
  CLI::Option* rank_ = nullptr;
  bool help_ = false;
  bool tied_ = false;
  bool untied_ = false;
  bool fp32_grad_accum_ = false;
  bool check_ = false;
  bool overwrite_ = false;
  bool sequence_parallel_ = false;
};

}  // namespace

Options parse_options(const std::string& scenario, const std::set<OptionFamily>& families,
                      const std::vector<std::string>& arguments, Build build) {
  return Parser(scenario, families, build).parse(arguments);
}

ParsedOptions try_parse_options(const std::string& scenario, const std::set<OptionFamily>& families,
                                const std::vector<std::string>& arguments, Build build) {
  ParsedOptions parsed;
  try {
    parsed.options = parse_options(scenario, families, arguments, build);
  } catch (const HelpRequested& help) {
    parsed.help = help.text;
  } catch (const UsageError& error) {
    parsed.error = one_line(error.what());
  }
  return parsed;
}

std::string model_json(const ModelDims& d) {
  const nlohmann::ordered_json json = {
      {"layers", d.layers}, {"hidden", d.hidden}, {"heads", d.heads}, {"kv_heads", d.kv_heads},
      {"ffn", d.ffn},       {"vocab", d.vocab},   {"seq", d.seq},     {"tied", d.head == Head::tied}};
  return json.dump();
}

std::string options_json(const Options& o) {
  nlohmann::ordered_json json = {
      {"scenario", o.scenario},
      {"model", o.model},
      {"micro-batch", o.micro_batch},
      {"grad-accum", o.grad_accum},
      {"global-batch",
       o.global_batch ? nlohmann::ordered_json(*o.global_batch) : nlohmann::ordered_json(nullptr)},
      {"steps", o.steps},
      {"warmup", o.warmup},
      {"window", o.window},
      {"compute", name_in(compute_choices, o.compute)},
      {"flops", o.flops ? nlohmann::ordered_json(*o.flops) : nlohmann::ordered_json(nullptr)},
      {"calibration", o.calibration_file},
      {"jitter", o.jitter.rank > 0.0 || o.jitter.step > 0.0
                     ? nlohmann::ordered_json{{"rank", o.jitter.rank}, {"step", o.jitter.step}}
                     : nlohmann::ordered_json(nullptr)},
      {"contention", o.contention},
      {"param-dtype", name_of(o.param_dtype)},
      {"reduce-dtype", name_of(o.reduce_dtype)},
      {"fp32-grad-accum", o.fp32_grad_accum == Fp32Accumulation::on},
      {"clip", o.clip},
      {"recompute", name_in(recompute_choices, o.recompute)},
      {"layout", name_in(layout_choices, o.layout)},
      {"wrap", name_in(wrap_choices, o.wrap)},
      {"reshard-after-forward", name_in(reshard_choices, o.reshard)},
      {"prefetch", fmt::format("{},{}", o.prefetch.forward, o.prefetch.backward)},
      {"communicators", o.communicators},
      {"rs-wait", name_in(rs_wait_choices, o.rs_wait)},
      {"bucket-mb", o.bucket_mb},
      {"param-gather", name_in(parameter_gather_choices, o.parameter_gather)},
      {"dp", o.dp},
      {"tp", o.tp},
      {"sequence-parallel", o.sequence_parallel == SequenceParallel::on},
      {"algorithm", name_of(o.algorithm)},
      {"progress", name_in(progress_choices, o.progress)},
      {"ranks-per-node",
       o.ranks_per_node ? nlohmann::ordered_json(*o.ranks_per_node) : nlohmann::ordered_json(nullptr)},
      {"payload", name_in(payload_choices, o.payload)},
      {"backend", name_in(backend_choices, o.backend)},
      {"stall-timeout", o.stall_timeout_s},
      {"threads", o.threads},
      {"seed", o.seed},
      {"check", o.check == Check::on},
      {"trace", name_in(trace_choices, o.trace)},
  };
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // a path need not be UTF-8
}

void resolve_mesh(Options& options, int ranks) {
  int& dp = options.dp;
  int& tp = options.tp;
  if (dp == 0 || tp == 0)
    throw UsageError("--dp and --tp count ranks from 1; 0 ranks train nothing (-1 derives one of them)");
  if (dp == -1 && tp == -1)
    throw UsageError("--dp -1 and --tp -1 leave nothing to derive from; give one of them");
  if (dp == -1 && ranks % tp == 0) dp = ranks / tp;
  if (tp == -1 && ranks % dp == 0) tp = ranks / dp;
  if (dp == -1 || tp == -1 || dp * tp != ranks)
    throw UsageError(
        fmt::format("--dp {} x --tp {} does not make {} ranks; choose factors of {}", dp, tp, ranks, ranks));
  const ModelDims& d = options.dims;
  if (d.heads % tp != 0 || d.kv_heads % tp != 0)
    throw UsageError(fmt::format(
        "--tp {} does not divide {} heads and {} kv heads, which tensor parallelism shares out whole; "
        "choose a divisor of {}",
        tp, d.heads, d.kv_heads, std::gcd(d.heads, d.kv_heads)));
  if (options.sequence_parallel == SequenceParallel::on && d.seq % tp != 0)
    throw UsageError(
        fmt::format("--sequence-parallel cuts sequences of {} tokens into {} equal parts, which does not "
                    "come out even; choose --seq a multiple of {} or leave it out",
                    d.seq, tp, tp));
}

void resolve_batch(Options& options, int dp) {
  const std::int64_t per_micro = options.micro_batch * dp;
  if (options.global_batch) {
    if (*options.global_batch % per_micro != 0)
      throw UsageError(
          fmt::format("--global-batch {} is not a multiple of --micro-batch {} x {} data-parallel ranks; "
                      "choose a multiple of {}",
                      *options.global_batch, options.micro_batch, dp, per_micro));
    options.grad_accum = *options.global_batch / per_micro;
  }
  const std::int64_t sequences = per_micro * options.grad_accum;
  if (sequences >= sequence_limit)
    throw UsageError(
        fmt::format("the global batch would be {} sequences, but sequences enter the data's hash below "
                    "{}; use a smaller --micro-batch or --grad-accum",
                    sequences, sequence_limit));
}

void check_simulated_size(const Options& options, int ranks) {
  if (options.compute == Compute::real && ranks > most_real_computes)
    throw UsageError(fmt::format(
        "--compute real computes every simulated rank's step in one process, up to {} ranks, not {}; "
        "use --compute timed",
        most_real_computes, ranks));
  if (options.payload == Payload::real && ranks > most_real_payloads)
    throw UsageError(fmt::format(
        "--payload real keeps every simulated rank's values in one process, up to {} ranks, not {}; "
        "use --payload phantom",
        most_real_payloads, ranks));
}

}  // namespace shardbench
