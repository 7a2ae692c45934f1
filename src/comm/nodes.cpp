#include "src/comm/nodes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "src/errors.hpp"

namespace shardbench {
namespace {

/// Ranks in each run of members that follow one another on one node.
std::vector<int> run_lengths(std::span<const int> nodes) {
  std::vector<int> lengths;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i == 0 || nodes[i] != nodes[i - 1]) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

}  // namespace

std::vector<int> equal_nodes(int ranks, int ranks_per_node) {
  std::vector<int> nodes;
  nodes.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / ranks_per_node);
  return nodes;
}

std::optional<int> node_size_of(std::span<const int> nodes) {
  const std::vector<int> lengths = run_lengths(nodes);
  const std::set<int> distinct(nodes.begin(), nodes.end());
  if (lengths.empty() || lengths.size() != distinct.size()) return std::nullopt;
  const bool equal = std::all_of(lengths.begin(), lengths.end(), [&](int l) { return l == lengths.front(); });
  return equal ? std::optional(lengths.front()) : std::nullopt;
}

std::vector<int> nodes_of(std::span<const int> members, std::span<const int> world_nodes) {
  std::vector<int> nodes;
  nodes.reserve(members.size());
  for (const int member : members) nodes.push_back(world_nodes[static_cast<std::size_t>(member)]);
  return nodes;
}

std::string hierarchy_refusal(std::span<const int> nodes) {
  if (node_size_of(nodes)) return "";
  // A large job's list would be unreadable, and its beginning shows the pattern.
  constexpr std::size_t shown = 16;
  const std::span<const int> beginning = nodes.first(std::min(nodes.size(), shown));
  return fmt::format(
      "--algorithm hierarchical needs equally many ranks on every node, one node's ranks following one "
      "another, but a group of {} ranks runs on the nodes {}{}; start equally many ranks per node in order, "
      "pass a --ranks-per-node that divides {}, or choose another algorithm",
      nodes.size(), fmt::join(beginning, ","), nodes.size() > shown ? ",..." : "", nodes.size());
}

void agree_on_hierarchy(ControlChannel& channel, std::span<const int> nodes_of_group) {
  const std::string own = hierarchy_refusal(nodes_of_group);
  const auto everyone = gather(channel, as_message<char>(std::span<const char>(own)));
  agree_with_root(channel, [&] {
    for (const auto& message : everyone) {
      const auto refusal = from_message<char>(message);
      if (!refusal.empty()) throw UsageError(std::string(refusal.begin(), refusal.end()));
    }
    return std::string();
  });
}

}  // namespace shardbench
