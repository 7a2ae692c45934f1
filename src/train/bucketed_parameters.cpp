#include "src/train/bucketed_parameters.hpp"

#include <utility>

namespace shardbench {

BucketedParameters::BucketedParameters(TrainContext& context, TracedCommunicator dp,
                                       const std::vector<Bucket>& buckets,
                                       const std::vector<GroupLayout>& layouts, const ResidentState& state)
    : context_(context),
      dp_(std::move(dp)),
      layouts_(layouts),
      state_(state),
      bucket_of_tensor_(context.tensors.size()),
      gathers_(buckets.size()),
      weights_(context.tensors.size()) {
  for (std::size_t b = 0; b < buckets.size(); ++b)
    for (const int tensor : buckets[b].tensors)
      bucket_of_tensor_[static_cast<std::size_t>(tensor)] = static_cast<int>(b);
  for (const Slice& slice : state.residence().parameters.held) {
    const TensorInfo& tensor = context.tensors[static_cast<std::size_t>(slice.tensor)];
    weights_.set(slice.tensor, view(*state.parameters(), slice.offset, tensor.rows, tensor.columns));
  }
}

void BucketedParameters::gather() {
  std::int64_t end = state_.parameters()->elements().count();
  for (std::size_t b = layouts_.size(); b-- > 0;) {  // buckets are in backward's order
    const Elements size = layouts_[b].gathered();
    end -= size.count();
    gathers_[b] = dp_.start(Collective::all_gather,
                            context_.memory.part(state_.parameters(), end, size, context_.message),
                            {.bucket = static_cast<int>(b)});
  }
}

void BucketedParameters::wait(int layer) {
  for (const int tensor : tensors_of_layer(context_.dims(), layer)) {
    InFlight& gather =
        gathers_[static_cast<std::size_t>(bucket_of_tensor_[static_cast<std::size_t>(tensor)])];
    if (gather.active()) gather.wait();
  }
}

void BucketedParameters::wait_all() {
  for (std::size_t b = gathers_.size(); b-- > 0;)
    if (gathers_[b].active()) gathers_[b].wait();
}

}  // namespace shardbench
