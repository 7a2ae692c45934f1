// The one BLAS routine used, through the Fortran interface that every BLAS library offers.
#pragma once

#include <cstdint>

namespace shardbench::kernels {

enum class Transpose { no, yes };

/// A row-major operand: its first element, the distance between rows, and whether it enters transposed.
struct Operand {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  Transpose transpose = Transpose::no;
};

/// Row-major C[m, n] = alpha * op(A)[m, k] op(B)[k, n] + beta * C.
struct Gemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  float alpha = 1.0F;
  float beta = 0.0F;
};

void gemm(const Gemm& shape, Operand a, Operand b, float* c, std::int64_t c_row_stride);

}  // namespace shardbench::kernels
