// A GPU: memory in the order of a stream, and the streams that work is asked for on.
#pragma once

#include <string>

#include "src/device/cuda/cuda_api.hpp"
#include "src/device/device.hpp"

namespace shardbench::cuda {

/// 0 also where there is no driver; throws RunError where it is too old.
int visible_devices();

class CudaDevice final : public Device {
 public:
  /// Makes `ordinal` the calling thread's device; all work is asked for by this thread.
  explicit CudaDevice(int ordinal);

  /// Model and bus id, such as "NVIDIA H200 0000:1B:00.0".
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] const std::string& bus_id() const { return bus_id_; }
  /// Kernels, copies, allocations.
  [[nodiscard]] cudaStream_t compute() const { return compute_.get(); }
  /// A further stream for communication, ahead of compute where both could run.
  [[nodiscard]] static StreamHandle make_comm_stream();

  std::shared_ptr<std::byte> allocate(Bytes size) override;
  void read(std::span<std::byte> to, const std::byte* from) override;
  void write(std::byte* to, std::span<const std::byte> from) override;
  [[nodiscard]] std::optional<DeviceMemory> usage() const override;

 private:
  int ordinal_;
  std::string model_;
  std::string bus_id_;
  std::shared_ptr<CUstream_st> compute_;  ///< shared with what has yet to be freed on it
  PinnedMemory staging_;                  ///< of what is written
  std::size_t staged_ = 0;                ///< bytes of it that the device may still read
};

}  // namespace shardbench::cuda
