// Who holds which elements: ceil chunks, shards of groups, gather groups. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "src/model/dimensions.hpp"
#include "src/shard/mesh.hpp"
#include "src/units.hpp"

namespace shardbench {

/// Elements [begin, begin + count) of a tensor, stored at `offset` of some buffer. Which buffer depends on
/// who made the slice: GroupLayout::slices() counts from the start of a part's block, GroupLayout::whole()
/// from that of the gathered group, whole_tensors() and Holding::held from that of the resting buffer, and
/// resident_slices() and Residence::owned from that of the packed optimizer state.
struct Slice {
  int tensor = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;
  bool operator==(const Slice&) const = default;
};
Elements total(std::span<const Slice> slices);

/// Where one kind of state (parameters, gradients) lies in its buffer.
struct Holding {
  Elements size;                       ///< of the buffer, padding included
  std::vector<Slice> held;             ///< every range in it
  std::vector<std::int64_t> owned_at;  ///< offset of each owned range
};

/// What rests on a rank. Of the ranges it owns it keeps the optimizer state; parameters and gradients may
/// rest there for more than that. Owned ranges go by their index in `owned`, which is also that in owned_at.
struct Residence {
  std::vector<Slice> owned;  ///< packed densely
  Holding parameters;
  Holding gradients;
};

enum class Layout {
  per_parameter,  ///< FSDP2: dim 0 of each tensor in ceil chunks
  flat,           ///< FSDP1: the group concatenated and padded to a multiple of the parts
};

/// How the tensors of one group are cut into `parts` equal blocks for collectives.
/// A gathered buffer is rank-major: block 0, block 1, ... each of `block()` elements, padding included.
class GroupLayout {
 public:
  /// A flat group is padded as if it held at least `fullest` parameters.
  GroupLayout(Layout layout, std::span<const TensorInfo> tensors, int parts, Elements fullest = Elements(0));

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

/// Whether each group's padding is kept between it and the next.
enum class Padding { none, included };

/// Every tensor whole, group after group; with Padding::included each group takes up its gathered size. Only
/// for layouts that are in place.
std::vector<Slice> whole_tensors(std::span<const GroupLayout> groups, Padding padding);

/// Gradients that are reduced together, by tensor index in reverse declaration order.
struct Bucket {
  std::vector<int> tensors;
  Elements elements;
};
/// Fills buckets in reverse declaration order; one closes when its size in `dtype` reaches its cap
/// (`first_cap` for the first), so it overshoots rather than split a tensor.
std::vector<Bucket> make_buckets(std::span<const TensorInfo> tensors, DType dtype, Bytes first_cap,
                                 Bytes cap);

/// Only what is owned (DDP, where that is everything, and ZeRO-3).
Holding hold_owned(std::span<const Slice> owned);
/// Every tensor of `groups`, of which this rank owns part `part`.
Holding hold_whole(std::span<const GroupLayout> groups, int part, Padding padding);

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

/// The groups' layouts on a rank of the mesh. Norm weights are replicated over tp, so the ranks of a
/// tensor-parallel group must own the same parts of them, though their parts of other tensors may differ in
/// size: with tp > 1 a flat group starts with its norms and is padded as the fullest rank's.
std::vector<GroupLayout> make_group_layouts(Layout layout, std::span<const Group> groups,
                                            const ModelDims& dims, const Mesh& mesh);

/// Flat layouts of buckets.
std::vector<GroupLayout> make_bucket_layouts(std::span<const Bucket> buckets,
                                             std::span<const TensorInfo> tensors, int parts);

}  // namespace shardbench
