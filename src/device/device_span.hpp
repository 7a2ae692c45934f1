// A range of values that the host may not be able to touch.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

namespace shardbench {

/// Values in the memory of whatever device computes. There is nothing here to read or write them by, so that
/// host code which tries does not compile: it copies through a Device. `data()` is for kernels and
/// communication, which know where they run.
template <class T>
class DeviceSpan {
 public:
  DeviceSpan() = default;
  DeviceSpan(T* data, std::int64_t size) : data_(data), size_(size) {}
  /// Values in host memory, for kernels that run there.
  explicit DeviceSpan(std::span<T> values) : DeviceSpan(values.data(), std::ssize(values)) {}
  /// Values become values that kernels only read.
  template <class Value>
  requires(std::is_same_v<const Value, T>)
      DeviceSpan(DeviceSpan<Value> values)  // NOLINT: meant to convert, as std::span does
      : DeviceSpan(values.data(), values.size()) {}

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] DeviceSpan subspan(std::int64_t offset, std::int64_t count) const {
    return {data_ + offset, count};
  }

 private:
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace shardbench
