#include "kernels/openmp/blas.hpp"

#include <algorithm>
#include <limits>

#include "src/errors.hpp"

extern "C" void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda, const float* b,
                       const int* ldb, const float* beta, float* c, const int* ldc);

namespace shardbench::kernels {
namespace {

int blas_int(std::int64_t value) {
  SHARDBENCH_ASSERT(value >= 0 && value <= std::numeric_limits<int>::max());
  return static_cast<int>(value);
}

char letter(Transpose transpose) { return transpose == Transpose::yes ? 'T' : 'N'; }

}  // namespace

void gemm(const Gemm& shape, Operand a, Operand b, float* c, std::int64_t c_row_stride) {
  if (shape.m == 0 || shape.n == 0) return;
  // Fortran sees a row-major matrix as its transpose, so C^T = op(B)^T op(A)^T: the operands swap places.
  const char tb = letter(b.transpose);
  const char ta = letter(a.transpose);
  const int m = blas_int(shape.n);
  const int n = blas_int(shape.m);
  const int k = blas_int(shape.k);
  // With k = 0 a row may be empty, but BLAS insists on a stride.
  const int ldb = std::max(1, blas_int(b.row_stride));
  const int lda = std::max(1, blas_int(a.row_stride));
  const int ldc = blas_int(c_row_stride);
  sgemm_(&tb, &ta, &m, &n, &k, &shape.alpha, b.data, &ldb, a.data, &lda, &shape.beta, c, &ldc);
}

}  // namespace shardbench::kernels
