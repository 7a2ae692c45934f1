#include "src/collectives/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/command_line.hpp"
#include "src/errors.hpp"
#include "src/option_parsing.hpp"
#include "src/options_choices.hpp"

namespace shardbench {
namespace {

const Choices<DType> dtype_choices = {{"float", DType::fp32}, {"bfloat16", DType::bf16}};
const Choices<Reduction> reduction_choices = {{"sum", Reduction::sum},
                                              {"prod", Reduction::product},
                                              {"max", Reduction::maximum},
                                              {"min", Reduction::minimum},
                                              {"avg", Reduction::average}};
const Choices<Collective> collective_choices = {{"all_reduce", Collective::all_reduce},
                                                {"reduce_scatter", Collective::reduce_scatter},
                                                {"all_gather", Collective::all_gather}};

template <class T>
std::vector<std::string> names_in(const Choices<T>& choices, const std::vector<T>& values) {
  std::vector<std::string> names;
  names.reserve(values.size());
  for (const T value : values) names.push_back(name_in(choices, value));
  return names;
}

template <class T>
T one_of(const Choices<T>& choices, const std::string& option, const std::string& text) {
  for (const auto& [name, value] : choices)
    if (name == text) return value;
  throw UsageError(fmt::format("{} {} is not one of {}", option, text, list_of(choices)));
}

/// One name, or `all`.
template <class T>
std::vector<T> one_or_all(const Choices<T>& choices, const std::string& option, const std::string& text) {
  if (text != "all") {
    for (const auto& [name, value] : choices)
      if (name == text) return {value};
    throw UsageError(fmt::format("{} {} is not one of {}|all", option, text, list_of(choices)));
  }
  std::vector<T> values;
  for (const auto& [name, value] : choices) values.push_back(value);
  return values;
}

class Parser {
 public:
  explicit Parser(Build build) {
    if (build == Build::simulated) {
      options_.checks = 0;
      algorithm_ = "nccl";
      progress_ = "stream";
    }
    app_.allow_extras();
    app_.set_help_flag();  // handled by parse(), whose caller owns the output
    app_.add_flag("-h,--help", help_, "this text");
    app_.add_flag("--version", options_.show_version, "versions of shardbench and its libraries, then exit");
    app_.add_option("--collective", collectives_,
                    fmt::format("which, comma-separated: {}", list_of(collective_choices, ",")))
        ->type_name("LIST")
        ->capture_default_str();
    add_sweep();
    app_.add_option("--algorithm", algorithm_,
                    list_of(algorithm_choices) +
                        ": our schedules, or the library's collectives; nccl and coarse in simulation only")
        ->type_name("CHOICE")
        ->capture_default_str();
    app_.add_option(
            "--progress", progress_,
            list_of(progress_choices) + ": how pending collectives advance; stream in simulation only")
        ->type_name("CHOICE")
        ->capture_default_str();
    add_real(app_, "--stall-timeout", options_.stall_timeout_s, {0.0, 1e9}, stall_timeout_help);
    add_whole(app_, "--ranks-per-node", options_.ranks_per_node, {1, 1 << 24},
              "node size, for hierarchical; default: what MPI says");
    add_whole(app_, "--ranks", options_.ranks, {1, 1 << 24},
              "the world size expected (or, with --plan, planned for)");
    app_.add_flag("--plan", options_.plan, "print what would be measured as JSON; runs nothing");
    json_ = app_.add_option("-J,--output_file", options_.json_file,
                            "JSON file, besides; an existing one is kept and the name gets a number")
                ->type_name("FILE");
    output_ =
        app_.add_option("--output", options_.output, "HDF5 file; default collectives_n<N>_<time>_<job>.h5")
            ->type_name("FILE");
    app_.add_flag("--overwrite", overwrite_, "replace an existing HDF5 file");
  }

  CollectivesOptions parse(std::vector<std::string> arguments, std::string& help) {
    parse_arguments(app_, std::move(arguments));
    if (help_) help = app_.help();
    for (const std::string& extra : app_.remaining()) refuse_unknown(app_, extra);
    refuse_repeated(app_);
    finish();
    return options_;
  }

