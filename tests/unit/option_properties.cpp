// What holds for every option of every MPI program, those of later versions included: the options are read
// from --help. (The ledger, and whole programs under a locale, are tests/scenarios/test_options.py's.)
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cmath>
#include <functional>
#include <locale>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "src/collectives/options.hpp"
#include "src/collectives/report.hpp"
#include "src/command_line.hpp"
#include "src/options.hpp"

namespace shardbench {
namespace {

using Arguments = std::vector<std::string>;
using Json = nlohmann::ordered_json;

/// What became of a command line; `json` where it was accepted.
struct Outcome {
  std::string error;
  std::string json;
  std::string help;
  bool operator==(const Outcome&) const = default;
};

struct Option {
  std::string short_name;  ///< "-n", or empty
  std::string name;        ///< "--steps"
  std::string kind;        ///< INT, NUMBER, SIZE, CHOICE, LIST, FILE, F[,B]; empty for a switch
  std::string low;
  std::string high;
  std::vector<std::string> choices;
};

struct TestedProgram {
  std::string name;
  std::function<Outcome(const Arguments&)> parse;
};

std::vector<TestedProgram> programs() {
  using enum OptionFamily;
  const std::vector<std::pair<std::string, std::set<OptionFamily>>> scenarios = {
      {"ddp", {buckets}},
      {"zero1", {buckets, ordered_collectives, parameter_gather}},
      {"zero2", {buckets, ordered_collectives, parameter_gather}},
      {"zero3", {gather_groups, ordered_collectives}},
      {"mesh2d", {gather_groups, ordered_collectives, mesh}},
  };
  std::vector<TestedProgram> result;
  for (const auto& [name, families] : scenarios)
    result.push_back(
        {name, [name = name, families = families](const Arguments& arguments) {
           const ParsedOptions parsed = try_parse_options(name, families, arguments);
           return Outcome{parsed.error, parsed.options ? options_json(*parsed.options) : "", parsed.help};
         }});
  result.push_back(
      {"collectives", [](const Arguments& arguments) {
         const ParsedCollectivesOptions parsed = parse_collectives_options(arguments);
         return Outcome{parsed.error, parsed.options ? options_json(*parsed.options) : "", parsed.help};
       }});
  return result;
}

std::vector<Option> options_of(const TestedProgram& program) {
  std::istringstream lines(program.parse({"--help"}).help);
  const std::regex head(
      R"(^  (?:(-\w),)?(--[A-Za-z0-9_-]+)(?: ([^\s:=]+)(?::in \[(\S+), (\S+)\])?(?:=\S*)?)?(?:\s\s.*)?$)");
  const std::regex choices(R"(([A-Za-z0-9_-]+(?:\|[A-Za-z0-9_-]+)+))");
  std::vector<Option> result;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (line.starts_with("  -")) {
      const bool understood = std::regex_match(line, match, head);
      EXPECT_TRUE(understood) << program.name << " --help: " << line;
      if (understood)
        result.push_back({match.str(1), match.str(2), match.str(3), match.str(4), match.str(5), {}});
    }
    if (!result.empty() && result.back().kind == "CHOICE" && std::regex_search(line, match, choices)) {
      std::istringstream words(match.str(1));
      for (std::string word; std::getline(words, word, '|');) result.back().choices.push_back(word);
    }
  }
  return result;
}

void for_each_option(const std::function<void(const TestedProgram&, const Option&)>& test) {
  for (const TestedProgram& program : programs())
    for (const Option& option : options_of(program)) {
      SCOPED_TRACE(program.name + " " + option.name);
      test(program, option);
      if (testing::Test::HasFailure()) return;
    }
}

testing::AssertionResult refused_naming(const Outcome& outcome, const std::string& name) {
  if (outcome.error.empty()) return testing::AssertionFailure() << "accepted: " << outcome.json;
  if (outcome.error.find('\n') != std::string::npos)
    return testing::AssertionFailure() << "more than a line: " << outcome.error;
  if (outcome.error.find(name) == std::string::npos)
    return testing::AssertionFailure() << '"' << outcome.error << "\" does not name " << name;
  return testing::AssertionSuccess();
}

/// Whether the option's value was understood; other options may still be missing or contradict it.
bool understood(const Outcome& outcome, const Option& option) {
  return !(outcome.error.starts_with(option.name) &&
           (outcome.error.find("is not ") != std::string::npos ||
            outcome.error.find("out of range") != std::string::npos));
}

// --- what a value means, in other words than the parser's

bool matches(const std::string& text, const char* pattern) {
  return std::regex_match(text, std::regex(pattern));
}

bool whole_in(const std::string& text, const Option& option) {
  if (!matches(text, "0|-?[1-9][0-9]*") || text.size() > 30) return false;
  const long double value = std::strtold(text.c_str(), nullptr);
  return value >= std::strtold(option.low.c_str(), nullptr) &&
         value <= std::strtold(option.high.c_str(), nullptr);
}

bool number_in(const std::string& text, const Option& option) {
  if (!matches(text, R"(-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?)")) return false;
  const double value = std::strtod(text.c_str(), nullptr);
  return value >= std::stod(option.low) && value <= std::stod(option.high);
}

bool is_size(const std::string& text) {
  std::smatch match;
  if (!std::regex_match(text, match,
                        std::regex(R"(((?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)([KkMmGg]B?)?)")))
    return false;
  const double number = std::strtod(match.str(1).c_str(), nullptr);
  const double unit = match.str(2).empty()                   ? 1.0
                      : std::tolower(match.str(2)[0]) == 'k' ? 0x1p10
                      : std::tolower(match.str(2)[0]) == 'm' ? 0x1p20
                                                             : 0x1p30;
  return number * unit <= 0x1p50 && (unit > 1.0 || number == std::floor(number));
}

bool is_meant(const std::string& text, const Option& option) {
  if (option.kind == "INT") return whole_in(text, option);
  if (option.kind == "NUMBER") return number_in(text, option);
  if (option.kind == "SIZE") return is_size(text);
  return matches(text, "(0|[1-9][0-9]{0,5})(,(0|[1-9][0-9]{0,5}))?");  // F[,B]
}

bool is_numeric(const Option& option) {
  const std::set<std::string> kinds = {"INT", "NUMBER", "SIZE", "F[,B]"};
  return kinds.contains(option.kind);
}

const Arguments odd_numbers = {"1e9",
                               "1.5",
                               "0x10",
                               "0X1p4",
                               "010",
                               "00",
                               "-0",
                               " 5",
                               "5 ",
                               "\t5",
                               "5\n",
                               "+5",
                               "+-5",
                               "\u0663",
                               "",
                               "-",
                               "--",
                               "nan",
                               "-nan",
                               "NaN",
                               "inf",
                               "-inf",
                               "INF",
                               "infinity",
                               "2147483647",
                               "2147483648",
                               "-2147483648",
                               "-2147483649",
                               "4294967295",
                               "4294967296",
                               "4294967297",
                               "9223372036854775807",
                               "9223372036854775808",
                               "18446744073709551615",
                               "18446744073709551616",
                               "18446744073709551617",
                               "1e400",
                               "-1e400",
                               "5x",
                               "5,",
                               "5,5",
                               "1.234,5",
                               "1,234",
                               "1_000",
                               "1'000",
                               "5K",
                               "1.5M",
                               "4MB",
                               "2g",
                               "1KK",
                               "KB",
                               "K",
                               "1 M",
                               "5.",
                               ".5",
                               "1e",
                               "1e+",
                               "1.5e3",
                               "1E3",
                               "5-5",
                               "1/2",
                               "true",
                               "{}",
                               "[1]",
                               "0b1",
                               "5u",
                               "5L",
                               "5f",
                               "%d",
                               "5%",
                               "\xff",
                               "5\xc2\xa0",
                               "0.05",
                               "0",
                               "1",
                               "-1",
                               "7"};

std::string random_number(std::mt19937& generator) {
  static constexpr std::string_view letters = "0123456789012345678900.-+eExKMG, ";
  std::string text(1 + generator() % 7, '0');
  for (char& c : text) c = letters[generator() % letters.size()];
  return text;
}

TEST(EveryOption, HasAKindThatTheseTestsKnow) {
  int options = 0;
  for_each_option([&](const TestedProgram&, const Option& option) {
    ++options;
    const std::set<std::string> kinds = {"",     "INT",  "NUMBER", "SIZE",  "CHOICE",
                                         "LIST", "FILE", "F[,B]",  "SIGMAS"};
    EXPECT_TRUE(kinds.contains(option.kind))
        << option.kind << ": declare it with add_whole or add_real, or name its type";
    const bool has_range = option.kind == "INT" || option.kind == "NUMBER";
    EXPECT_EQ(has_range, !option.low.empty()) << "numbers say their range";
  });
  EXPECT_GT(options, 150);
}

TEST(EveryNumber, IsReadWhereItMeansOneThingAndElseRefused) {
  std::mt19937 generator(20'260'301);
  int accepted = 0;
  int refused = 0;
  for_each_option([&](const TestedProgram& program, const Option& option) {
    if (!is_numeric(option)) return;
    Arguments values = odd_numbers;
    values.insert(values.end(), {option.low, option.high});
    for (int i = 0; i < 20; ++i) values.push_back(random_number(generator));
    for (const std::string& value : values) {
      SCOPED_TRACE("'" + value + "'");
      const Outcome joined = program.parse({option.name + "=" + value});
      const Outcome apart = program.parse({option.name, value});
      if (is_meant(value, option)) {
        EXPECT_TRUE(understood(joined, option)) << joined.error;
        ++accepted;
      } else {
        EXPECT_TRUE(refused_naming(joined, option.name));
        ++refused;
      }
      const bool looks_like_an_option =
          value.size() > 1 && value[0] == '-' && std::isdigit(static_cast<unsigned char>(value[1])) == 0;
      if (value.empty() || looks_like_an_option) {
        EXPECT_TRUE(refused_naming(apart, option.name));
      } else {
        EXPECT_EQ(joined, apart);
      }
      if (!option.short_name.empty() && !value.empty() && !looks_like_an_option) {
        EXPECT_EQ(program.parse({option.short_name, value}), apart);
      }
    }
  });
  EXPECT_GT(accepted, 300);
  EXPECT_GT(refused, 3000);
}

/// A value that the option may have, by its kind.
std::string some_value(const Option& option, std::mt19937& generator) {
  if (option.kind == "INT") {
    const std::int64_t low = std::stoll(option.low);
    const std::int64_t width = std::min<std::int64_t>(std::stoll(option.high) - low, 5000);
    return std::to_string(low +
                          static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(width + 1)));
  }
  if (option.kind == "NUMBER")
    return std::to_string(1 + generator() % 9) + (std::stod(option.low) >= 1.0 ? "e12" : "e-2");
  if (option.kind == "SIZE")
    return std::to_string(1 + generator() % 2000) + std::array{"", "K", "M", "G"}.at(generator() % 4);
  if (option.kind == "CHOICE" && option.choices.empty()) return option.name == "--model" ? "25m" : "mpi";
  if (option.kind == "CHOICE") return option.choices[generator() % option.choices.size()];
  if (option.kind == "LIST") return generator() % 2 == 0 ? "all_gather" : "all_reduce,reduce_scatter";
  if (option.kind == "SIGMAS")
    return std::array{"rank=0.05", "step=0.25", "rank=1e-2,step=3", "step=0.5,rank=0"}.at(generator() % 4);
  if (option.kind == "F[,B]") return std::to_string(generator() % 5) + (generator() % 2 == 0 ? "" : ",3");
  return "file.json";
}

