#include "src/collectives/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "src/command_line.hpp"
#include "src/errors.hpp"
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
  Parser() {
    app_.allow_extras();
    app_.set_help_flag();  // handled by parse(), whose caller owns the output
    app_.add_flag("-h,--help", help_, "this text");
    app_.add_flag("--version", options_.show_version, "versions of shardbench and its libraries, then exit");
    app_.add_option("--collective", collectives_,
                    fmt::format("which, comma-separated: {}", list_of(collective_choices, ",")))
        ->capture_default_str();
    add_sweep();
    app_.add_option("--algorithm", algorithm_,
                    list_of(algorithm_choices) + ": our schedules, or the library's collectives")
        ->capture_default_str();
    app_.add_option("--progress", progress_, list_of(progress_choices) + ": how pending collectives advance")
        ->capture_default_str();
    app_.add_option("--stall-timeout", options_.stall_timeout_s, stall_timeout_help)
        ->check(finite_range(0.0, 1e9))
        ->capture_default_str();
    app_.add_option("--ranks-per-node", options_.ranks_per_node,
                    "node size, for hierarchical; default: what MPI says")
        ->check(CLI::Range(1, 1 << 24));
    app_.add_option("--ranks", options_.ranks, "the world size expected")->check(CLI::Range(1, 1 << 24));
    json_ = app_.add_option("-J,--output_file", options_.json_file,
                            "JSON file, besides; an existing one is kept and the name gets a number");
    output_ =
        app_.add_option("--output", options_.output, "HDF5 file; default collectives_n<N>_<time>_<job>.h5");
    app_.add_flag("--overwrite", overwrite_, "replace an existing HDF5 file");
  }

  CollectivesOptions parse(std::vector<std::string> arguments, std::string& help) {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes a vector from its back
    try {
      app_.parse(arguments);
    } catch (const CLI::ParseError& error) {
      throw UsageError(fmt::format("{}; see --help", error.what()));
    }
    if (help_) help = app_.help();
    for (const std::string& extra : app_.remaining()) refuse(extra);
    finish();
    return options_;
  }

 private:
  void add_sweep() {
    app_.add_option("-b,--minbytes", min_, "smallest size; suffixes K, M, G are powers of 1024")
        ->capture_default_str();
    app_.add_option("-e,--maxbytes", max_, "largest size")->capture_default_str();
    app_.add_option("-i,--stepbytes", step_, "increment between sizes")->capture_default_str();
    app_.add_option("-f,--stepfactor", options_.step_factor,
                    "factor between sizes, instead of an increment; 1 = off")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
        ->capture_default_str();
    app_.add_option("-n,--iters", options_.iterations, "timed iterations of each size")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    app_.add_option("--precision", options_.precision,
                    "repeat windows of --iters until the 95 % interval of their median is this "
                    "narrow, relative to it; such as 0.05");
    budget_ =
        app_.add_option("--budget", options_.budget_s, "with --precision: at most so many seconds a size")
            ->capture_default_str();
    app_.add_option("-w,--warmup_iters", options_.warmup, "iterations of each size before them")
        ->check(CLI::Range(0, 1 << 24))
        ->capture_default_str();
    app_.add_option("-c,--check", options_.checks, "iterations of each size whose result is checked; 0 = off")
        ->check(CLI::Range(0, 1 << 24))
        ->capture_default_str();
    app_.add_option("-d,--datatype", dtype_, list_of(dtype_choices) + "|all")->capture_default_str();
    app_.add_option("-o,--op", reduction_, list_of(reduction_choices) + "|all: the reduction")
        ->capture_default_str();
  }

  [[noreturn]] void refuse(const std::string& argument) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name.empty() || name[0] != '-')
      throw UsageError(fmt::format("unexpected argument '{}': options start with -; see --help", argument));
    std::vector<std::string> names;
    for (const CLI::Option* option : app_.get_options())
      for (const std::string& long_name : option->get_lnames()) names.push_back("--" + long_name);
    throw UsageError(
        fmt::format("unknown option {}: did you mean {}? see --help", name, nearest_name(name, names)));
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
  const char* const begin = text.c_str();
  char* end = nullptr;
  double size = std::strtod(begin, &end);  // as nccl-tests reads it: 1.5M, 1e6
  std::string suffix = end;
  if (suffix.size() == 2 && suffix.back() == 'B') suffix.pop_back();
  bool valid = end != begin;
  if (suffix == "K" || suffix == "k") {
    size *= 0x1p10;
  } else if (suffix == "M" || suffix == "m") {
    size *= 0x1p20;
  } else if (suffix == "G" || suffix == "g") {
    size *= 0x1p30;
  } else {
    valid = valid && suffix.empty();
  }
  if (!valid || !(size >= 0.0 && size <= largest))
    throw UsageError(
        fmt::format("{} {} is not a size from 0 to 1048576G: a number of bytes, with K, M or G for powers of "
                    "1024, such as 32M",
                    option, text));
  return Bytes(static_cast<std::int64_t>(size));
}

ParsedCollectivesOptions parse_collectives_options(const std::vector<std::string>& arguments) {
  ParsedCollectivesOptions parsed;
  try {
    CollectivesOptions options = Parser().parse(arguments, parsed.help);
    if (parsed.help.empty()) parsed.options = std::move(options);
  } catch (const UsageError& error) {
    // Who asks for help beside a mistake gets help.
    if (parsed.help.empty()) parsed.error = error.what();
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
