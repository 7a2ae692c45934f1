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

void check_hierarchy(std::span<const std::vector<int>> groups, std::span<const int> world_nodes) {
  // A large job's list would be unreadable, and its beginning shows the pattern.
  constexpr std::size_t shown = 16;
  for (const std::vector<int>& group : groups) {
    const std::vector<int> nodes = nodes_of(group, world_nodes);
    if (node_size_of(nodes)) continue;
    const std::span<const int> beginning = std::span(nodes).first(std::min(nodes.size(), shown));
    throw UsageError(
        fmt::format("--algorithm hierarchical needs equally many members of a group on every node, one "
                    "node's following one "
                    "another, but a group of {} ranks runs on the nodes {}{}; place ranks (or choose "
                    "--ranks-per-node) so that "
                    "every node has as many, or choose another algorithm",
                    nodes.size(), fmt::join(beginning, ","), nodes.size() > shown ? ",..." : ""));
  }
}

}  // namespace shardbench
