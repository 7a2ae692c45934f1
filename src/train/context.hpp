// What every part of a training step works with. One per rank; owned by the runner.
#pragma once

#include <functional>

#include "src/model/decoder.hpp"
#include "src/options.hpp"
#include "src/shard/mesh.hpp"
#include "src/train/backend.hpp"
#include "src/train/collectives.hpp"
#include "src/train/modelled_copies.hpp"

namespace shardbench {

/// What stands behind buffers:
///                          resident   activation   message
///   compute real           memory     memory       memory
///   timed, payload real    memory     none         memory (meaningless values: nothing computed them)
///   timed, phantom         none       none         aliased
///   --plan                 none       none         none
struct TrainContext {
  const Options& options;
  World& world;
  Memory& memory;
  Recorder& recorder;
  Backend& backend;
  kernels::Kernels& kernels;
  Decoder& decoder;
  ModelledCopies& copies;
  Mesh mesh;
  const std::vector<TensorInfo>& tensors;  ///< as tensor parallelism leaves them to this rank
  Backing resident;    ///< of parameters, gradients and optimizer state: memory, or none with phantom payload
  Backing activation;  ///< of what compute writes: memory, or none when compute is only timed
  Backing message;     ///< of what collectives move: memory, aliased with phantom payload, none in a plan
  /// Lets the time of updating so many elements pass, unless real arithmetic takes it.
  std::function<void(Elements)> imitate_optimizer;

  [[nodiscard]] const ModelDims& dims() const { return decoder.dims(); }
};

/// First global sequence of a micro-batch: data-parallel index d trains d*A*B ... (d+1)*A*B - 1.
inline std::int64_t first_sequence(const TrainContext& context, int micro) {
  const Options& options = context.options;
  return (context.mesh.dp_index * options.grad_accum + micro) * options.micro_batch;
}

/// When a gradient bucket closes.
inline Bytes bucket_cap(const Options& options) { return Bytes(options.bucket_mb << 20); }

/// The part of a buffer that a slice occupies.
inline kernels::TypedView view(const Buffer& buffer, std::int64_t offset, std::int64_t rows,
                               std::int64_t columns = 1) {
  std::byte* data = buffer.data() == nullptr ? nullptr : buffer.data() + offset * size_of(buffer.dtype());
  return {data, buffer.dtype(), rows, columns};
}

/// Copies where there are values to copy: phantom buffers are only accounted for. Whoever records copies
/// settles context.copies at their end.
inline void copy_values(TrainContext& context, const Buffer& to, std::int64_t to_offset, const Buffer& from,
                        std::int64_t from_offset, std::int64_t count, float scale = 1.0F) {
  context.copies.add_copy(to, from, Elements(count));
  if (to.holds_values() && from.holds_values())
    context.kernels.scaled_copy(view(to, to_offset, count), view(from, from_offset, count), scale);
}

}  // namespace shardbench
