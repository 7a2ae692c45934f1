// Who holds which elements: ceil chunks, shards of groups, gather groups. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "src/model/dimensions.hpp"
#include "src/units.hpp"

namespace shardbench {

/// Rows [begin, end).
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t count() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

/// The part of `rows` that chunk `index` of `parts` holds: ceil(rows/parts) rows each, later chunks may be
/// short or empty (torch.chunk's rule, with the empty ones kept).
RowRange chunk_of(std::int64_t rows, int parts, int index);

/// Elements [begin, begin + count) of a tensor, stored at `offset` of some buffer.
struct Slice {
  int tensor = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;
  bool operator==(const Slice&) const = default;
};
Elements total(std::span<const Slice> slices);

enum class Layout {
  per_parameter,  ///< FSDP2: dim 0 of each tensor in ceil chunks
  flat,           ///< FSDP1: the group concatenated and padded to a multiple of the parts
};

/// How the tensors of one group are cut into `parts` equal blocks for collectives.
/// A gathered buffer is rank-major: block 0, block 1, ... each of `block()` elements, padding included.
class GroupLayout {
 public:
  GroupLayout(Layout layout, std::span<const TensorInfo> tensors, int parts);

  [[nodiscard]] int parts() const { return parts_; }
  /// Elements that each part contributes to a collective.
  [[nodiscard]] Elements block() const { return block_; }
  [[nodiscard]] Elements gathered() const { return block_ * parts_; }
  /// The group's parameters, without padding.
  [[nodiscard]] Elements real() const { return real_; }
  /// What part `index` holds; offsets count from the start of its block.
  [[nodiscard]] std::vector<Slice> slices(int part) const;
  /// Whether the gathered buffer holds every tensor contiguously, so that nothing need be copied out.
  [[nodiscard]] bool in_place() const;
  /// Each tensor whole: its offset in the gathered buffer when in_place(), else in a concatenation of the
  /// tensors.
  [[nodiscard]] std::vector<Slice> whole() const;

 private:
  Layout layout_;
  std::vector<TensorInfo> tensors_;
  int parts_;
  Elements block_;
  Elements real_;
};

/// Part `part` of every group in turn, packed densely: what a rank keeps resident.
std::vector<Slice> resident_slices(std::span<const GroupLayout> groups, int part);

/// Every tensor whole, packed densely in declaration order.
std::vector<Slice> whole_tensors(std::span<const TensorInfo> tensors);

/// Gradients that are reduced together, by tensor index in reverse declaration order.
struct Bucket {
  std::vector<int> tensors;
  Elements elements;
  /// The layer after whose backward all its gradients are final.
  int complete_after_layer = 0;
};
/// Fills buckets in reverse declaration order; one closes when its size in `dtype` reaches its cap
/// (`first_cap` for the first), so it overshoots rather than split a tensor.
std::vector<Bucket> make_buckets(std::span<const TensorInfo> tensors, DType dtype, Bytes first_cap,
                                 Bytes cap);

/// Tensors that are gathered together.
struct Group {
  int id = 0;  ///< as the trace names it: the layer, 0 for a root group
  std::vector<int> tensors;
};

enum class Wrap {
  blocks,  ///< embedding; each block; {norm, head}: L+2 groups
  root,    ///< {embedding, norm, head}; each block: L+1 groups
};

struct Grouping {
  std::vector<Group> groups;
  std::vector<int> group_of_layer;
};
/// Tied weights need Wrap::root: otherwise the shared tensor would be in two groups.
Grouping make_grouping(const ModelDims& dims, Wrap wrap);

}  // namespace shardbench
