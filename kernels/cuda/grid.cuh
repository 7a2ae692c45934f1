// What every launch needs: a storage type chosen at run time, a grid that covers the work, the error it left.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.hpp"
#include "src/device/cuda/cuda_api.hpp"

namespace shardbench::kernels::cuda {

constexpr int block_threads = 256;

/// Blocks of `per_block` that cover `count`.
inline unsigned int blocks_for(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned int>(ceil_div(count, per_block));
}

/// Calls with the view's address in its storage type.
template <class Use>
void for_storage(TypedView view, Use&& use) {
  if (view.dtype == DType::bf16) {
    use(reinterpret_cast<bodies::BFloat16*>(view.data));
  } else {
    use(reinterpret_cast<float*>(view.data));
  }
}

inline bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace shardbench::kernels::cuda
