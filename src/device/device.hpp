// Where buffers rest and kernels run: the host, or a GPU.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/device/device_span.hpp"
#include "src/units.hpp"

namespace shardbench {

/// What a device with memory of its own says about it.
struct DeviceMemory {
  Bytes used;      ///< of the whole device, by whomever
  Bytes active;    ///< in this process's buffers, tracked or not
  Bytes reserved;  ///< those, and what is kept for the next ones
};

/// A rank's device. Work is asked for in order and may be done later; what is read is what that work leaves.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  /// As the trace calls it.
  [[nodiscard]] virtual std::string name() const = 0;

  /// Bytes of undefined contents, never null; given back, in order with the work asked for before, when the
  /// last reference goes. Throws std::bad_alloc when memory is short.
  virtual std::shared_ptr<std::byte> allocate(Bytes size) = 0;
  /// Returns when the bytes have been copied.
  virtual void read(std::span<std::byte> to, const std::byte* from) = 0;
  /// Returns when `from` may change; kernels asked for later find the bytes.
  virtual void write(std::byte* to, std::span<const std::byte> from) = 0;

  /// Null where memory is the host's. May take as long as a call to the driver: not inside a timed step.
  [[nodiscard]] virtual std::optional<DeviceMemory> usage() const { return std::nullopt; }
};

template <class T>
std::vector<T> read_values(Device& device, DeviceSpan<const T> values) {
  std::vector<T> copy(static_cast<std::size_t>(values.size()));
  device.read(std::as_writable_bytes(std::span(copy)), reinterpret_cast<const std::byte*>(values.data()));
  return copy;
}

template <class T>
void write_values(Device& device, DeviceSpan<T> to, std::span<const T> values) {
  device.write(reinterpret_cast<std::byte*>(to.data()), std::as_bytes(values));
}

/// A single value in device memory, not tracked: kernels accumulate in it, the host reads it when the step
/// is over.
template <class T>
class DeviceScalar {
 public:
  DeviceScalar(std::shared_ptr<Device> device, T value)
      : device_(std::move(device)), storage_(device_->allocate(Bytes{sizeof(T)})) {
    set(value);
  }

  [[nodiscard]] DeviceSpan<T> span() const { return {reinterpret_cast<T*>(storage_.get()), 1}; }
  void set(T value) { write_values<T>(*device_, span(), std::span<const T>(&value, 1)); }
  [[nodiscard]] T get() const { return read_values<T>(*device_, span()).front(); }

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<std::byte> storage_;
};

/// Host memory in page-grained blocks that are kept for the next step.
std::shared_ptr<Device> make_host_device();

}  // namespace shardbench
