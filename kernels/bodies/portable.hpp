// What every kernel body shares: the host/device mark, bf16 storage, and the lanes that work on one row.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define SHARDBENCH_BODY __host__ __device__ inline
#else
#define SHARDBENCH_BODY inline
#endif

namespace shardbench::bodies {

/// bfloat16 is storage only: every body widens to fp32 before computing.
struct BFloat16 {
  std::uint16_t bits;
};

SHARDBENCH_BODY float widen(float value) { return value; }
SHARDBENCH_BODY float widen(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

template <class Storage>
SHARDBENCH_BODY Storage narrow(float value);

template <>
SHARDBENCH_BODY float narrow<float>(float value) {
  return value;
}

/// Round to nearest, ties to even; a NaN stays a (quiet) NaN instead of being rounded to infinity.
template <>
SHARDBENCH_BODY BFloat16 narrow<BFloat16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return BFloat16{static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40U : rounded >> 16)};
}

/// Row bodies are written for a team of lanes, so that one CPU thread (one lane) and a warp or a block of a
/// GPU run the same text. `each` deals all columns of a row out, and `fill` stores what is returned for each;
/// `sum`, `maximum` and `any` combine what the lanes found and return the result to all.
struct OneLane {
  static constexpr std::int64_t index = 0;
  static constexpr std::int64_t count = 1;
  template <class Use>
  static void each(std::int64_t columns, Use&& use) {
    for (std::int64_t c = 0; c < columns; ++c) use(c);
  }
  template <class Value>
  static void fill(float* to, std::int64_t columns, Value&& value) {
    for (std::int64_t c = 0; c < columns; ++c) to[c] = value(c);
  }
  [[nodiscard]] static float sum(float value) { return value; }
  [[nodiscard]] static double sum(double value) { return value; }
  [[nodiscard]] static float maximum(float value) { return value; }
  [[nodiscard]] static bool any(bool value) { return value; }
};

}  // namespace shardbench::bodies
