// Matrix products through cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "src/device/device.hpp"
#include "src/units.hpp"

namespace shardbench::kernels::cuda {

enum class Transpose { no, yes };

/// A row-major matrix, as it is or transposed; of a batch, the first.
struct Operand {
  const void* data = nullptr;
  std::int64_t row_stride = 0;
  Transpose transpose = Transpose::no;
  std::int64_t batch_stride = 0;  ///< elements from one of a batch to the next
};

/// c[m, n] = a[m, k] b[k, n] + beta c, `batch` times. a and b have the storage type, c is fp32, and so are
/// the sums.
struct Product {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  DType dtype;
  float beta = 0.0F;
  int batch = 1;
};

class Gemm {
 public:
  explicit Gemm(const std::shared_ptr<Device>& device);

  void run(const Product& product, const Operand& a, const Operand& b, float* c, std::int64_t row_stride,
           std::int64_t batch_stride, cudaStream_t stream);
  void run(const Product& product, const Operand& a, const Operand& b, float* c, std::int64_t row_stride,
           cudaStream_t stream) {
    run(product, a, b, c, row_stride, 0, stream);
  }

 private:
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const { static_cast<void>(cublasLtDestroy(handle)); }
  };
  /// All that cuBLASLt's choice of an algorithm depends on.
  using Shape =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, DType, int, Transpose, Transpose, std::int64_t,
                 std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint32_t>;

  std::unique_ptr<cublasLtContext, Destroy> handle_;
  std::shared_ptr<std::byte> workspace_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;  ///< asked for once a shape
};

}  // namespace shardbench::kernels::cuda
