#include "src/model/initial_state.hpp"

namespace shardbench {

float initial_value(std::uint64_t seed, const TensorInfo& tensor, std::int64_t element) {
  if (tensor.initial_bound == 0.0) return 1.0F;
  const auto index = static_cast<std::uint64_t>(tensor.index);
  const std::uint64_t hash = splitmix64((seed << 48U) ^ (index << 36U) ^
                                        static_cast<std::uint64_t>(tensor.declared_element(element)));
  const double uniform = static_cast<double>(hash >> 11U) * 0x1.0p-53;
  return static_cast<float>((2.0 * uniform - 1.0) * tensor.initial_bound);
}

void fill_batch(Batch& batch, const ModelDims& dims, std::uint64_t seed, std::int64_t step,
                std::int64_t first_sequence, std::int64_t sequences) {
  const auto length = static_cast<std::size_t>(dims.seq);
  const auto vocab = static_cast<std::uint64_t>(dims.vocab);
  batch.inputs.resize(static_cast<std::size_t>(sequences) * length);
  batch.targets.resize(batch.inputs.size());
  for (std::int64_t row = 0; row < sequences; ++row) {
    const auto sequence = static_cast<std::uint64_t>(first_sequence + row);
    const std::uint64_t stream = (seed << 48U) ^ (std::uint64_t{1} << 47U) ^
                                 (static_cast<std::uint64_t>(step) << 32U) ^ (sequence << 16U);
    const std::size_t offset = static_cast<std::size_t>(row) * length;
    std::uint64_t token = 0;
    for (std::size_t p = 0; p <= length; ++p) {
      const std::uint64_t random = splitmix64(stream ^ p);
      // Three tokens in four follow their predecessor, so that there is something to learn.
      const bool fresh = p == 0 || (random >> 62U) == 0;
      token = fresh ? random % vocab : (5 * token + 7) % vocab;
      if (p < length) batch.inputs[offset + p] = static_cast<std::int32_t>(token);
      if (p > 0) batch.targets[offset + p - 1] = static_cast<std::int32_t>(token);
    }
  }
}

}  // namespace shardbench
