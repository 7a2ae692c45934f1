#include "src/option_parsing.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "src/command_line.hpp"
#include "src/errors.hpp"

namespace shardbench {
namespace {

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// The option that an argument names exactly, up to '='; null for any other argument.
const CLI::Option* named(const CLI::App& app, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : option->get_lnames())
      if (name == "--" + known) return option;
    for (const std::string& known : option->get_snames())
      if (name == "-" + known) return option;
  }
  return nullptr;
}

bool is_switch(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

/// Refuses an exactly named option whose value behind '=' is not what it looks like.
void check_value(const CLI::Option& option, const std::string& argument) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos) return;
  const std::string name = argument.substr(0, equals);
  const std::string value = argument.substr(equals + 1);
  if (is_switch(option))
    throw UsageError(
        fmt::format("{} is a switch and takes no value; pass {} alone or leave it out", argument, name));
  if (value.empty())
    throw UsageError(fmt::format("{} has an empty value (an unset variable?); pass one", argument));
  if (!name.starts_with("--"))
    throw UsageError(fmt::format("{} would mean the value '={}'; write {} {} or {}={}", argument, value, name,
                                 value, option.get_name(), value));
}

/// A long option behind one dash is a row of short ones with a value: -output is -o utput.
void check_dashes(const CLI::App& app, const std::string& argument) {
  if (argument.size() < 3 || argument[0] != '-' || argument[1] == '-') return;
  if (argument[1] >= '0' && argument[1] <= '9') return;  // a negative number
  const std::string typed = argument.substr(0, argument.find('='));
  const std::vector<std::string> names = long_names(app);
  for (const std::string& name : {typed, "-" + typed})
    if (const std::string nearest = nearest_name(name, names); one_error_apart(name, nearest))
      throw UsageError(fmt::format("unknown option {}: did you mean {}? see --help", argument, nearest));
}

/// CLI11 would take the next option for the value: --output --overwrite would write a file --overwrite.
void check_separate_value(const CLI::Option& option, const std::string& value) {
  const bool negative = value.size() > 1 && value[1] >= '0' && value[1] <= '9';
  if (value.size() < 2 || value[0] != '-' || negative) return;
  throw UsageError(
      fmt::format("{} needs a value, but {} follows; pass one, as {}=VALUE where it begins with -",
                  option.get_name(), value, option.get_name()));
}

void check_forms(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::Option* waiting = nullptr;  // for its value
  for (const std::string& argument : arguments) {
    if (waiting != nullptr) {
      check_separate_value(*waiting, argument);
      waiting = nullptr;
      continue;
    }
    if (argument == "--") return;  // what follows is no option
    if (const CLI::Option* const option = named(app, argument)) {
      check_value(*option, argument);
      if (argument.find('=') == std::string::npos && !is_switch(*option)) waiting = option;
    } else {
      check_dashes(app, argument);
    }
  }
}

}  // namespace

std::string long_name(const std::string& flags) { return flags.substr(flags.rfind("--")); }

std::int64_t parse_whole(const std::string& option, const std::string& text, WholeRange range) {
  const std::optional<std::int64_t> value = whole_number(text);
  if (!value)
    throw UsageError(fmt::format("{} '{}' is not a whole number in decimal digits; pass one from {} to {}",
                                 option, text, range.low, range.high));
  if (*value < range.low || *value > range.high)
    throw UsageError(fmt::format("{} {} is out of range; pass a whole number from {} to {}", option, text,
                                 range.low, range.high));
  return *value;
}

double parse_real(const std::string& option, const std::string& text, RealRange range) {
  const std::optional<double> value = real_number(text);
  if (!value)
    throw UsageError(fmt::format(
        "{} '{}' is not a decimal number with a point, such as 0.5 or 1e12; pass one from {:g} to {:g}",
        option, text, range.low, range.high));
  if (*value < range.low || *value > range.high)
    throw UsageError(fmt::format("{} {} is out of range; pass a number from {:g} to {:g}", option, text,
                                 range.low, range.high));
  return *value;
}

std::vector<std::int64_t> parse_whole_list(const std::string& option, const std::string& text,
                                           WholeRange range) {
  std::vector<std::int64_t> values;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    values.push_back(parse_whole(option, text.substr(begin, comma - begin), range));
    begin = comma + 1;
  }
  return values;
}

void parse_arguments(CLI::App& app, std::vector<std::string> arguments) {
  check_forms(app, arguments);
  // CLI11 would refuse a repeated option in words of its own; refuse_repeated() does.
  for (CLI::Option* option : app.get_options()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes a vector from its back
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string_view text = error.what();
    throw UsageError(fmt::format("{} needs a value; see --help", text.substr(0, text.find(':'))));
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{}; see --help", error.what()));
  }
}

void refuse_repeated(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 1)
      throw UsageError(
          is_switch(*option)
              ? fmt::format("{} is given {} times; pass it once", option->get_name(), option->count())
              : fmt::format("{} is given {} times ({}); pass the value that is meant once",
                            option->get_name(), option->count(), fmt::join(option->results(), ", ")));
}

void refuse_unknown(const CLI::App& app, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  if (name.empty() || name[0] != '-')
    throw UsageError(fmt::format("unexpected argument '{}': options start with --; see --help", argument));
  throw UsageError(fmt::format("unknown option {}: did you mean {}? see --help", name,
                               nearest_name(name, long_names(app))));
}

}  // namespace shardbench
