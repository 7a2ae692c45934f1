#include "src/train/gradient_buckets.hpp"

#include <utility>

#include "src/errors.hpp"

namespace shardbench {

GradientBuckets::GradientBuckets(TrainContext& context, TracedCommunicator dp, Collective collective,
                                 const std::vector<Bucket>& buckets, const std::vector<GroupLayout>& layouts,
                                 ResidentState& state, double scale)
    : context_(context),
      dp_(std::move(dp)),
      collective_(collective),
      buckets_(buckets),
      layouts_(layouts),
      state_(state),
      scale_(static_cast<float>(scale)),
      bucket_of_tensor_(context.tensors.size()),
      offset_in_bucket_(context.tensors.size()),
      filling_(buckets.size()) {
  std::size_t owned = 0;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (const Slice& slice : layouts[b].whole()) {
      bucket_of_tensor_[static_cast<std::size_t>(slice.tensor)] = static_cast<int>(b);
      offset_in_bucket_[static_cast<std::size_t>(slice.tensor)] = slice.offset;
    }
    first_owned_.push_back(owned);
    owned += layouts[b].slices(part()).size();
  }
}

void GradientBuckets::add_final(int layer, const SourceOf& gradient_of, ResidentState::Accumulate mode) {
  for (auto tensor = context_.tensors.rbegin(); tensor != context_.tensors.rend(); ++tensor) {
    if (tensor->layer != layer) continue;
    const int bucket = bucket_of_tensor_[static_cast<std::size_t>(tensor->index)];
    fill(bucket, tensor->index, gradient_of(tensor->index));
    if (buckets_[static_cast<std::size_t>(bucket)].tensors.back() != tensor->index) continue;
    SHARDBENCH_ASSERT(bucket == next_);  // every rank issues the same collectives in the same sequence
    start(next_++, mode);
  }
}

void GradientBuckets::fill(int bucket, int tensor, const Source& source) {
  const auto b = static_cast<std::size_t>(bucket);
  const auto t = static_cast<std::size_t>(tensor);
  const GroupLayout& layout = layouts_[b];
  const auto span = context_.recorder.copy_in({.bucket = bucket});
  if (filling_[b] == nullptr) {
    filling_[b] = context_.memory.allocate(Category::reduce_buffers, context_.options.reduce_dtype,
                                           layout.gathered(), context_.message);
    // Padding is summed too; what it held before must not turn into a signalling NaN on the way.
    const std::int64_t padding = (layout.gathered() - layout.real()).count();
    if (filling_[b]->holds_values() && padding > 0)
      context_.kernels.fill_zero(view(*filling_[b], layout.real().count(), padding));
  }
  copy_values(context_, *filling_[b], offset_in_bucket_[t], source.buffer, source.offset,
              context_.tensors[t].elements().count(), scale_);
  context_.copies.settle();
}

void GradientBuckets::start(int bucket, ResidentState::Accumulate mode) {
  const auto b = static_cast<std::size_t>(bucket);
  const bool waits =
      collective_ == Collective::reduce_scatter && context_.options.rs_wait == ReduceScatterWait::next;
  if (waits && !in_flight_.empty()) finish_oldest();
  BufferRef buffer = std::exchange(filling_[b], nullptr);
  InFlight collective = dp_.start(collective_, buffer, {.bucket = bucket});
  in_flight_.push_back({bucket, std::move(buffer), std::move(collective), mode});
}

void GradientBuckets::wait() {
  SHARDBENCH_ASSERT(next_ == std::ssize(buckets_));
  next_ = 0;
  while (!in_flight_.empty()) finish_oldest();
}

void GradientBuckets::finish_oldest() {
  Reduction reduction = std::move(in_flight_.front());
  in_flight_.pop_front();
  reduction.collective.wait();
  const auto b = static_cast<std::size_t>(reduction.bucket);
  const auto span = context_.recorder.copy_out({.bucket = reduction.bucket});
  const std::int64_t own_block = part() * layouts_[b].block().count();
  std::size_t owned = first_owned_[b];
  for (const Slice& slice : layouts_[b].slices(part()))
    state_.accumulate_gradient(state_.residence().gradients.owned_at[owned++], slice.count, *reduction.buffer,
                               own_block + slice.offset, reduction.mode);
  context_.copies.settle();
}

}  // namespace shardbench
