// The tensor-parallel group of a training rank: traced, in the parameter dtype.
#pragma once

#include "kernels/kernels.hpp"
#include "src/device/buffer.hpp"
#include "src/model/tensor_parallel.hpp"
#include "src/train/collectives.hpp"
#include "src/train/modelled_copies.hpp"

namespace shardbench {

/// Every call interrupts the compute that is being recorded, and returns when its result is there: what the
/// tensor-parallel regions need, they need at once.
class TracedTensorParallelGroup final : public TensorParallelGroup {
 public:
  /// `message` backs what travels where values do not exist (compute that is only timed, plans).
  TracedTensorParallelGroup(TracedCommunicator communicator, Recorder& recorder, Memory& memory,
                            kernels::Kernels& kernels, ModelledCopies& copies, DType dtype, Backing message);

  [[nodiscard]] int size() const override { return communicator_.size(); }
  [[nodiscard]] int rank() const override { return communicator_.rank(); }

  void all_reduce(const BufferRef& values, int layer) override;
  void all_gather(const BufferRef& values, int layer) override;
  void reduce_scatter(const BufferRef& values, int layer) override;
  void all_reduce_exactly(const BufferRef& values, Reduction reduction, int layer) override;

 private:
  enum class Range { whole, own_block };
  struct Exchange {
    Collective collective;
    Range before;  ///< what of `values` goes into the message
    Range after;   ///< what of the message goes back
  };
  void exchange(const Exchange& exchange, const BufferRef& values, int layer);
  void cast(const Buffer& to, const Buffer& from, Range range);

  TracedCommunicator communicator_;
  Recorder& recorder_;
  Memory& memory_;
  kernels::Kernels& kernels_;
  ModelledCopies& copies_;
  DType dtype_;
  Backing message_;
};

}  // namespace shardbench
