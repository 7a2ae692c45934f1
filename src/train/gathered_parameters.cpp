#include "src/train/gathered_parameters.hpp"

#include "src/errors.hpp"

namespace shardbench {

GatheredParameters::GatheredParameters(TrainContext& context, TracedCommunicator dp,
                                       const std::vector<Group>& groups,
                                       const std::vector<GroupLayout>& layouts, const ResidentState& shards)
    : context_(context),
      dp_(std::move(dp)),
      groups_(groups),
      layouts_(layouts),
      shards_(shards),
      states_(groups.size()),
      weights_(context.tensors.size()) {
  std::int64_t offset = 0;
  for (const GroupLayout& layout : layouts_) {
    shard_offset_.push_back(offset);
    offset += total(layout.slices(dp_.rank())).count();
  }
}

void GatheredParameters::gather(int group) {
  const auto g = static_cast<std::size_t>(group);
  State& state = states_[g];
  if (state.output != nullptr || state.ready) return;
  const GroupLayout& layout = layouts_[g];
  const Subject subject{.layer = groups_[g].id};
  state.output = context_.memory.allocate(Category::gathered_parameters, context_.options.param_dtype,
                                          layout.gathered(), context_.message);
  {
    const auto span = context_.recorder.copy_in(subject);
    const std::int64_t own_block = dp_.rank() * layout.block().count();
    std::int64_t offset = shard_offset_[g];
    for (const Slice& slice : layout.slices(dp_.rank())) {
      copy_values(context_, *state.output, own_block + slice.offset, *shards_.parameters(), offset,
                  slice.count);
      offset += slice.count;
    }
    context_.copies.settle();
  }
  state.gather = dp_.start(Collective::all_gather, state.output, subject);
}

void GatheredParameters::wait(int group) {
  const auto g = static_cast<std::size_t>(group);
  State& state = states_[g];
  if (state.ready) return;
  SHARDBENCH_ASSERT(state.gather.active());
  state.gather.wait();
  state.ready = true;
  const GroupLayout& layout = layouts_[g];
  if (layout.in_place()) {
    expose(group, *state.output);
    return;
  }
  const auto span = context_.recorder.copy_out({.layer = groups_[g].id});
  state.unsharded = context_.memory.allocate(Category::gathered_parameters, context_.options.param_dtype,
                                             layout.real(), context_.message);
  copy_out(layout, *state.output, *state.unsharded);
  context_.copies.settle();
  expose(group, *state.unsharded);
  state.output.reset();
}

void GatheredParameters::copy_out(const GroupLayout& layout, const Buffer& output, const Buffer& unsharded) {
  if (!output.holds_values()) return context_.copies.add_copy(unsharded, output, layout.real());
  const std::vector<Slice> whole = layout.whole();
  for (int part = 0; part < layout.parts(); ++part) {
    std::size_t tensor = 0;
    for (const Slice& slice : layout.slices(part)) {
      while (whole[tensor].tensor != slice.tensor) ++tensor;
      copy_values(context_, unsharded, whole[tensor].offset + slice.begin, output,
                  part * layout.block().count() + slice.offset, slice.count);
    }
  }
}

void GatheredParameters::reshard(int group) {
  const auto g = static_cast<std::size_t>(group);
  SHARDBENCH_ASSERT(!states_[g].gather.active());
  for (const int tensor : groups_[g].tensors) weights_.clear(tensor);
  states_[g] = {};
}

void GatheredParameters::expose(int group, const Buffer& buffer) {
  for (const Slice& slice : layouts_[static_cast<std::size_t>(group)].whole()) {
    const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(slice.tensor)];
    weights_.set(slice.tensor, view(buffer, slice.offset, tensor.rows, tensor.columns));
  }
}

}  // namespace shardbench
