#include "src/train/tensor_parallel.hpp"

#include <utility>

namespace shardbench {

TracedTensorParallelGroup::TracedTensorParallelGroup(TracedCommunicator communicator, Recorder& recorder,
                                                     Memory& memory, kernels::Kernels& kernels,
                                                     ModelledCopies& copies, DType dtype, Backing message)
    : communicator_(std::move(communicator)),
      recorder_(recorder),
      memory_(memory),
      kernels_(kernels),
      copies_(copies),
      dtype_(dtype),
      message_(message) {}

void TracedTensorParallelGroup::all_reduce(const BufferRef& values, int layer) {
  exchange({Collective::all_reduce, Range::whole, Range::whole}, values, layer);
}

void TracedTensorParallelGroup::all_gather(const BufferRef& values, int layer) {
  // The own block comes back rounded, so that every rank goes on with the same values.
  exchange({Collective::all_gather, Range::own_block, Range::whole}, values, layer);
}

void TracedTensorParallelGroup::reduce_scatter(const BufferRef& values, int layer) {
  exchange({Collective::reduce_scatter, Range::whole, Range::own_block}, values, layer);
}

void TracedTensorParallelGroup::all_reduce_exactly(const BufferRef& values, Reduction reduction, int layer) {
  const auto interruption = recorder_.interrupt_compute();
  const BufferRef message = memory_.part(values, 0, values->elements(), message_);
  communicator_.start(Collective::all_reduce, message, {.layer = layer}, reduction).wait();
}

void TracedTensorParallelGroup::exchange(const Exchange& exchange, const BufferRef& values, int layer) {
  const auto interruption = recorder_.interrupt_compute();
  if (dtype_ == DType::fp32) {
    const BufferRef message = memory_.part(values, 0, values->elements(), message_);
    communicator_.start(exchange.collective, message, {.layer = layer}).wait();
    return;
  }
  const BufferRef message = memory_.allocate(Category::workspace, dtype_, values->elements(), message_);
  {
    const auto span = recorder_.copy_in({.layer = layer});
    cast(*message, *values, exchange.before);
  }
  communicator_.start(exchange.collective, message, {.layer = layer}).wait();
  const auto span = recorder_.copy_out({.layer = layer});
  cast(*values, *message, exchange.after);
}

void TracedTensorParallelGroup::cast(const Buffer& to, const Buffer& from, Range range) {
  const std::int64_t block = to.elements().count() / size();
  const std::int64_t begin = range == Range::whole ? 0 : rank() * block;
  const std::int64_t count = range == Range::whole ? to.elements().count() : block;
  copies_.add_copy(to, from, Elements(count));
  copies_.settle();
  if (!to.holds_values() || !from.holds_values()) return;
  const auto view = [&](const Buffer& buffer) {
    return kernels::TypedView{buffer.data() + begin * size_of(buffer.dtype()), buffer.dtype(), count, 1};
  };
  kernels_.scaled_copy(view(to), view(from), 1.0F);
}

}  // namespace shardbench
