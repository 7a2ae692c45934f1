#include "src/collectives/sizes.hpp"

namespace shardbench {

SizedCollective sized(Collective collective, DType dtype, Bytes requested, int ranks) {
  constexpr std::int64_t alignment_bytes = 16;
  const std::int64_t elements = requested.count() / size_of(dtype);
  if (collective == Collective::all_reduce)
    return {.buffer = Elements(elements),
            .count = Elements(elements),
            .size = bytes_of(dtype, Elements(elements))};
  const std::int64_t alignment = alignment_bytes / size_of(dtype);
  const Elements block(elements / ranks / alignment * alignment);
  return {.buffer = block * ranks, .count = block, .size = bytes_of(dtype, block * ranks)};
}

double algorithm_bandwidth(Bytes size, double seconds) {
  return seconds > 0.0 ? static_cast<double>(size.count()) / 1e9 / seconds : 0.0;
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  return (collective == Collective::all_reduce ? 2.0 : 1.0) * (n - 1.0) / n;
}

}  // namespace shardbench
