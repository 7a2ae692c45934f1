// What the ranks feed into a collective, and what must come out: exactly, whatever the algorithm.
#pragma once

#include <cstdint>
#include <vector>

#include "src/comm/communicator.hpp"
#include "src/device/buffer.hpp"

namespace shardbench {

/// Reproducible inputs whose results have few enough digits for bf16 in any order of combining:
///   all-gather, minimum, maximum  whole numbers from 1 to 251
///   sum, average                  at most 32 ranks contribute 1 ... 7 to an element, the others 0: sums stay
///                                 below 256; an average is that sum, divided and rounded once
///   product                       the same 32 ranks contribute 1, 2 or 4, the others 1: at most 2^64
/// Values depend on rank and position modulo a prime, so that a block in the wrong place shows.
class TestValues {
 public:
  /// Elements [begin, begin + count) of a buffer.
  struct Part {
    std::int64_t begin;
    std::int64_t count;
  };

  TestValues(Collective collective, Reduction reduction, int ranks)
      : collective_(collective), reduction_(reduction), ranks_(ranks) {}

  /// Writes what `rank` brings in; what an all-gather is to fill holds zeros, which occur in no result.
  void fill(const Buffer& buffer, int rank) const;

  /// Elements that are not what they must be on `rank`, of those that the collective defines.
  [[nodiscard]] std::int64_t count_wrong(const Buffer& buffer, int rank) const;

 private:
  [[nodiscard]] float input(int rank, std::int64_t position) const;
  template <class Use>
  static void for_each_position(Part part, Use use);
  /// By position modulo the period; only what `part` needs is filled in.
  [[nodiscard]] std::vector<float> inputs(int rank, Part part) const;
  [[nodiscard]] std::vector<float> reduced(Part part) const;
  [[nodiscard]] Part block_of(const Buffer& buffer, int rank) const;

  Collective collective_;
  Reduction reduction_;
  int ranks_;
};

}  // namespace shardbench