 private:
  void add_sweep() {
    const auto add_size = [this](const std::string& flags, std::string& text, const std::string& help) {
      app_.add_option(flags, text, help)->type_name("SIZE")->default_str(text);
    };
    add_size("-b,--minbytes", min_, "smallest size; suffixes K, M, G are powers of 1024: 1.5M, 1e9");
    add_size("-e,--maxbytes", max_, "largest size");
    add_size("-i,--stepbytes", step_, "increment between sizes");
    add_whole(app_, "-f,--stepfactor", options_.step_factor, {0, std::int64_t{1} << 40},
              "factor between sizes, instead of an increment; 1 = off");
    add_whole(app_, "-n,--iters", options_.iterations, {1, 1 << 24},
              "timed iterations of each size or window");
    add_real(app_, "--precision", options_.precision, {1e-9, 1.0},
             "repeat windows of --iters until the 95 % interval of their median is this narrow, relative to "
             "the median; such as 0.05");
    budget_ = add_real(app_, "--budget", options_.budget_s, {1e-9, 1e6},
                       "with --precision: at most so many seconds a size");
    add_whole(app_, "-w,--warmup_iters", options_.warmup, {0, 1 << 24},
              "iterations of each size before them");
    add_whole(app_, "-c,--check", options_.checks, {0, 1 << 24},
              "iterations of each size whose result is checked; 0 = off");
    app_.add_option("-d,--datatype", dtype_, list_of(dtype_choices) + "|all")
        ->type_name("CHOICE")
        ->capture_default_str();
    app_.add_option("-o,--op", reduction_, list_of(reduction_choices) + "|all: the reduction")
        ->type_name("CHOICE")
        ->capture_default_str();
  }

  void finish() {
    for (const CLI::Option* path : {output_, json_})
      if (path->count() > 0 && path->as<std::string>().empty())
        throw UsageError(fmt::format("{} is empty (an unset variable?); name a file", path->get_name()));
    if (budget_->count() > 0 && !options_.precision)
      throw UsageError("--budget limits what --precision repeats; add --precision, or leave it out");
    if (overwrite_) options_.existing_file = ExistingFile::overwrite;
    options_.algorithm = one_of(algorithm_choices, "--algorithm", algorithm_);
    options_.progress = one_of(progress_choices, "--progress", progress_);
    options_.dtypes = one_or_all(dtype_choices, "--datatype", dtype_);
    options_.reductions = one_or_all(reduction_choices, "--op", reduction_);
    finish_collectives();
    options_.min_bytes = parse_size("--minbytes", min_);
    options_.max_bytes = parse_size("--maxbytes", max_);
    options_.step_bytes = parse_size("--stepbytes", step_);
    if (options_.min_bytes > options_.max_bytes)
      throw UsageError(
          fmt::format("--minbytes {} is above --maxbytes {}; swap them, or raise --maxbytes", min_, max_));
    if (options_.min_bytes == options_.max_bytes) return;
    if (options_.step_factor > 1 && options_.min_bytes == Bytes(0))
      throw UsageError("--stepfactor never leaves --minbytes 0; start above 0, or use --stepbytes");
    if (options_.step_factor <= 1 && options_.step_bytes == Bytes(0))
      throw UsageError(fmt::format(
          "--stepbytes 0 never reaches --maxbytes {}; use a positive increment or --stepfactor", max_));
  }

  void finish_collectives() {
    options_.collectives.clear();
    for (std::size_t begin = 0; begin <= collectives_.size();) {
      const std::size_t comma = std::min(collectives_.find(',', begin), collectives_.size());
      const std::string name = collectives_.substr(begin, comma - begin);
      options_.collectives.push_back(one_of(collective_choices, "--collective", name));
      begin = comma + 1;
    }
  }