TEST(EveryOption, GivenTwiceIsRefusedByName) {
  std::mt19937 generator(1);
  for_each_option([&](const TestedProgram& program, const Option& option) {
    if (option.name == "--help") return;
    for (const std::string& first : {option.name, option.short_name})
      for (const std::string& second : {option.name, option.short_name}) {
        if (first.empty() || second.empty()) continue;
        Arguments arguments = {first, second};
        if (!option.kind.empty()) {
          const std::string value = some_value(option, generator);
          arguments = {first, value, second, generator() % 2 == 0 ? value : some_value(option, generator)};
        }
        const Outcome outcome = program.parse(arguments);
        EXPECT_TRUE(refused_naming(outcome, option.name));
        EXPECT_NE(outcome.error.find("given 2 times"), std::string::npos) << outcome.error;
      }
  });
}

TEST(EveryOption, IsNotSwallowedByTheOneBeforeIt) {
  for_each_option([&](const TestedProgram& program, const Option& option) {
    if (option.kind.empty()) {
      EXPECT_TRUE(refused_naming(program.parse({option.name + "=x"}), option.name));
      EXPECT_TRUE(refused_naming(program.parse({option.name + "=true"}), option.name));
      return;
    }
    for (const char* next : {"--overwrite", "--overwrit", "--version", "-h", "-c", "--"})
      EXPECT_TRUE(refused_naming(program.parse({option.name, next}), option.name)) << next;
    EXPECT_TRUE(refused_naming(program.parse({option.name}), option.name));
    if (!option.short_name.empty()) {
      EXPECT_TRUE(refused_naming(program.parse({option.short_name + "=1"}), option.name));
    }
  });
}

