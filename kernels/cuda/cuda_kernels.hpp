// The kernels on a GPU.
#pragma once

#include <memory>

#include "kernels/kernels.hpp"
#include "src/device/buffer.hpp"
#include "src/device/cuda/cuda_device.hpp"

namespace shardbench::kernels {

/// Launches the bodies, attention's kernels, and cuBLASLt for products, on the device's compute stream; every
/// call returns before its work is done. Products read operands in the parameters' type, into which
/// activations are cast on the way; sums are fp32. `memory` is where casts and tiles of scores go, as
/// workspace.
std::unique_ptr<Kernels> make_cuda_kernels(std::shared_ptr<shardbench::cuda::CudaDevice> device,
                                           Memory& memory, DType parameter);

}  // namespace shardbench::kernels
