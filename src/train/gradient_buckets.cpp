#include "src/train/gradient_buckets.hpp"

#include <utility>

#include "src/errors.hpp"

namespace shardbench {

GradientBuckets::GradientBuckets(TrainContext& context, TracedCommunicator dp, ResidentState& whole,
                                 std::vector<Bucket> buckets, double scale)
    : context_(context),
      dp_(std::move(dp)),
      whole_(whole),
      buckets_(std::move(buckets)),
      scale_(static_cast<float>(scale)) {}

void GradientBuckets::reduce_completed(int layer) {
  // Strictly in order: every rank must issue the same collectives in the same sequence.
  while (next_ < std::ssize(buckets_) &&
         buckets_[static_cast<std::size_t>(next_)].complete_after_layer >= layer)
    start(next_++);
}

void GradientBuckets::start(int index) {
  const Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  const Subject subject{.bucket = index};
  BufferRef buffer = context_.memory.allocate(Category::reduce_buffers, context_.options.reduce_dtype,
                                              bucket.elements, context_.message);
  {
    const auto span = context_.recorder.copy_in(subject);
    std::int64_t offset = 0;
    for (const int tensor : bucket.tensors) {
      const Slice& slice = whole_.slices()[static_cast<std::size_t>(tensor)];
      copy_values(context_, *buffer, offset, whole_.gradients(), slice.offset, slice.count, scale_);
      offset += slice.count;
    }
  }
  InFlight collective = dp_.start(Collective::all_reduce, buffer, subject);
  in_flight_.push_back({index, std::move(buffer), std::move(collective)});
}

void GradientBuckets::wait() {
  for (Reduction& reduction : in_flight_) {
    reduction.collective.wait();
    const auto span = context_.recorder.copy_out({.bucket = reduction.bucket});
    std::int64_t offset = 0;
    for (const int tensor : buckets_[static_cast<std::size_t>(reduction.bucket)].tensors) {
      const Slice& slice = whole_.slices()[static_cast<std::size_t>(tensor)];
      whole_.accumulate_gradient(slice, *reduction.buffer, offset, ResidentState::Accumulate::replace);
      offset += slice.count;
    }
    reduction.buffer.reset();
  }
  SHARDBENCH_ASSERT(next_ == std::ssize(buckets_));
  in_flight_.clear();
  next_ = 0;
}

LayerGradients::LayerGradients(TrainContext& context, ResidentState& whole)
    : context_(context), whole_(whole), table_(context.tensors.size()) {
  begin_step();
}

void LayerGradients::begin_step() {
  mode_.assign(context_.tensors.size(), ResidentState::Accumulate::replace);
}

void LayerGradients::open(int layer) {
  Elements size;
  const std::vector<int> tensors = tensors_of_layer(context_.dims(), layer);
  for (const int tensor : tensors) size += context_.tensors[static_cast<std::size_t>(tensor)].elements();
  buffer_ = context_.memory.allocate(Category::gradients, DType::fp32, size, context_.activation);
  if (buffer_->holds_values()) context_.kernels.fill_zero(view(*buffer_, 0, size.count()));
  std::int64_t offset = 0;
  for (const int index : tensors) {
    const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(index)];
    const auto values = view(*buffer_, offset, tensor.rows, tensor.columns);
    table_.set(index, {reinterpret_cast<float*>(values.data), tensor.rows, tensor.columns});
    offset += tensor.elements().count();
  }
}

void LayerGradients::add_to_resting(int layer) {
  std::int64_t offset = 0;
  for (const int tensor : tensors_of_layer(context_.dims(), layer)) {
    const auto t = static_cast<std::size_t>(tensor);
    whole_.accumulate_gradient(whole_.slices()[t], *buffer_, offset, mode_[t]);
    mode_[t] = ResidentState::Accumulate::add;
    offset += whole_.slices()[t].count;
    table_.clear(tensor);
  }
  buffer_.reset();
}

}  // namespace shardbench