/// Every name that a typing error makes of this one.
std::vector<std::string> misspellings(const std::string& name, std::mt19937& generator) {
  std::vector<std::string> result;
  for (std::size_t i = 1; i < name.size(); i += 1 + generator() % 3) {
    const char other = static_cast<char>('a' + generator() % 26);
    result.push_back(name.substr(0, i) + name.substr(i + 1));
    result.push_back(name.substr(0, i) + other + name.substr(i));
    result.push_back(name.substr(0, i) + other + name.substr(i + 1));
    if (i + 1 < name.size()) result.push_back(name.substr(0, i) + name[i + 1] + name[i] + name.substr(i + 2));
  }
  result.push_back(name + "s");
  result.push_back(name.substr(1));
  return result;
}

TEST(EveryOption, MisspeltIsRefusedWithTheNearestName) {
  std::mt19937 generator(7);
  for (const TestedProgram& program : programs()) {
    const std::vector<Option> options = options_of(program);
    std::set<std::string> names;
    for (const Option& option : options) names.insert(option.name);
    for (const Option& option : options)
      for (const std::string& misspelt : misspellings(option.name, generator)) {
        if (names.contains(misspelt)) continue;
        for (const Arguments& arguments : {Arguments{misspelt + "=1"}, Arguments{misspelt, "1"}}) {
          SCOPED_TRACE(program.name + " " + arguments.front());
          const Outcome outcome = program.parse(arguments);
          if (outcome.error.find("is not an option of") != std::string::npos)
            continue;  // it exists elsewhere
          ASSERT_TRUE(refused_naming(outcome, misspelt));
          std::smatch match;
          ASSERT_TRUE(
              std::regex_search(outcome.error, match, std::regex("did you mean (--[A-Za-z0-9_-]+)\\?")))
              << outcome.error;
          EXPECT_TRUE(names.contains(match.str(1))) << outcome.error;
          EXPECT_TRUE(one_error_apart(misspelt, match.str(1))) << outcome.error;
        }
      }
  }
}

