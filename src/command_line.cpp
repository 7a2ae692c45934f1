#include "src/command_line.hpp"

#include <algorithm>
#include <numeric>

namespace shardbench {
namespace {

/// Edit distance with unit costs (Wagner & Fischer, JACM 1974).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates)
    if (candidate.starts_with(name)) return candidate;
  const auto nearest = std::min_element(
      candidates.begin(), candidates.end(),
      [&](const auto& a, const auto& b) { return edit_distance(name, a) < edit_distance(name, b); });
  return nearest == candidates.end() ? std::string() : *nearest;
}

}  // namespace shardbench
