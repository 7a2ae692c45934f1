// The `ledger` executable: static bytes and communication volume of ZeRO stages, from the textbook's
// formulas, and with --peak what else a rank holds at once. Runs without MPI.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/command_line.hpp"
#include "src/errors.hpp"
#include "src/ledger/formulas.hpp"
#include "src/ledger/peak.hpp"
#include "src/option_parsing.hpp"
#include "src/options.hpp"

namespace {

using namespace shardbench;

struct Arguments {
  std::int64_t parameters = 0;
  std::string model;
  std::vector<std::int64_t> n = {1, 8, 64};
  std::vector<int> stages = {0, 1, 2, 3};
  int tp = 1;
  std::int64_t k = 0;
  std::string param_dtype = "bf16";
  std::string reduce_dtype = "fp32";
  bool fp32_grad_accum = false;
  std::int64_t grad_accum = 1;
  std::string reshard = "all";
  bool peak = false;
  std::map<std::string, std::string> peak_options;  ///< by name, as the scenarios have them
  bool sequence_parallel = false;
  std::string format = "text";
};

struct Row {
  LedgerQuestion question;
  LedgerAnswer answer;
  std::optional<ExpectedPeak> peak;
};

/// What the scenarios would make of the same options.
Options scenario_options(const Arguments& a) {
  if (a.model.empty())
    throw UsageError("--peak depends on a model's dimensions; pass --model instead of --params");
  if (a.k > 0)
    throw UsageError(
        "--peak follows what the scenarios keep, which --k does not change; leave one of them out");
  std::vector<std::string> words = {"--model",
                                    a.model,
                                    "--param-dtype",
                                    a.param_dtype,
                                    "--reduce-dtype",
                                    a.reduce_dtype,
                                    "--grad-accum",
                                    std::to_string(a.grad_accum),
                                    "--reshard-after-forward",
                                    a.reshard};
  if (a.fp32_grad_accum) words.emplace_back("--fp32-grad-accum");
  if (a.sequence_parallel) words.emplace_back("--sequence-parallel");
  for (const auto& [name, value] : a.peak_options)
    if (!value.empty()) words.insert(words.end(), {name, value});
  Options options = parse_options("ledger --peak",
                                  {OptionFamily::gather_groups, OptionFamily::ordered_collectives,
                                   OptionFamily::buckets, OptionFamily::mesh},
                                  words);
  options.tp = a.tp;
  resolve_mesh(options, a.tp);  // checks that tp can share the model out
  return options;
}

/// 7B, 1.5M, 7e9 or 7000000000: a whole number of parameters.
std::int64_t parse_parameters(const std::string& text) {
  constexpr double end = 0x1p53;  // from which on a double skips whole numbers
  std::string number = text;
  const char suffix = text.empty() ? '\0' : text.back();
  const bool millions = suffix == 'M' || suffix == 'm';
  const bool billions = suffix == 'B' || suffix == 'b';
  // As an exponent, so that a decimal fraction is rounded once: 4.35M is a whole number.
  if (millions || billions) number.replace(number.size() - 1, 1, millions ? "e6" : "e9");
  const std::optional<double> value = real_number(number);
  if (!value || *value < 1.0 || *value >= end || *value != std::floor(*value))
    throw UsageError(fmt::format(
        "--params '{}' is not a whole number of parameters from 1 to below 2^53; pass one such as 7B, 1.5M, "
        "7e9 or 7000000000",
        text));
  return static_cast<std::int64_t>(*value);
}

/// The parts of a model that the formulas tell apart.
struct ModelParts {
  std::int64_t matrices = 0;  ///< divided by tp
  std::int64_t norms = 0;     ///< replicated over tp
  std::int64_t head = 0;      ///< the head's matrix, kept by reshard blocks together with the final norm
  std::int64_t final_norm = 0;
};

ModelParts parts_of(const ModelDims& dims) {
  ModelParts parts;
  for (const TensorInfo& t : declare_tensors(dims)) {
    (t.is_norm() ? parts.norms : parts.matrices) += t.elements().count();
    if (t.role == TensorRole::head) parts.head = t.elements().count();
    if (t.role == TensorRole::final_norm) parts.final_norm = t.elements().count();
  }
  return parts;
}

std::vector<Row> rows_for(const Arguments& a) {
  LedgerQuestion question;
  question.sharded_parameters = a.parameters;
  question.tp = a.tp;
  question.param_dtype = a.param_dtype == "bf16" ? DType::bf16 : DType::fp32;
  question.reduce_dtype = a.reduce_dtype == "bf16" ? DType::bf16 : DType::fp32;
  question.fp32_grad_accum = a.fp32_grad_accum ? Fp32Accumulation::on : Fp32Accumulation::off;
  // fp32 parameters are their own masters, which leaves two moments of 4 bytes.
  question.k = a.k > 0 ? a.k : question.param_dtype == DType::fp32 ? 8 : 12;
  question.grad_accum = a.grad_accum;
  question.reshard = a.reshard == "none"     ? ReshardAfterForward::none
                     : a.reshard == "blocks" ? ReshardAfterForward::blocks
                                             : ReshardAfterForward::all;
  if (question.fp32_grad_accum == Fp32Accumulation::on && question.param_dtype == DType::fp32)
    throw UsageError(
        "--fp32-grad-accum with --param-dtype fp32 would keep the same sum twice; leave one out");
  if (!a.model.empty()) {
    const auto dims = find_preset(a.model);
    if (!dims)
      throw UsageError(
          fmt::format("--model {} is unknown; presets: tiny 25m 124m 1b 7b 8b 70b 405b", a.model));
    if (dims->heads % a.tp != 0 || dims->kv_heads % a.tp != 0)
      throw UsageError(
          fmt::format("--tp {} does not divide the {} heads and {} kv heads of {}; choose a divisor of both",
                      a.tp, dims->heads, dims->kv_heads, a.model));
    const ModelParts parts = parts_of(*dims);
    question.sharded_parameters = parts.matrices;
    question.replicated_parameters = parts.norms;
    question.kept_parameters = parts.head + a.tp * parts.final_norm;
    if (question.reshard == ReshardAfterForward::blocks && dims->head == Head::tied)
      throw UsageError(
          "--reshard-after-forward blocks keeps {norm, head}, but this model's head is tied to the "
          "embedding, which the root group keeps anyway; use all or none");
  } else if (question.reshard == ReshardAfterForward::blocks) {
    throw UsageError(
        "--reshard-after-forward blocks needs to know the head's size; pass --model instead of --params");
  }
  const std::optional<Options> options = a.peak ? std::optional(scenario_options(a)) : std::nullopt;
  const auto peak_of = [&](std::int64_t n, int stage) -> std::optional<ExpectedPeak> {
    if (!options) return std::nullopt;
    const Mesh first{.dp = static_cast<int>(n), .tp = a.tp, .dp_index = 0, .tp_index = 0};  // it holds most
    return expected_peak(*options, stage, first, std::max(1, options->threads));
  };
  std::vector<Row> rows;
  for (const std::int64_t n : a.n)
    for (const int stage : a.stages) {
      question.n = n;
      question.stage = stage;
      rows.push_back({question, answer(question), peak_of(n, stage)});
    }
  return rows;
}

/// The columns that carry the contract's names, in its order.
std::vector<std::pair<const char*, Exact>> columns(const LedgerAnswer& a) {
  return {{"parameters_bytes", a.parameters_bytes},
          {"gradients_bytes", a.gradients_bytes},
          {"optimizer_bytes", a.optimizer_bytes},
          {"static_bytes", a.static_bytes},
          {"all_reduce_elements", a.all_reduce_elements},
          {"reduce_scatter_elements", a.reduce_scatter_elements},
          {"all_gather_elements", a.all_gather_elements},
          {"volume_elements", a.volume_elements},
          {"volume_bytes", a.volume_bytes}};
}

/// What is held at the largest moment of a phase, in the order in which it is printed.
std::vector<std::pair<const char*, Bytes>> columns(const MemoryUse& m) {
  return {{"static_bytes", m.parameters + m.gradients + m.optimizer},
          {"gathered_bytes", m.gathered},
          {"unsharded_gradients_bytes", m.unsharded_gradients},
          {"reduce_buffers_bytes", m.reduce_buffers},
          {"activations_bytes", m.activations},
          {"logits_bytes", m.logits},
          {"workspace_bytes", m.workspace},
          {"total_bytes", m.total()}};
}

constexpr std::array<Phase, 3> phases = {Phase::forward, Phase::backward, Phase::optimizer};

std::string peak_json(const ExpectedPeak& peak) {
  nlohmann::ordered_json phases_json;
  for (const Phase phase : phases)
    for (const auto& [name, bytes] : columns(peak.of(phase)))
      phases_json[name_of(phase)][name] = bytes.count();
  return fmt::format(R"(, "peak_bytes": {}, "peak_phase": "{}", "phases": {})",
                     peak.of(peak.largest()).total().count(), name_of(peak.largest()), phases_json.dump());
}

void print_json(const std::vector<Row>& rows) {
  // Written by hand where a number is integral, because JSON libraries stop at 64 bits.
  std::string text = "[";
  for (const Row& row : rows) {
    text += fmt::format("{}\n {{\"n\": {}, \"stage\": {}", text.size() > 1 ? "," : "", row.question.n,
                        row.question.stage);
    for (const auto& [name, value] : columns(row.answer))
      text += fmt::format(", \"{}\": {}", name, value.text());
    if (row.peak) text += peak_json(*row.peak);
    text += "}";
  }
  fmt::print("{}\n]\n", text);
}

void print_csv(const std::vector<Row>& rows) {
  fmt::print("n,stage");
  for (const auto& [name, value] : columns(rows.front().answer)) fmt::print(",{}", name);
  if (rows.front().peak) {
    fmt::print(",peak_bytes,peak_phase");
    for (const Phase phase : phases)
      for (const auto& [name, bytes] : columns(MemoryUse{})) fmt::print(",{}_{}", name_of(phase), name);
  }
  fmt::print("\n");
  for (const Row& row : rows) {
    fmt::print("{},{}", row.question.n, row.question.stage);
    for (const auto& [name, value] : columns(row.answer)) fmt::print(",{}", value.text());
    if (row.peak) {
      fmt::print(",{},{}", row.peak->of(row.peak->largest()).total().count(), name_of(row.peak->largest()));
      for (const Phase phase : phases)
        for (const auto& [name, bytes] : columns(row.peak->of(phase))) fmt::print(",{}", bytes.count());
    }
    fmt::print("\n");
  }
}

void print_text(const std::vector<Row>& rows) {
  const auto giga = [](const Exact& value) { return fmt::format("{:.9g}", value.value() / 1e9); };
  fmt::print("per rank; GB and G elements are 1e9; volumes carry (N-1)/N; one optimizer step\n");
  fmt::print("{:>8} {:>6} {:>14} {:>14} {:>14} {:>14} {:>16} {:>14}\n", "N", "stage", "parameters GB",
             "gradients GB", "optimizer GB", "static GB", "volume G elem.", "volume GB");
  for (const Row& row : rows) {
    const LedgerAnswer& a = row.answer;
    fmt::print("{:>8} {:>6} {:>14} {:>14} {:>14} {:>14} {:>16} {:>14}\n", row.question.n, row.question.stage,
               giga(a.parameters_bytes), giga(a.gradients_bytes), giga(a.optimizer_bytes),
               giga(a.static_bytes), giga(a.volume_elements), giga(a.volume_bytes));
  }
  if (!rows.front().peak) return;
  fmt::print("\nheld at once, MB (1e6 bytes), at the largest moment of each phase; * = of the step\n");
  fmt::print("{:>8} {:>6} {:>10} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>12}\n", "N", "stage",
             "phase", "static", "gathered", "unsh. grad", "reduce buf", "activation", "logits", "workspace",
             "total");
  for (const Row& row : rows)
    for (const Phase phase : phases) {
      fmt::print("{:>8} {:>6} {:>10}", row.question.n, row.question.stage, name_of(phase));
      for (const auto& [name, bytes] : columns(row.peak->of(phase)))
        fmt::print(" {:>11.3f}", static_cast<double>(bytes.count()) / 1e6);
      fmt::print("{}\n", phase == row.peak->largest() ? "*" : "");
    }
}

int run(int argc, char** argv) {
  Arguments a;
  CLI::App app("shardbench: ledger of ZeRO stages, per data-parallel rank");
  const auto* params =
      app.add_option_function<std::string>(
             "--params", [&a](const std::string& text) { a.parameters = parse_parameters(text); },
             "parameters of the model; suffixes M and B are powers of 1000: 7B, 1.5M, 7e9")
          ->type_name("COUNT");
  const auto* model = app.add_option("--model", a.model, "preset instead of --params")->type_name("CHOICE");
  const auto add_list = [&app](const char* name, const char* defaults, WholeRange range, auto& values,
                               const char* help) {
    app.add_option_function<std::string>(
           name,
           [=, &values](const std::string& text) {
             values.clear();
             for (const std::int64_t value : parse_whole_list(name, text, range))
               values.push_back(static_cast<typename std::decay_t<decltype(values)>::value_type>(value));
           },
           help)
        ->type_name(fmt::format("INTS:in [{}, {}]", range.low, range.high))
        ->default_str(defaults);
  };
  add_list("--n", "1,8,64", {1, std::int64_t{1} << 24}, a.n, "data-parallel ranks, comma-separated");
  add_list("--stage", "0,1,2,3", {0, 3}, a.stages, "0 DDP, 1, 2, 3; comma-separated");
  add_whole(app, "--tp", a.tp, {1, 1 << 16}, "tensor-parallel ranks");
  add_whole(app, "--k", a.k, {1, 1024}, "optimizer bytes per parameter; default 12, with fp32 parameters 8")
      ->default_str("");
  app.add_option("--param-dtype", a.param_dtype, "bf16|fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  app.add_option("--reduce-dtype", a.reduce_dtype, "fp32|bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_flag("--fp32-grad-accum", a.fp32_grad_accum, "fp32 gradients beside the resting ones");
  add_whole(app, "--grad-accum", a.grad_accum, {1, 1 << 16}, "micro-batches per step");
  app.add_option("--reshard-after-forward", a.reshard, "all|blocks|none (stage 3)")
      ->check(CLI::IsMember({"all", "blocks", "none"}))
      ->capture_default_str();
  app.add_flag("--peak", a.peak, "also what a rank holds at once, by phase (needs --model)");
  // The scenarios' parser reads their values.
  const auto add_peak_option = [&](const char* name, const char* type, const char* help) {
    app.add_option(name, a.peak_options[name], fmt::format("with --peak: {}", help))->type_name(type);
  };
  add_peak_option("--micro-batch", "INT", "sequences per micro-batch (1)");
  add_peak_option("--seq", "INT", "tokens per sequence (the model's)");
  add_peak_option("--recompute", "CHOICE", "none|full (none)");
  add_peak_option("--prefetch", "F[,B]", "F[,B] groups gathered ahead, stage 3 (1)");
  add_peak_option("--layout", "CHOICE", "per-parameter|flat, stage 3 (per-parameter)");
  add_peak_option("--wrap", "CHOICE", "blocks|root, stage 3 (blocks; tied: root)");
  add_peak_option("--rs-wait", "CHOICE", "next|end, stages 1 to 3 (next)");
  add_peak_option("--bucket-mb", "INT", "bucket cap in MiB, stages 0 to 2 (25)");
  add_peak_option("--algorithm", "CHOICE", "of the collectives, for their staging (auto)");
  add_peak_option("--ranks-per-node", "INT", "node size, for hierarchical collectives (one node)");
  add_peak_option("--threads", "INT", "per rank, for kernel scratch (1)");
  app.add_flag("--sequence-parallel", a.sequence_parallel, "with --peak: the stream is cut over tp");
  app.add_option("--format", a.format, "text|csv|json")
      ->check(CLI::IsMember({"text", "csv", "json"}))
      ->capture_default_str();
  app.allow_extras();
  try {
    parse_arguments(app, {argv + 1, argv + argc});
    for (const std::string& extra : app.remaining()) refuse_unknown(app, extra);
    refuse_repeated(app);
    for (const auto& [name, value] : a.peak_options)
      if (app.count(name) > 0 && value.empty())
        throw UsageError(fmt::format("{} is empty (an unset variable?); pass a value", name));
    if (params->count() > 0 && model->count() > 0)
      throw UsageError("--params and --model both say how large the model is; pass one");
    for (const auto& [name, value] : a.peak_options)
      if (!a.peak && app.count(name) > 0)
        throw UsageError(fmt::format("{} describes the peak; add --peak, or leave it out", name));
    if (!a.peak && a.sequence_parallel)
      throw UsageError("--sequence-parallel describes the peak; add --peak, or leave it out");
    if (params->count() == 0 && a.model.empty())
      throw UsageError("say which model: --params P or --model NAME");
    const std::vector<Row> rows = rows_for(a);
    if (a.format == "json") {
      print_json(rows);
    } else if (a.format == "csv") {
      print_csv(rows);
    } else {
      print_text(rows);
    }
    return static_cast<int>(ExitCode::done);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return static_cast<int>(ExitCode::done);
  } catch (const UsageError& error) {
    fmt::print(stderr, "ledger: {}\n", one_line(error.what()));
  }
  return static_cast<int>(ExitCode::usage);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "ledger: {}\n", error.what());
    return static_cast<int>(shardbench::ExitCode::run_failure);
  }
}
