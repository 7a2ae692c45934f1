#include "src/train/gradient_reducer.hpp"

#include "src/errors.hpp"

namespace shardbench {

GradientReducer::GradientReducer(TrainContext& context, TracedCommunicator dp,
                                 const std::vector<Group>& groups, const std::vector<GroupLayout>& layouts,
                                 ResidentState& shards, double scale)
    : context_(context),
      dp_(std::move(dp)),
      groups_(groups),
      layouts_(layouts),
      shards_(shards),
      scale_(static_cast<float>(scale)),
      unsharded_(groups.size()),
      table_(context.tensors.size()) {
  std::int64_t slice = 0;
  for (const GroupLayout& layout : layouts_) {
    first_slice_.push_back(slice);
    slice += std::ssize(layout.slices(dp_.rank()));
  }
}

void GradientReducer::open(int group) {
  const auto g = static_cast<std::size_t>(group);
  if (unsharded_[g] != nullptr) return;
  const GroupLayout& layout = layouts_[g];
  // Transient, and in fp32 because the products that make them are; resting gradients have the parameter
  // dtype.
  unsharded_[g] =
      context_.memory.allocate(Category::gradients, DType::fp32, layout.real(), context_.activation);
  if (unsharded_[g]->holds_values())
    context_.kernels.fill_zero(view(*unsharded_[g], 0, layout.real().count()));
  for (const Slice& slice : layout.whole()) {
    const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(slice.tensor)];
    const auto values = view(*unsharded_[g], slice.offset, tensor.rows, tensor.columns);
    table_.set(slice.tensor, {reinterpret_cast<float*>(values.data), tensor.rows, tensor.columns});
  }
}

void GradientReducer::reduce_scatter(int group, ResidentState::Accumulate mode) {
  const auto g = static_cast<std::size_t>(group);
  const GroupLayout& layout = layouts_[g];
  const Subject subject{.layer = groups_[g].id};
  BufferRef buffer = context_.memory.allocate(Category::reduce_buffers, context_.options.reduce_dtype,
                                              layout.gathered(), context_.message);
  {
    const auto span = context_.recorder.copy_in(subject);
    copy_into_blocks(layout, *unsharded_[g], *buffer);
    context_.copies.settle();
  }
  for (const int tensor : groups_[g].tensors) table_.clear(tensor);
  unsharded_[g].reset();
  InFlight collective = dp_.start(Collective::reduce_scatter, buffer, subject);
  in_flight_.push_back({group, mode, std::move(buffer), std::move(collective)});
}

void GradientReducer::copy_into_blocks(const GroupLayout& layout, const Buffer& unsharded,
                                       const Buffer& buffer) {
  if (!unsharded.holds_values() || !buffer.holds_values())
    return context_.copies.add_copy(buffer, unsharded, layout.real());
  // Padding is summed too; what it held before must not turn into a signalling NaN on the way.
  if (layout.gathered() != layout.real())
    context_.kernels.fill_zero(view(buffer, 0, buffer.elements().count()));
  const std::vector<Slice> whole = layout.whole();
  for (int part = 0; part < layout.parts(); ++part) {
    std::size_t tensor = 0;
    for (const Slice& slice : layout.slices(part)) {
      while (whole[tensor].tensor != slice.tensor) ++tensor;
      copy_values(context_, buffer, part * layout.block().count() + slice.offset, unsharded,
                  whole[tensor].offset + slice.begin, slice.count, scale_);
    }
  }
}

void GradientReducer::wait() {
  while (!in_flight_.empty()) {
    finish(in_flight_.front());
    in_flight_.pop_front();
  }
}

void GradientReducer::finish(Reduction& reduction) {
  reduction.collective.wait();
  const auto g = static_cast<std::size_t>(reduction.group);
  const GroupLayout& layout = layouts_[g];
  const auto span = context_.recorder.copy_out({.layer = groups_[g].id});
  const std::int64_t own_block = dp_.rank() * layout.block().count();
  auto resident = static_cast<std::size_t>(first_slice_[g]);
  for (const Slice& slice : layout.slices(dp_.rank()))
    shards_.accumulate_gradient(shards_.residence().gradients.owned_at[resident++], slice.count,
                                *reduction.buffer, own_block + slice.offset, reduction.mode);
  context_.copies.settle();
}

}  // namespace shardbench
