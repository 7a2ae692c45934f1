#include "kernels/cuda/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/errors.hpp"

namespace shardbench::kernels::cuda {
namespace {

// What NVIDIA's documentation asks for on Hopper.
constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

void check(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw RunError(fmt::format("{} failed at {}:{}: {}", call, file, line, cublasLtGetStatusString(status)));
}

#define SHARDBENCH_CUBLASLT(call) check((call), #call, __FILE__, __LINE__)

/// A matrix as cuBLASLt sees it: column-major, so that what is row-major here is transposed there.
class Layout {
 public:
  Layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t stride, int batch,
         std::int64_t batch_stride) {
    SHARDBENCH_CUBLASLT(cublasLtMatrixLayoutInit(&layout_, type, static_cast<std::uint64_t>(columns),
                                                 static_cast<std::uint64_t>(rows), stride));
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
  }
  cublasLtMatrixLayout_t get() { return &layout_; }

 private:
  template <class Value>
  void set(cublasLtMatrixLayoutAttribute_t attribute, Value value) {
    SHARDBENCH_CUBLASLT(cublasLtMatrixLayoutSetAttribute(&layout_, attribute, &value, sizeof value));
  }
  cublasLtMatrixLayoutOpaque_t layout_{};
};

/// An operand with rows and columns as they lie in memory.
Layout layout_of(const Operand& operand, cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                 int batch) {
  if (operand.transpose == Transpose::yes) std::swap(rows, columns);
  return {type, rows, columns, operand.row_stride, batch, operand.batch_stride};
}

cublasOperation_t operation_of(Transpose transpose) {
  return transpose == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/// The largest power of two up to 256 that divides the address.
std::uint32_t alignment_of(const void* address) {
  constexpr std::uintptr_t most = 256;
  const auto value = reinterpret_cast<std::uintptr_t>(address) | most;
  return static_cast<std::uint32_t>(value & (~value + 1));
}

}  // namespace

Gemm::Gemm(const std::shared_ptr<Device>& device)
    : workspace_(device->allocate(Bytes(static_cast<std::int64_t>(workspace_bytes)))) {
  cublasLtHandle_t handle = nullptr;
  SHARDBENCH_CUBLASLT(cublasLtCreate(&handle));
  handle_.reset(handle);
}

void Gemm::run(const Product& product, const Operand& a, const Operand& b, float* c, std::int64_t row_stride,
               std::int64_t batch_stride, cudaStream_t stream) {
  if (product.m == 0 || product.n == 0 || product.batch == 0) return;
  const cudaDataType_t type = product.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
  cublasLtMatmulDescOpaque_t description{};
  SHARDBENCH_CUBLASLT(cublasLtMatmulDescInit(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  // Column-major, c is transposed: c^T = b^T a^T. What was the second operand comes first.
  const cublasOperation_t first = operation_of(b.transpose);
  const cublasOperation_t second = operation_of(a.transpose);
  SHARDBENCH_CUBLASLT(
      cublasLtMatmulDescSetAttribute(&description, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
  SHARDBENCH_CUBLASLT(
      cublasLtMatmulDescSetAttribute(&description, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
  Layout layout_a = layout_of(a, type, product.m, product.k, product.batch);
  Layout layout_b = layout_of(b, type, product.k, product.n, product.batch);
  Layout layout_c(CUDA_R_32F, product.m, product.n, row_stride, product.batch, batch_stride);

  const std::uint32_t alignment = std::min({alignment_of(a.data), alignment_of(b.data), alignment_of(c)});
  const Shape shape{product.m,      product.n,      product.k,    product.dtype, product.batch,
                    a.transpose,    b.transpose,    a.row_stride, b.row_stride,  row_stride,
                    a.batch_stride, b.batch_stride, batch_stride, alignment};
  auto algorithm = algorithms_.find(shape);
  if (algorithm == algorithms_.end()) {
    cublasLtMatmulPreference_t preference = nullptr;
    SHARDBENCH_CUBLASLT(cublasLtMatmulPreferenceCreate(&preference));
    const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype([](cublasLtMatmulPreference_t p) {
                            static_cast<void>(cublasLtMatmulPreferenceDestroy(p));
                          })>
        owner(preference);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      SHARDBENCH_CUBLASLT(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    SHARDBENCH_CUBLASLT(cublasLtMatmulAlgoGetHeuristic(handle_.get(), &description, layout_b.get(),
                                                       layout_a.get(), layout_c.get(), layout_c.get(),
                                                       preference, 1, &found, &count));
    if (count == 0)
      throw RunError(fmt::format("cuBLASLt has no algorithm for a product of {} x {} x {} in {}", product.m,
                                 product.n, product.k, name_of(product.dtype)));
    algorithm = algorithms_.emplace(shape, found.algo).first;
  }
  const float alpha = 1.0F;
  SHARDBENCH_CUBLASLT(cublasLtMatmul(handle_.get(), &description, &alpha, b.data, layout_b.get(), a.data,
                                     layout_a.get(), &product.beta, c, layout_c.get(), c, layout_c.get(),
                                     &algorithm->second, workspace_.get(), workspace_bytes, stream));
}

}  // namespace shardbench::kernels::cuda
