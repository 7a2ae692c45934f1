// Where a rank stands among data-parallel and tensor-parallel groups.
#pragma once

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
    std::vector<int> ranks;
    for (int i = 0; i < dp; ++i) ranks.push_back(i * tp + tp_index);
    return ranks;
  }
  /// The ranks that share the model for the same data, in order of tp_index.
  [[nodiscard]] std::vector<int> tp_group() const {
    std::vector<int> ranks;
    for (int i = 0; i < tp; ++i) ranks.push_back(dp_index * tp + i);
    return ranks;
  }
};

inline Mesh make_mesh(int ranks, int tp, int rank) {
  return {.dp = ranks / tp, .tp = tp, .dp_index = rank / tp, .tp_index = rank % tp};
}

}  // namespace shardbench
