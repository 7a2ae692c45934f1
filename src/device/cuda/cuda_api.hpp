// The CUDA runtime, its error check and its handles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

namespace shardbench::cuda {

/// Throws RunError that names the call.
void check(cudaError_t code, const char* call, const char* file, int line);

// A handle that cannot be destroyed any more belongs to a device that has failed, which has been reported.
struct DestroyStream {
  void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
};
struct FreePinned {
  void operator()(std::byte* memory) const { static_cast<void>(cudaFreeHost(memory)); }
};
using StreamHandle = std::unique_ptr<CUstream_st, DestroyStream>;
using EventHandle = std::unique_ptr<CUevent_st, DestroyEvent>;
/// Host memory that the device copies from by itself, while the host goes on.
using PinnedMemory = std::unique_ptr<std::byte, FreePinned>;

}  // namespace shardbench::cuda

#define SHARDBENCH_CUDA(call) ::shardbench::cuda::check((call), #call, __FILE__, __LINE__)
