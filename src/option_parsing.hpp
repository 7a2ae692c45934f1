// Options as CLI11 declares them, with values and forms that can be read in one way only. CLI11's own
// conversions are not used: they take 010 for 8, 0x10 for 16, and a comma for a point where the locale says
// so.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardbench {

/// Both ends belong to it.
struct WholeRange {
  std::int64_t low = 0;
  std::int64_t high = 0;
};
struct RealRange {
  double low = 0.0;
  double high = 0.0;
};

/// The last of the names in CLI11's notation, "-n,--steps": by it an option is named in messages.
std::string long_name(const std::string& flags);

// A value of the option; throw UsageError that names it.
std::int64_t parse_whole(const std::string& option, const std::string& text, WholeRange range);
double parse_real(const std::string& option, const std::string& text, RealRange range);
/// Whole numbers separated by commas, at least one.
std::vector<std::int64_t> parse_whole_list(const std::string& option, const std::string& text,
                                           WholeRange range);

/// An option whose value is a whole number; `Whole` is an integer or an optional one.
template <class Whole>
CLI::Option* add_whole(CLI::App& app, const std::string& flags, Whole& value, WholeRange range,
                       const std::string& help) {
  const auto assign = [flags, range, &value](const std::string& text) {
    const std::int64_t number = parse_whole(long_name(flags), text, range);
    if constexpr (std::is_integral_v<Whole>) {
      value = static_cast<Whole>(number);
    } else {
      value = static_cast<typename Whole::value_type>(number);
    }
  };
  CLI::Option* const option = app.add_option_function<std::string>(flags, assign, help);
  option->type_name(fmt::format("INT:in [{}, {}]", range.low, range.high));
  if constexpr (std::is_integral_v<Whole>) option->default_str(fmt::format("{}", value));
  return option;
}

/// An option whose value is a decimal number; `Real` is a double or an optional one.
template <class Real>
CLI::Option* add_real(CLI::App& app, const std::string& flags, Real& value, RealRange range,
                      const std::string& help) {
  CLI::Option* const option = app.add_option_function<std::string>(
      flags,
      [flags, range, &value](const std::string& text) { value = parse_real(long_name(flags), text, range); },
      help);
  option->type_name(fmt::format("NUMBER:in [{:g}, {:g}]", range.low, range.high));
  if constexpr (std::is_floating_point_v<Real>) option->default_str(fmt::format("{:g}", value));
  return option;
}

/// Parses; what is unknown remains in the app. Throws UsageError for a value that is missing or empty after
/// `=`, a switch with a value, and forms that CLI11 reads otherwise than they look (-output, -o=FILE).
/// CLI::CallForHelp passes.
void parse_arguments(CLI::App& app, std::vector<std::string> arguments);

/// Throws UsageError where an option occurs more than once, under whichever of its names.
void refuse_repeated(const CLI::App& app);

/// Throws UsageError with the nearest of the app's options.
[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& argument);

}  // namespace shardbench
