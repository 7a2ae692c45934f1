// The textbook ledger of ZeRO: static bytes and communication volume per rank (Rajbhandari et al.,
// arXiv:1910.02054).
#pragma once

#include <cstdint>
#include <string>

#include "src/options.hpp"

namespace shardbench {

/// An exact non-negative fraction; integral where the division comes out even.
struct Exact {
  __extension__ using Wide = __int128;
  Wide numerator = 0;
  std::int64_t denominator = 1;

  [[nodiscard]] bool is_integer() const { return numerator % denominator == 0; }
  [[nodiscard]] double value() const {
    return static_cast<double>(numerator) / static_cast<double>(denominator);
  }
  /// Decimal digits when integral, else the shortest decimal that reads back as value().
  [[nodiscard]] std::string text() const;
};

struct LedgerQuestion {
  std::int64_t sharded_parameters = 0;     ///< Psi, or with tp the part that tp divides
  std::int64_t replicated_parameters = 0;  ///< with tp: norm weights, which every tp rank holds
  int tp = 1;
  std::int64_t n = 1;   ///< data-parallel ranks
  int stage = 0;        ///< 0 DDP, 1, 2, 3
  std::int64_t k = 12;  ///< optimizer bytes per parameter
  DType param_dtype = DType::bf16;
  DType reduce_dtype = DType::fp32;
  Fp32Accumulation fp32_grad_accum = Fp32Accumulation::off;
  std::int64_t grad_accum = 1;
  ReshardAfterForward reshard = ReshardAfterForward::all;
  std::int64_t kept_parameters =
      0;  ///< with reshard `blocks`: parameters of {norm, head}, as sharded_parameters
};

struct LedgerAnswer {
  Exact parameters_bytes;
  Exact gradients_bytes;
  Exact optimizer_bytes;
  Exact static_bytes;
  Exact all_reduce_elements;
  Exact reduce_scatter_elements;
  Exact all_gather_elements;
  Exact volume_elements;
  Exact volume_bytes;
};

/// Stage 0: 2+2+k bytes, 2 Psi elements; 1: 4 + k/N, 2 Psi; 2: 2 + (2+k)/N, (A+1) Psi; 3: (4+k)/N, 3A Psi
/// (2A Psi without resharding); every volume x (N-1)/N. fp32 accumulation adds 4, sharded from stage 2 on.
LedgerAnswer answer(const LedgerQuestion& question);

}  // namespace shardbench
