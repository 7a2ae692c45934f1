#include "src/train/layer_gradients.hpp"

namespace shardbench {

LayerGradients::LayerGradients(TrainContext& context)
    : context_(context), buffers_(context.tensors.size()), table_(context.tensors.size()) {}

void LayerGradients::open(int layer) {
  for (const int index : tensors_of_layer(context_.dims(), layer)) {
    const auto t = static_cast<std::size_t>(index);
    if (buffers_[t] != nullptr) continue;
    const TensorInfo& tensor = context_.tensors[t];
    buffers_[t] =
        context_.memory.allocate(Category::gradients, DType::fp32, tensor.elements(), context_.activation);
    const auto values = view(*buffers_[t], 0, tensor.rows, tensor.columns);
    if (buffers_[t]->holds_values()) context_.kernels.fill_zero(values);
    table_.set(index, {reinterpret_cast<float*>(values.data), tensor.rows, tensor.columns});
  }
}

void LayerGradients::free(int tensor) {
  table_.clear(tensor);
  buffers_[static_cast<std::size_t>(tensor)].reset();
}

void LayerGradients::free_final(int layer) {
  for (const TensorInfo& tensor : context_.tensors)
    if (tensor.layer == layer) free(tensor.index);
}

AccumulatedGradients::AccumulatedGradients(TrainContext& context, ResidentState& state)
    : context_(context), state_(state), offsets_(context.tensors.size()) {
  for (const Slice& slice : state.residence().gradients.held)
    offsets_[static_cast<std::size_t>(slice.tensor)] = slice.offset;
  begin_step();
}

void AccumulatedGradients::begin_step() {
  mode_.assign(context_.tensors.size(), ResidentState::Accumulate::replace);
}

void AccumulatedGradients::add(int layer, LayerGradients& gradients) {
  for (const int tensor : tensors_of_layer(context_.dims(), layer)) {
    const auto t = static_cast<std::size_t>(tensor);
    const Buffer& source = gradients.of(tensor);
    state_.accumulate_gradient(offsets_[t], source.elements().count(), source, 0, mode_[t]);
    mode_[t] = ResidentState::Accumulate::add;
    gradients.free(tensor);
  }
  context_.copies.settle();
}

}  // namespace shardbench
