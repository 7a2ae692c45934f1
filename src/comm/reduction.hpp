// How received elements are combined, on one thread: it happens between compute tiles, on the progress thread
// or in a simulator.
#pragma once

#include <cstdint>

#include "kernels/bodies/elementwise.hpp"
#include "src/comm/communicator.hpp"

namespace shardbench {

/// Combines source[i] into destination[i].
template <class To, class From>
void combine(Reduction reduction, To* destination, const From* source, std::int64_t count) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::average:  // divided once, when the sum is complete
      for (std::int64_t i = 0; i < count; ++i) bodies::add(i, destination, source);
      break;
    case Reduction::product:
      for (std::int64_t i = 0; i < count; ++i) bodies::multiply(i, destination, source);
      break;
    case Reduction::minimum:
      for (std::int64_t i = 0; i < count; ++i) bodies::minimum(i, destination, source);
      break;
    case Reduction::maximum:
      for (std::int64_t i = 0; i < count; ++i) bodies::maximum(i, destination, source);
      break;
  }
}

/// Rounds source[i] to the destination's type, for an average divided by the group's size first.
template <class To, class From>
void finish(Reduction reduction, int ranks, To* destination, const From* source, std::int64_t count) {
  if (reduction == Reduction::average) {
    const auto divisor = static_cast<float>(ranks);
    for (std::int64_t i = 0; i < count; ++i) bodies::divided_copy(i, destination, source, divisor);
  } else {
    for (std::int64_t i = 0; i < count; ++i) bodies::scaled_copy(i, destination, source, 1.0F);
  }
}

}  // namespace shardbench
