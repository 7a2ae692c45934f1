// Where a rank stands among data-parallel and tensor-parallel groups.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

namespace shardbench {

/// rank = dp_index * tp + tp_index: the ranks of a tensor-parallel group are neighbours, inside a node.
struct Mesh {
  int dp = 1;
  int tp = 1;
  int dp_index = 0;
  int tp_index = 0;

  /// The ranks that train other data on the same shard of the model, in order of dp_index.
  [[nodiscard]] std::vector<int> dp_group() const {
    std::vector<int> ranks(static_cast<std::size_t>(dp));
    for (int i = 0; i < dp; ++i) ranks[static_cast<std::size_t>(i)] = i * tp + tp_index;
    return ranks;
  }
  /// The ranks that share the model for the same data, in order of tp_index.
  [[nodiscard]] std::vector<int> tp_group() const {
    std::vector<int> ranks(static_cast<std::size_t>(tp));
    std::iota(ranks.begin(), ranks.end(), dp_index * tp);
    return ranks;
  }
};

/// The group of every rank along one axis, each once.
inline std::vector<std::vector<int>> groups_of_mesh(int dp, int tp) {
  std::vector<std::vector<int>> groups;
  groups.reserve(static_cast<std::size_t>(dp) + static_cast<std::size_t>(tp));
  for (int i = 0; i < tp; ++i)
    groups.push_back(Mesh{.dp = dp, .tp = tp, .dp_index = 0, .tp_index = i}.dp_group());
  for (int i = 0; i < dp; ++i)
    groups.push_back(Mesh{.dp = dp, .tp = tp, .dp_index = i, .tp_index = 0}.tp_group());
  return groups;
}

inline Mesh make_mesh(int ranks, int tp, int rank) {
  return {.dp = ranks / tp, .tp = tp, .dp_index = rank / tp, .tp_index = rank % tp};
}

}  // namespace shardbench
