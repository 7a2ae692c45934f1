// What a decoder asks of the ranks that share its tensors.
#pragma once

#include "src/comm/communicator.hpp"
#include "src/device/buffer.hpp"

namespace shardbench {

/// Whether the residual stream between the tensor-parallel regions is cut along the sequence
/// (Korthikanti et al., arXiv:2205.05198) or kept whole by every rank.
enum class SequenceParallel { off, on };

/// Collectives over a tensor-parallel group, complete on return. Buffers hold fp32 values of all T tokens, in
/// blocks of T/size() tokens a rank; messages travel in the parameter dtype. `layer` is for the trace.
class TensorParallelGroup {
 public:
  TensorParallelGroup() = default;
  TensorParallelGroup(const TensorParallelGroup&) = delete;
  TensorParallelGroup& operator=(const TensorParallelGroup&) = delete;
  virtual ~TensorParallelGroup() = default;

  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual int rank() const = 0;

  virtual void all_reduce(const BufferRef& values, int layer) = 0;
  /// The own block is filled; afterwards all are.
  virtual void all_gather(const BufferRef& values, int layer) = 0;
  /// Afterwards the own block holds the sum; the others are undefined.
  virtual void reduce_scatter(const BufferRef& values, int layer) = 0;
  /// fp32 on the wire too.
  virtual void all_reduce_exactly(const BufferRef& values, Reduction reduction, int layer) = 0;
};

}  // namespace shardbench
