#include "src/device/cuda/cuda_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>

#include "src/errors.hpp"

namespace shardbench::cuda {
namespace {

constexpr int longest_bus_id = 32;

// A step writes its tokens and a few numbers: a hundred steps and more until the staging memory is used up.
constexpr std::size_t staging_bytes = std::size_t{8} << 20;
constexpr std::size_t staging_alignment = 256;

PinnedMemory allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  SHARDBENCH_CUDA(cudaMallocHost(&memory, bytes));
  return PinnedMemory(static_cast<std::byte*>(memory));
}

StreamHandle make_stream(int priority) {
  cudaStream_t stream = nullptr;
  SHARDBENCH_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
  return StreamHandle(stream);
}

cudaMemPool_t pool_of(int ordinal) {
  cudaMemPool_t pool = nullptr;
  SHARDBENCH_CUDA(cudaDeviceGetDefaultMemPool(&pool, ordinal));
  return pool;
}

/// std::bad_alloc that says more than its name, for allocations whose purpose nobody adds.
class OutOfDeviceMemory final : public std::bad_alloc {
 public:
  OutOfDeviceMemory(std::size_t bytes, const std::string& device)
      : text_(std::make_shared<const std::string>(
            fmt::format("no {} bytes are left on {}; see nvidia-smi for who else uses it, or use a smaller "
                        "model or micro-batch",
                        bytes, device))) {}
  [[nodiscard]] const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;  // a copy of an exception must not throw
};

/// A driver too old and no driver at all are one error; what there is not has version 0.
void refuse_old_driver() {
  int driver = 0;
  int runtime = 0;
  SHARDBENCH_CUDA(cudaDriverGetVersion(&driver));
  SHARDBENCH_CUDA(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) return;
  throw RunError(fmt::format(
      "the NVIDIA driver supports CUDA {}.{}, but this program was built with CUDA {}.{}; install "
      "a newer driver or NVIDIA's cuda-compat, or use --backend mpi",
      driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10));
}

}  // namespace

int visible_devices() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorStubLibrary) {
    cudaGetLastError();  // or the next check would find it again
    if (code == cudaErrorInsufficientDriver) refuse_old_driver();
    return 0;
  }
  SHARDBENCH_CUDA(code);
  return devices;
}

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal) {
  SHARDBENCH_CUDA(cudaSetDevice(ordinal));
  cudaDeviceProp properties{};
  SHARDBENCH_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  model_ = properties.name;
  char bus_id[longest_bus_id] = {};
  SHARDBENCH_CUDA(cudaDeviceGetPCIBusId(bus_id, longest_bus_id, ordinal));
  bus_id_ = bus_id;
  int lowest = 0;
  int highest = 0;
  SHARDBENCH_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  compute_ = make_stream(lowest);
  staging_ = allocate_pinned(staging_bytes);
  // By default the pool gives all that is free back to the driver whenever the host waits for the device.
  std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
  SHARDBENCH_CUDA(cudaMemPoolSetAttribute(pool_of(ordinal), cudaMemPoolAttrReleaseThreshold, &everything));
}

std::string CudaDevice::name() const { return fmt::format("{} {}", model_, bus_id_); }

StreamHandle CudaDevice::make_comm_stream() {
  int lowest = 0;
  int highest = 0;
  SHARDBENCH_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return make_stream(highest);
}

std::optional<DeviceMemory> CudaDevice::usage() const {
  std::size_t free = 0;
  std::size_t total = 0;
  SHARDBENCH_CUDA(cudaMemGetInfo(&free, &total));
  std::uint64_t active = 0;
  std::uint64_t reserved = 0;
  SHARDBENCH_CUDA(cudaMemPoolGetAttribute(pool_of(ordinal_), cudaMemPoolAttrUsedMemCurrent, &active));
  SHARDBENCH_CUDA(cudaMemPoolGetAttribute(pool_of(ordinal_), cudaMemPoolAttrReservedMemCurrent, &reserved));
  return DeviceMemory{.used = Bytes(static_cast<std::int64_t>(total - free)),
                      .active = Bytes(static_cast<std::int64_t>(active)),
                      .reserved = Bytes(static_cast<std::int64_t>(reserved))};
}

std::shared_ptr<std::byte> CudaDevice::allocate(Bytes size) {
  void* data = nullptr;
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(size.count(), 1));
  const cudaError_t code = cudaMallocAsync(&data, bytes, compute());
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next check would find it again
    throw OutOfDeviceMemory(bytes, name());
  }
  SHARDBENCH_CUDA(code);
  return {static_cast<std::byte*>(data),
          [stream = compute_](std::byte* p) { static_cast<void>(cudaFreeAsync(p, stream.get())); }};
}

void CudaDevice::read(std::span<std::byte> to, const std::byte* from) {
  if (to.empty()) return;
  SHARDBENCH_CUDA(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, compute()));
  SHARDBENCH_CUDA(cudaStreamSynchronize(compute()));
}

void CudaDevice::write(std::byte* to, std::span<const std::byte> from) {
  // Through memory of our own: a copy of pageable memory may make the host wait for the stream.
  while (!from.empty()) {
    if (staged_ == staging_bytes) {
      SHARDBENCH_CUDA(cudaStreamSynchronize(compute()));
      staged_ = 0;
    }
    const std::size_t size = std::min(from.size(), staging_bytes - staged_);
    std::byte* const slot = staging_.get() + staged_;
    std::copy_n(from.data(), size, slot);
    SHARDBENCH_CUDA(cudaMemcpyAsync(to, slot, size, cudaMemcpyHostToDevice, compute()));
    staged_ = std::min(staging_bytes,
                       (staged_ + size + staging_alignment - 1) / staging_alignment * staging_alignment);
    to += size;
    from = from.subspan(size);
  }
}

}  // namespace shardbench::cuda
