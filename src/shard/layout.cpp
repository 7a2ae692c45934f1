#include "src/shard/layout.hpp"

#include <algorithm>

#include "src/errors.hpp"

namespace shardbench {

Elements total(std::span<const Slice> slices) {
  Elements sum;
  for (const Slice& slice : slices) sum += Elements(slice.count);
  return sum;
}

GroupLayout::GroupLayout(Layout layout, std::span<const TensorInfo> tensors, int parts, Elements fullest)
    : layout_(layout), tensors_(tensors.begin(), tensors.end()), parts_(parts) {
  SHARDBENCH_ASSERT(parts >= 1);
  for (const TensorInfo& t : tensors_) {
    real_ += t.elements();
    if (layout_ == Layout::per_parameter) block_ += Elements(ceil_div(t.rows, parts) * t.columns);
  }
  if (layout_ == Layout::flat) block_ = Elements(ceil_div(std::max(real_, fullest).count(), parts));
}

std::vector<Slice> GroupLayout::slices(int part) const {
  std::vector<Slice> result;
  if (layout_ == Layout::per_parameter) {
    std::int64_t offset = 0;
    for (const TensorInfo& t : tensors_) {
      const RowRange rows = chunk_of(t.rows, parts_, part);
      if (rows.count() > 0)
        result.push_back({t.index, rows.begin * t.columns, rows.count() * t.columns, offset});
      offset += ceil_div(t.rows, parts_) * t.columns;
    }
    return result;
  }
  const std::int64_t first = block_.count() * part;
  const std::int64_t last = first + block_.count();
  for (const Slice& tensor : whole()) {
    const std::int64_t begin = std::max(first, tensor.offset);
    const std::int64_t end = std::min(last, tensor.offset + tensor.count);
    if (begin < end) result.push_back({tensor.tensor, begin - tensor.offset, end - begin, begin - first});
  }
  return result;
}

bool GroupLayout::in_place() const { return layout_ == Layout::flat || parts_ == 1 || tensors_.size() == 1; }

std::vector<Slice> GroupLayout::whole() const {
  std::vector<Slice> result;
  std::int64_t offset = 0;
  for (const TensorInfo& t : tensors_) {
    result.push_back({t.index, 0, t.elements().count(), offset});
    offset += t.elements().count();
  }
  return result;
}

std::vector<Slice> resident_slices(std::span<const GroupLayout> groups, int part) {
  std::vector<Slice> result;
  std::int64_t offset = 0;
  for (const GroupLayout& group : groups)
    for (Slice slice : group.slices(part)) {
      slice.offset = offset;
      offset += slice.count;
      result.push_back(slice);
    }
  return result;
}

std::vector<Slice> whole_tensors(std::span<const GroupLayout> groups, Padding padding) {
  std::vector<Slice> result;
  std::int64_t offset = 0;
  for (const GroupLayout& group : groups) {
    SHARDBENCH_ASSERT(group.in_place());
    for (Slice slice : group.whole()) {
      slice.offset += offset;
      result.push_back(slice);
    }
    offset += (padding == Padding::included ? group.gathered() : group.real()).count();
  }
  return result;
}

Holding hold_owned(std::span<const Slice> owned) {
  Holding holding{.size = total(owned), .held = {owned.begin(), owned.end()}, .owned_at = {}};
  for (const Slice& slice : owned) holding.owned_at.push_back(slice.offset);
  return holding;
}

Holding hold_whole(std::span<const GroupLayout> groups, int part, Padding padding) {
  Holding holding{.size = {}, .held = whole_tensors(groups, padding), .owned_at = {}};
  for (const GroupLayout& group : groups) {
    const std::int64_t block = holding.size.count() + part * group.block().count();
    for (const Slice& slice : group.slices(part)) holding.owned_at.push_back(block + slice.offset);
    holding.size += padding == Padding::included ? group.gathered() : group.real();
  }
  return holding;
}

std::vector<Bucket> make_buckets(std::span<const TensorInfo> tensors, DType dtype, Bytes first_cap,
                                 Bytes cap) {
  std::vector<Bucket> buckets;
  bool open = false;
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    if (!open) buckets.emplace_back();
    Bucket& bucket = buckets.back();
    bucket.tensors.push_back(tensor->index);
    bucket.elements += tensor->elements();
    open = bytes_of(dtype, bucket.elements) < (buckets.size() == 1 ? first_cap : cap);
  }
  return buckets;
}

Grouping make_grouping(const ModelDims& dims, Wrap wrap) {
  SHARDBENCH_ASSERT(wrap == Wrap::root || dims.head == Head::own);
  Grouping grouping;
  for (int layer = 0; layer < dims.layer_count(); ++layer) {
    const bool joins_root = wrap == Wrap::root && layer == dims.head_layer();
    if (joins_root) {
      std::vector<int>& root = grouping.groups.front().tensors;
      for (const int tensor : tensors_of_layer(dims, layer))
        if (std::find(root.begin(), root.end(), tensor) == root.end()) root.push_back(tensor);
      grouping.group_of_layer.push_back(0);
    } else {
      grouping.group_of_layer.push_back(static_cast<int>(grouping.groups.size()));
      grouping.groups.push_back({.id = layer, .tensors = tensors_of_layer(dims, layer)});
    }
  }
  return grouping;
}

std::vector<GroupLayout> make_group_layouts(Layout layout, std::span<const Group> groups,
                                            const ModelDims& dims, const Mesh& mesh) {
  const std::vector<TensorInfo> declared = declare_tensors(dims);
  const std::vector<TensorInfo> own = tensor_parallel_part(declared, mesh.tp, mesh.tp_index);
  const std::vector<TensorInfo> first =
      tensor_parallel_part(declared, mesh.tp, 0);  // its chunks are the largest
  std::vector<GroupLayout> layouts;
  for (const Group& group : groups) {
    std::vector<TensorInfo> members;
    Elements fullest;
    for (const int tensor : group.tensors) {
      members.push_back(own[static_cast<std::size_t>(tensor)]);
      fullest += first[static_cast<std::size_t>(tensor)].elements();
    }
    if (layout == Layout::flat && mesh.tp > 1)
      std::stable_partition(members.begin(), members.end(), [](const TensorInfo& t) { return t.is_norm(); });
    layouts.emplace_back(layout, members, mesh.dp, fullest);
  }
  return layouts;
}

std::vector<GroupLayout> make_bucket_layouts(std::span<const Bucket> buckets,
                                             std::span<const TensorInfo> tensors, int parts) {
  std::vector<GroupLayout> layouts;
  for (const Bucket& bucket : buckets) {
    std::vector<TensorInfo> members;
    for (const int tensor : bucket.tensors) members.push_back(tensors[static_cast<std::size_t>(tensor)]);
    layouts.emplace_back(Layout::flat, members, parts);
  }
  return layouts;
}

}  // namespace shardbench
