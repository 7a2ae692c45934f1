#include "src/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace shardbench {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Edits between the two: insertions, deletions, substitutions, swaps of neighbours (optimal string
/// alignment; Damerau, CACM 1964).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const std::size_t substitute = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

bool has_leading_zero(std::string_view digits) {
  return digits.size() > 1 && digits[0] == '0' && is_digit(digits[1]);
}

/// All of the text as a number; empty where anything is left over or it does not fit.
template <class Number>
std::optional<Number> converted(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end ? std::optional(value) : std::nullopt;
}

/// Behind the minus sign, if there is one.
std::string_view magnitude(std::string_view text) { return text.starts_with('-') ? text.substr(1) : text; }

}  // namespace

std::optional<std::int64_t> whole_number(std::string_view text) {
  const std::string_view digits = magnitude(text);
  if (digits.empty() || has_leading_zero(digits)) return std::nullopt;
  if (text == "-0") return std::nullopt;
  if (!std::all_of(digits.begin(), digits.end(), is_digit)) return std::nullopt;
  return converted<std::int64_t>(text);
}

std::optional<double> real_number(std::string_view text) {
  const std::string_view digits = magnitude(text);
  if (digits.empty() || !is_digit(digits.front())) return std::nullopt;  // such as the words inf and nan
  if (has_leading_zero(digits)) return std::nullopt;
  const std::optional<double> value = converted<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string one_line(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return result;
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  const auto nearest = std::min_element(
      candidates.begin(), candidates.end(),
      [&](const auto& a, const auto& b) { return edit_distance(name, a) < edit_distance(name, b); });
  if (nearest == candidates.end()) return {};
  if (one_error_apart(name, *nearest)) return *nearest;
  const std::string* begun = nullptr;
  for (const std::string& candidate : candidates)
    if (candidate.starts_with(name) && (begun == nullptr || candidate.size() < begun->size()))
      begun = &candidate;
  return begun != nullptr ? *begun : *nearest;
}

bool one_error_apart(const std::string& a, const std::string& b) { return edit_distance(a, b) <= 1; }

}  // namespace shardbench