  CLI::App app_{"shardbench collectives: times and checks collectives alone, in nccl-tests' columns"};
  CollectivesOptions options_;
  std::string collectives_ = "all_reduce,reduce_scatter,all_gather";
  std::string min_ = "32M";
  std::string max_ = "32M";
  std::string step_ = "1M";
  std::string dtype_ = "float";
  std::string reduction_ = "sum";
  std::string algorithm_ = "auto";
  std::string progress_ = "poll";
  CLI::Option* budget_ = nullptr;
  CLI::Option* json_ = nullptr;
  CLI::Option* output_ = nullptr;
  bool help_ = false;
  bool overwrite_ = false;
};

}  // namespace

std::optional<Bytes> CollectivesOptions::size_after(Bytes size) const {
  // Sizes stay below 2^50 and factors below 2^40, so compare before multiplying.
  if (step_factor > 1 && size.count() > max_bytes.count() / step_factor) return std::nullopt;
  const Bytes next = step_factor > 1 ? size * step_factor : size + step_bytes;
  return next <= max_bytes && next > size ? std::optional(next) : std::nullopt;
}

Bytes parse_size(const std::string& option, const std::string& text) {
  constexpr double largest = 0x1p50;  // a pebibyte
  const std::size_t end = std::min(text.find_first_of("KkMmGg"), text.size());
  std::string suffix = text.substr(end);
  if (suffix.size() == 2 && suffix.back() == 'B') suffix.pop_back();  // 4MB is 4M, as nccl-tests reads it
  double unit = 0.0;
  if (suffix.empty()) unit = 1.0;
  if (suffix == "K" || suffix == "k") unit = 0x1p10;
  if (suffix == "M" || suffix == "m") unit = 0x1p20;
  if (suffix == "G" || suffix == "g") unit = 0x1p30;
  const std::string_view whole = text;
  const std::optional<double> number = real_number(whole.substr(0, end));
  const double size = number.value_or(-1.0) * unit;
  const bool divided = suffix.empty() && size != std::floor(size);  // 1.5 bytes
  if (!number || text.starts_with('-') || unit == 0.0 || divided || size > largest)
    throw UsageError(fmt::format(
        "{} {} is not a size from 0 to 1048576G; pass a whole number of bytes, or a number with K, "
        "M or G for powers of 1024, such as 32M",
        option, text));
  return Bytes(static_cast<std::int64_t>(size));
}

ParsedCollectivesOptions parse_collectives_options(const std::vector<std::string>& arguments, Build build) {
  ParsedCollectivesOptions parsed;
  try {
    CollectivesOptions options = Parser(build).parse(arguments, parsed.help);
    if (parsed.help.empty()) parsed.options = std::move(options);
  } catch (const UsageError& error) {
    // Who asks for help beside a mistake gets help.
    if (parsed.help.empty()) parsed.error = one_line(error.what());
  }
  return parsed;
}

std::string options_json(const CollectivesOptions& o) {
  const nlohmann::ordered_json json = {
      {"collective", names_in(collective_choices, o.collectives)},
      {"minbytes", o.min_bytes.count()},
      {"maxbytes", o.max_bytes.count()},
      {"stepbytes", o.step_bytes.count()},
      {"stepfactor", o.step_factor},
      {"iters", o.iterations},
      {"precision", o.precision ? nlohmann::ordered_json(*o.precision) : nlohmann::ordered_json(nullptr)},
      {"budget", o.precision ? nlohmann::ordered_json(o.budget_s) : nlohmann::ordered_json(nullptr)},
      {"warmup_iters", o.warmup},
      {"check", o.checks},
      {"datatype", names_in(dtype_choices, o.dtypes)},
      {"op", names_in(reduction_choices, o.reductions)},
      {"algorithm", name_of(o.algorithm)},
      {"progress", name_in(progress_choices, o.progress)},
      {"stall-timeout", o.stall_timeout_s},
      {"ranks-per-node",
       o.ranks_per_node ? nlohmann::ordered_json(*o.ranks_per_node) : nlohmann::ordered_json(nullptr)},
  };
  return json.dump();
}

std::string nccl_name(DType dtype) { return name_in(dtype_choices, dtype); }
std::string nccl_name(Reduction reduction) { return name_in(reduction_choices, reduction); }

}  // namespace shardbench