// --- the recorded configuration

/// Options that are not part of what is measured, or that stand in the configuration's `model`.
const std::set<std::string> recorded_elsewhere = {
    "--help", "--version",     "--output", "--overwrite", "--ranks", "--plan",
    "--rank", "--output_file", "--layers", "--hidden",    "--heads", "--kv-heads",
    "--ffn",  "--vocab",       "--seq",    "--tied",      "--untied"};

/// The command line that a recorded configuration stands for.
Arguments command_line_of(const Json& json, const std::vector<Option>& options) {
  Arguments result;
  for (const auto& [key, value] : json.items()) {
    const std::string name = "--" + key;
    const bool has =
        std::any_of(options.begin(), options.end(), [&](const Option& o) { return o.name == name; });
    const bool derived = key == "grad-accum" && !json["global-batch"].is_null();
    if (!has || derived || value.is_null() || value == false || value == "") continue;
    result.push_back(name);
    if (value == true) continue;
    if (value.is_string()) {
      result.push_back(value);
    } else if (value.is_array() && value.size() > 1 && key != "collective") {
      result.emplace_back("all");
    } else if (value.is_array()) {
      std::string list;
      for (const std::string entry : value) list += (list.empty() ? "" : ",") + entry;
      result.push_back(list);
    } else if (value.is_object()) {
      std::string list;
      for (const auto& [part, number] : value.items())
        list += (list.empty() ? "" : ",") + part + "=" + number.dump();
      result.push_back(list);
    } else {
      result.push_back(value.dump());
    }
  }
  return result;
}

