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

/// Why hierarchical schedules refuse a group with these nodes, and what to do: one line for the user. Empty
/// where they do not.
std::string hierarchy_refusal(std::span<const int> nodes);

/// Collective over the world: throws UsageError on every rank alike when any rank's group is refused. Groups
/// differ between ranks, so a rank cannot know by itself.
void agree_on_hierarchy(ControlChannel& channel, std::span<const int> nodes_of_group);

}  // namespace shardbench
