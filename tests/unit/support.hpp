// What the unit tests share: reproducible values, storage of either element type, comparison of whole ranges.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "src/units.hpp"
#include "tests/unit/host_values.hpp"

namespace shardbench::test {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

/// Uniform in (-bound, bound), the same for the same seed.
inline Floats random_floats(std::int64_t count, unsigned seed, float bound = 1.0F) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-bound, bound);
  Floats values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return uniform(generator); });
  return values;
}

inline Doubles widened(const Floats& values) { return {values.begin(), values.end()}; }

inline float rounded_to(DType dtype, float value) {
  return dtype == DType::fp32 ? value : bodies::widen(bodies::narrow<bodies::BFloat16>(value));
}

/// A [rows, columns] tensor stored in fp32 or bf16, with its values as they were rounded.
class Stored {
 public:
  Stored(DType dtype, std::int64_t rows, std::int64_t columns, const Floats& values)
      : dtype_(dtype),
        rows_(rows),
        columns_(columns),
        floats_(dtype == DType::fp32 ? values : Floats{}),
        bf16s_(dtype == DType::bf16 ? values.size() : 0) {
    for (std::size_t i = 0; i < bf16s_.size(); ++i) bf16s_[i] = bodies::narrow<bodies::BFloat16>(values[i]);
  }
  Stored(DType dtype, const Floats& values) : Stored(dtype, std::ssize(values), 1, values) {}

  [[nodiscard]] kernels::TypedView view() {
    auto* data = dtype_ == DType::fp32 ? reinterpret_cast<std::byte*>(floats_.data())
                                       : reinterpret_cast<std::byte*>(bf16s_.data());
    return {data, dtype_, rows_, columns_};
  }
  [[nodiscard]] Floats values() const {
    if (dtype_ == DType::fp32) return floats_;
    Floats values;
    for (const bodies::BFloat16 value : bf16s_) values.push_back(bodies::widen(value));
    return values;
  }

 private:
  DType dtype_;
  std::int64_t rows_;
  std::int64_t columns_;
  Floats floats_;
  std::vector<bodies::BFloat16> bf16s_;
};

/// Every element within `tolerance` times the largest expected magnitude (or `least_scale`, where all may
/// cancel to zero); tells the worst one.
inline void expect_close(std::span<const float> actual, const Doubles& expected, double tolerance,
                         const std::string& what, double least_scale = 0.0) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double scale = least_scale;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  std::size_t worst = 0;
  double worst_error = -1.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (!(error <= worst_error)) {  // a NaN is the worst of all
      worst = i;
      worst_error = error;
      if (std::isnan(error)) break;
    }
  }
  if (expected.empty()) return;
  EXPECT_LE(worst_error, tolerance * scale) << what << ": element " << worst << " of " << expected.size()
                                            << " is " << actual[worst] << ", expected " << expected[worst];
}

/// Central finite differences of `loss` with respect to each element of `x`.
inline Doubles numeric_gradient(const std::function<double(const Doubles&)>& loss, Doubles x) {
  constexpr double step = 1e-5;  // near the cube root of double's epsilon, where both errors balance
  Doubles gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double centre = x[i];
    x[i] = centre + step;
    const double above = loss(x);
    x[i] = centre - step;
    gradient[i] = (above - loss(x)) / (2.0 * step);
    x[i] = centre;
  }
  return gradient;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Vectors of the host, as kernels of the host take them.
template <class T>
DeviceSpan<T> span_of(std::vector<T>& values) {
  return DeviceSpan<T>(std::span<T>(values));
}
template <class T>
DeviceSpan<const T> span_of(const std::vector<T>& values) {
  return DeviceSpan<const T>(std::span<const T>(values));
}

/// Kernels with scratch of their own; counts how often they let communication advance.
class KernelSet {
 public:
  explicit KernelSet(int threads, std::int64_t longest_sequence = 256, std::int64_t widest_weight_row = 256)
      : KernelSet(kernels::ScratchNeeds{longest_sequence, widest_weight_row, threads}) {}

  kernels::Kernels& operator*() { return *kernels_; }
  kernels::Kernels* operator->() { return kernels_.get(); }
  [[nodiscard]] int tiles() const { return tiles_; }

 private:
  explicit KernelSet(const kernels::ScratchNeeds& needs)
      : scratch_(static_cast<std::size_t>(kernels::openmp_scratch_elements(needs))),
        kernels_(kernels::make_openmp_kernels(needs, span_of(scratch_), [this] { ++tiles_; })) {}

  int tiles_ = 0;
  Floats scratch_;
  std::unique_ptr<kernels::Kernels> kernels_;
};

/// The results of `compute` with one thread and with two.
template <class Compute>
auto with_one_and_two_threads(Compute compute) {
  std::vector<decltype(compute(std::declval<kernels::Kernels&>()))> results;
  for (const int threads : {1, 2}) {
    KernelSet kernels(threads);
    results.push_back(compute(*kernels));
  }
  return results;
}

/// The same, where the sums' order must not depend on the thread count.
template <class Compute>
auto same_with_one_and_two_threads(Compute compute) {
  auto results = with_one_and_two_threads(compute);
  EXPECT_TRUE(results[0] == results[1]) << "one and two threads give different results";
  return results[0];
}

inline kernels::Matrix matrix(Floats& values, std::int64_t rows) {
  return {values.data(), rows, std::ssize(values) / rows};
}
inline kernels::ConstMatrix matrix(const Floats& values, std::int64_t rows) {
  return {values.data(), rows, std::ssize(values) / rows};
}

}  // namespace shardbench::test
