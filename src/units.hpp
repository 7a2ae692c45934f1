// Strong types for the quantities that a benchmark must never mix up, and the element types.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace shardbench {

/// A signed 64-bit count of one unit. Only like units add and compare; a plain number scales.
template <class Unit>
class Quantity {
 public:
  constexpr Quantity() = default;
  explicit constexpr Quantity(std::int64_t count) : count_(count) {}

  [[nodiscard]] constexpr std::int64_t count() const { return count_; }

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity other) { return count_ += other.count_, *this; }
  constexpr Quantity& operator-=(Quantity other) { return count_ -= other.count_, *this; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.count_ + b.count_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.count_ - b.count_); }
  friend constexpr Quantity operator*(Quantity a, std::int64_t factor) { return Quantity(a.count_ * factor); }
  friend constexpr Quantity operator*(std::int64_t factor, Quantity a) { return a * factor; }

 private:
  std::int64_t count_ = 0;
};

using Bytes = Quantity<struct BytesUnit>;
using Elements = Quantity<struct ElementsUnit>;

/// ceil(numerator / denominator) for non-negative numerator and positive denominator.
constexpr std::int64_t ceil_div(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

/// Storage types. Arithmetic is fp32 throughout.
enum class DType : std::uint8_t { bf16, fp32 };

constexpr std::int64_t size_of(DType dtype) { return dtype == DType::bf16 ? 2 : 4; }
constexpr Bytes bytes_of(DType dtype, Elements elements) { return Bytes(size_of(dtype) * elements.count()); }
constexpr std::string_view name_of(DType dtype) { return dtype == DType::bf16 ? "bf16" : "fp32"; }

}  // namespace shardbench
