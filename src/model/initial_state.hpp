// Exact initial parameters and training tokens, reproducible by any other program (docs/contract.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/model/dimensions.hpp"

namespace shardbench {

/// Limits that keep the fields of the hashes apart.
constexpr std::int64_t seed_limit = 1 << 16;
constexpr std::int64_t step_limit = 1 << 15;
constexpr std::int64_t sequence_limit = 1 << 16;

/// Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014).
constexpr std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// The fp32 master value of an element, counted row-major in the part of the tensor that `tensor` describes.
float initial_value(std::uint64_t seed, const TensorInfo& tensor, std::int64_t element);

/// Inputs and targets of one micro-batch: B sequences of `seq` tokens each, sequence after sequence.
struct Batch {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
};

/// Fills `batch` with `sequences` consecutive sequences of a step's global batch, from `first_sequence` on.
void fill_batch(Batch& batch, const ModelDims& dims, std::uint64_t seed, std::int64_t step,
                std::int64_t first_sequence, std::int64_t sequences);

}  // namespace shardbench
