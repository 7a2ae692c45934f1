#include "src/collectives/test_values.hpp"

#include <algorithm>
#include <span>

#include "kernels/bodies/portable.hpp"
#include "src/errors.hpp"

namespace shardbench {
namespace {

using bodies::BFloat16;

/// Prime, so that it divides no block or segment length that is likely.
constexpr std::int64_t period = 8191;
constexpr std::int64_t most_contributors = 32;

/// Sebastiano Vigna's splitmix64 (docs/contract.md).
std::uint64_t hash(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

template <class Value>
std::span<Value> values_of(const Buffer& buffer) {
  return {reinterpret_cast<Value*>(buffer.data()), static_cast<std::size_t>(buffer.elements().count())};
}

using Part = TestValues::Part;

template <class Value>
void write(const Buffer& buffer, Part part, std::span<const float> wanted) {
  const std::span<Value> values = values_of<Value>(buffer);
  std::int64_t position = part.begin % period;
  for (std::int64_t i = part.begin; i < part.begin + part.count; ++i) {
    values[static_cast<std::size_t>(i)] = bodies::narrow<Value>(wanted[static_cast<std::size_t>(position)]);
    if (++position == period) position = 0;
  }
}

template <class Value>
std::int64_t differing(const Buffer& buffer, Part part, std::span<const float> wanted) {
  const std::span<const Value> values = values_of<Value>(buffer);
  std::int64_t position = part.begin % period;
  std::int64_t wrong = 0;
  for (std::int64_t i = part.begin; i < part.begin + part.count; ++i) {
    const float rounded = bodies::widen(bodies::narrow<Value>(wanted[static_cast<std::size_t>(position)]));
    // Written so that a NaN is wrong.
    if (!(bodies::widen(values[static_cast<std::size_t>(i)]) == rounded)) ++wrong;
    if (++position == period) position = 0;
  }
  return wrong;
}

void write(const Buffer& buffer, Part part, std::span<const float> wanted) {
  buffer.dtype() == DType::fp32 ? write<float>(buffer, part, wanted) : write<BFloat16>(buffer, part, wanted);
}

std::int64_t differing(const Buffer& buffer, Part part, std::span<const float> wanted) {
  return buffer.dtype() == DType::fp32 ? differing<float>(buffer, part, wanted)
                                       : differing<BFloat16>(buffer, part, wanted);
}

float combined(Reduction reduction, float a, float b) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::average:
      return a + b;
    case Reduction::product:
      return a * b;
    case Reduction::minimum:
      return std::min(a, b);
    case Reduction::maximum:
      return std::max(a, b);
  }
  return a;
}

}  // namespace

float TestValues::input(int rank, std::int64_t position) const {
  const std::uint64_t h =
      hash((static_cast<std::uint64_t>(rank) << 32U) ^ static_cast<std::uint64_t>(position));
  const std::int64_t stride = ceil_div(ranks_, most_contributors);
  const bool contributes = (position + rank) % stride == 0;
  const bool adds = reduction_ == Reduction::sum || reduction_ == Reduction::average;
  if (collective_ != Collective::all_gather && adds)
    return contributes ? static_cast<float>(1U + h % 7U) : 0.0F;
  if (collective_ != Collective::all_gather && reduction_ == Reduction::product)
    return contributes ? static_cast<float>(1U << (h % 3U)) : 1.0F;
  return static_cast<float>(1U + h % 251U);
}

template <class Use>
void TestValues::for_each_position(Part part, Use use) {
  for (std::int64_t i = part.begin; i < part.begin + std::min(part.count, period); ++i) use(i % period);
}

std::vector<float> TestValues::inputs(int rank, Part part) const {
  std::vector<float> values(static_cast<std::size_t>(period));
  for_each_position(part, [&](std::int64_t position) {
    values[static_cast<std::size_t>(position)] = input(rank, position);
  });
  return values;
}

std::vector<float> TestValues::reduced(Part part) const {
  std::vector<float> values(static_cast<std::size_t>(period));
  for_each_position(part, [&](std::int64_t position) {
    float value = input(0, position);
    for (int rank = 1; rank < ranks_; ++rank) value = combined(reduction_, value, input(rank, position));
    const float divisor = reduction_ == Reduction::average ? static_cast<float>(ranks_) : 1.0F;
    values[static_cast<std::size_t>(position)] = value / divisor;
  });
  return values;
}

void TestValues::fill(const Buffer& buffer, int rank) const {
  const Part all{0, buffer.elements().count()};
  if (collective_ != Collective::all_gather) {
    write(buffer, all, inputs(rank, all));
    return;
  }
  const Part own = block_of(buffer, rank);
  write(buffer, all, std::vector<float>(static_cast<std::size_t>(period), 0.0F));
  write(buffer, own, inputs(rank, own));
}

TestValues::Part TestValues::block_of(const Buffer& buffer, int rank) const {
  const std::int64_t block = buffer.elements().count() / ranks_;
  return {rank * block, block};
}

std::int64_t TestValues::count_wrong(const Buffer& buffer, int rank) const {
  if (collective_ != Collective::all_gather) {
    const Part defined =
        collective_ == Collective::all_reduce ? Part{0, buffer.elements().count()} : block_of(buffer, rank);
    return differing(buffer, defined, reduced(defined));
  }
  std::int64_t wrong = 0;
  for (int owner = 0; owner < ranks_; ++owner) {
    const Part block = block_of(buffer, owner);
    wrong += differing(buffer, block, inputs(owner, block));
  }
  return wrong;
}

}  // namespace shardbench
