#include "src/device/cuda/cuda_api.hpp"

#include <fmt/format.h>

#include "src/errors.hpp"

namespace shardbench::cuda {

void check(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // or the next check would find it again
  throw RunError(fmt::format("{} failed at {}:{}: {}", call, file, line, cudaGetErrorString(code)));
}

}  // namespace shardbench::cuda
