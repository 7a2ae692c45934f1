// Which node each rank of the world runs on, and what that means for a group of ranks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/comm/world.hpp"

namespace shardbench {

/// Node of each of `ranks` ranks when node k holds the ranks k·R ... k·R + R - 1 (--ranks-per-node R).
std::vector<int> equal_nodes(int ranks, int ranks_per_node);

/// Ranks a node, where `nodes` (the node of each member, in group order) are runs of equal length, one run a
/// node: what the hierarchical schedules need. Empty where they are not, or without members.
std::optional<int> node_size_of(std::span<const int> nodes);

/// The nodes of `members`, world ranks of which `world_nodes` has the nodes.
std::vector<int> nodes_of(std::span<const int> members, std::span<const int> world_nodes);

/// Throws UsageError where one of `groups` (world ranks) cannot use hierarchical schedules. Every rank knows
/// all groups and nodes, so all throw alike.
void check_hierarchy(std::span<const std::vector<int>> groups, std::span<const int> world_nodes);

}  // namespace shardbench
