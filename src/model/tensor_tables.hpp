// What a layer may touch while it computes: unsharded weights and unsharded gradients, by tensor index.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "kernels/kernels.hpp"
#include "src/errors.hpp"
#include "src/model/dimensions.hpp"

namespace shardbench {

/// Views of tensors that are present at the moment; reading one that is not (still sharded, already freed)
/// is an error rather than a stale read.
template <class View>
class TensorTable {
 public:
  explicit TensorTable(std::size_t tensors) : views_(tensors) {}

  void set(int tensor, View view) { views_[static_cast<std::size_t>(tensor)] = view; }
  void clear(int tensor) { views_[static_cast<std::size_t>(tensor)].reset(); }
  [[nodiscard]] bool has(int tensor) const { return views_[static_cast<std::size_t>(tensor)].has_value(); }
  [[nodiscard]] View at(int tensor) const {
    const std::optional<View>& view = views_[static_cast<std::size_t>(tensor)];
    if (!view) throw InternalError(fmt::format("tensor {} is used while it is not gathered", tensor));
    return *view;
  }

 private:
  std::vector<std::optional<View>> views_;
};

/// Weights in the parameter dtype, [rows, columns].
using WeightTable = TensorTable<kernels::TypedView>;
/// fp32 gradients, [rows, columns]; backward adds into them.
using GradientTable = TensorTable<kernels::Matrix>;

}  // namespace shardbench