TEST(EveryOption, IsRecordedAndReadBackAsItWas) {
  std::mt19937 generator(11);
  for (const TestedProgram& program : programs()) {
    SCOPED_TRACE(program.name);
    const std::vector<Option> options = options_of(program);
    const Json defaults = Json::parse(program.parse({}).json);
    for (const Option& option : options)
      EXPECT_TRUE(defaults.contains(option.name.substr(2)) || recorded_elsewhere.contains(option.name))
          << option.name << " is not in options_json()";
    // Options that go together only, in ways that chance seldom finds.
    const std::set<std::string> imitated = {"--compute", "--flops", "--calibration", "--payload"};
    std::vector<Arguments> together = {{}};
    if (program.name != "collectives")
      together.insert(together.end(),
                      {{"--compute", "timed", "--flops", "1.25e12"},
                       {"--compute", "timed", "--calibration", "file.json", "--payload", "phantom"}});
    int accepted = 0;
    std::set<std::string> changed;
    for (int round = 0; round < 400; ++round) {
      Arguments arguments = together[generator() % together.size()];
      for (const Option& option : options) {
        if (recorded_elsewhere.contains(option.name) || imitated.contains(option.name)) continue;
        if (generator() % 6 != 0) continue;
        arguments.push_back(option.name);
        if (!option.kind.empty()) arguments.push_back(some_value(option, generator));
      }
      const Outcome outcome = program.parse(arguments);
      if (!outcome.error.empty()) continue;
      ++accepted;
      const Json json = Json::parse(outcome.json);
      for (const auto& [key, value] : json.items())
        if (value != defaults[key]) changed.insert("--" + key);
      std::string line;
      for (const std::string& word : command_line_of(json, options)) line += word + ' ';
      ASSERT_EQ(program.parse(command_line_of(json, options)), outcome) << line;
    }
    EXPECT_GT(accepted, 100);
    for (const Option& option : options)
      EXPECT_TRUE(changed.contains(option.name) || recorded_elsewhere.contains(option.name) ||
                  option.name == "--backend")
          << option.name << " was never accepted with another value than its default";
  }
}

// --- locales

/// Writes 1.234,5 and, unlike any real locale, groups single digits, so that even 10 shows.
struct CommaPunctuation : std::numpunct<char> {
  [[nodiscard]] char do_decimal_point() const override { return ','; }
  [[nodiscard]] char do_thousands_sep() const override { return '.'; }
  [[nodiscard]] std::string do_grouping() const override { return "\1"; }
};

/// Puts both locales back.
class Locales : public testing::Test {
 protected:
  Locales() : cpp_(std::locale()), c_(std::setlocale(LC_ALL, nullptr)) {}
  ~Locales() override {
    std::locale::global(cpp_);
    std::setlocale(LC_ALL, c_.c_str());
  }

  /// Everything that is parsed and printed.
  static std::string everything() {
    std::string text;
    for (const TestedProgram& program : programs()) {
      text += program.parse({"--help"}).help;
      for (const Option& option : options_of(program))
        if (is_numeric(option))
          for (const char* value : {"1.5", "1,5", "1234", "1.234", "7", "0.25", "1.5M", "1,5M"}) {
            const Outcome outcome = program.parse({option.name + "=" + value});
            text += outcome.error + outcome.json + '\n';
          }
      for (const Arguments& arguments :
           {Arguments{"--compute", "timed", "--flops", "1.5e12", "--clip", "0.25"},
            Arguments{"--precision", "0.05", "--budget", "1234.5"}}) {
        const Outcome outcome = program.parse(arguments);
        text += outcome.error + outcome.json + '\n';
      }
    }
    const ResultLine line{
        .size = Bytes(123'456'789), .count = Elements(30'864'197), .seconds = 1.2345e-3, .wrong = 1000};
    CollectivesOptions options;
    options.precision = 0.05;
    options.budget_s = 1234.5;
    text += preamble_text(options, {}) + result_text(line) + precision_text(line) +
            summary_text({.failed_checks = 1000, .mean_bus_bandwidth = 0.125});
    text += json_text({.arguments = {},
                       .start_time = "",
                       .end_time = "",
                       .options = options,
                       .ranks = {},
                       .lines = {line},
                       .summary = {}});
    text += Json::parse("[1.5, 1e-3, 1234567.25, 0.1]").dump();
    return text;
  }

 private:
  std::locale cpp_;
  std::string c_;
};

TEST_F(Locales, OfCppChangeNothing) {
  const std::string expected = everything();
  std::locale::global(std::locale(std::locale::classic(), new CommaPunctuation));
  std::ostringstream shown;
  shown << 1234.5;
  ASSERT_EQ(shown.str(), "1.2.3.4,5") << "the locale is not in force";
  EXPECT_EQ(everything(), expected);
}

TEST_F(Locales, OfCChangeNothing) {
  const std::string expected = everything();
  // "" is what the environment says; tests/scenarios/test_options.py makes a locale and runs this test under
  // it.
  for (const char* name : {"", "de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8"})
    if (std::setlocale(LC_ALL, name) != nullptr && std::string(std::localeconv()->decimal_point) == ",")
      break;
  if (std::string(std::localeconv()->decimal_point) != ",")
    GTEST_SKIP() << "no locale with a decimal comma is installed; tests/scenarios/test_options.py makes one";
  EXPECT_EQ(std::strtod("1,5", nullptr), 1.5) << "the locale is not in force";
  EXPECT_EQ(everything(), expected);
}

}  // namespace
}  // namespace shardbench
