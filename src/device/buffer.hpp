// Tracked memory: every tensor-sized allocation belongs to a category and is counted while it lives.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "src/device/device.hpp"
#include "src/units.hpp"

namespace shardbench {

/// What a tracked byte is for.
enum class Category {
  parameters,
  gradients,
  optimizer,
  gathered_parameters,
  reduce_buffers,
  activations,
  workspace,
};
constexpr std::size_t category_count = 7;
std::string_view name_of(Category category);

/// Current and peak tracked bytes of one rank, by category and in total.
class MemoryTracker {
 public:
  using Observer = std::function<void(Category, Bytes)>;

  /// `observer` hears a category's current bytes after each change (the memory trace); may be empty.
  void observe(Observer observer) { observer_ = std::move(observer); }

  void add(Category category, Bytes change);
  [[nodiscard]] Bytes current(Category category) const { return current_[index(category)]; }
  [[nodiscard]] Bytes peak(Category category) const { return peak_[index(category)]; }
  [[nodiscard]] Bytes total() const { return total_; }
  [[nodiscard]] Bytes total_peak() const { return total_peak_; }
  /// Forgets past peaks: peaks then describe what follows, from the present level on.
  void restart_peaks();

 private:
  static std::size_t index(Category category) { return static_cast<std::size_t>(category); }

  std::array<Bytes, category_count> current_{};
  std::array<Bytes, category_count> peak_{};
  Bytes total_;
  Bytes total_peak_;
  Observer observer_;
};

/// What stands behind a buffer's bytes.
enum class Backing {
  memory,   ///< real memory of its own, on the device
  aliased,  ///< an address range of the true size whose pages all alias one small arena; contents are
            ///< meaningless
  none,     ///< accounted for only; data() is null
};

class Memory;

/// Address space whose pages are all the same few, behind every `aliased` buffer. Ranks of one process can
/// share it.
class PhantomArena {
 public:
  /// At least `size` bytes. What was handed out before stays valid. Throws RunError when it cannot be mapped.
  std::shared_ptr<std::byte> at_least(Bytes size);
  [[nodiscard]] bool contains(const std::byte* address) const;

 private:
  struct Mapping {
    std::weak_ptr<std::byte> begin;
    Bytes size;
  };
  std::shared_ptr<std::byte> newest_;
  std::vector<Mapping> mappings_;
};

/// A typed, tracked, move-only allocation; released and uncounted on destruction.
class Buffer {
 public:
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] Elements elements() const { return elements_; }
  [[nodiscard]] Bytes bytes() const { return bytes_of(dtype_, elements_); }
  /// An address on the device; null when the backing is `none`, never null otherwise (not even with zero
  /// elements).
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] bool holds_values() const { return backing_ == Backing::memory; }
  /// The buffer as fp32 values; it must be real and fp32.
  [[nodiscard]] DeviceSpan<float> floats() const;

 private:
  friend class Memory;
  Buffer(std::shared_ptr<MemoryTracker> tracker, Category category, DType dtype, Elements elements,
         Backing backing, std::shared_ptr<std::byte> data);

  std::shared_ptr<MemoryTracker> tracker_;  ///< null for a part, whose bytes its whole has counted
  Category category_;
  DType dtype_;
  Elements elements_;
  Backing backing_;
  std::shared_ptr<std::byte> data_;
};

/// Shared, because a pending collective pins its buffer until it completes.
using BufferRef = std::shared_ptr<Buffer>;

/// Allocates buffers of one rank, on the host unless told otherwise.
class Memory {
 public:
  Memory();

  /// Contents of real memory are undefined. Throws RunError naming category and size when memory is short.
  BufferRef allocate(Category category, DType dtype, Elements elements, Backing backing = Backing::memory);
  /// `count` elements of another buffer from `offset` on, as a buffer that shares them and is not counted
  /// again. Where the whole has no values, `stand_in` backs the part, so that messages have an address.
  BufferRef part(const BufferRef& whole, std::int64_t offset, Elements count, Backing stand_in);
  [[nodiscard]] MemoryTracker& tracker() const { return *tracker_; }
  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }
  /// Where real memory is, from now on.
  void use(std::shared_ptr<Device> device) { device_ = std::move(device); }
  /// Where aliased buffers come from, from now on; by default an arena of this rank's own.
  void use(std::shared_ptr<PhantomArena> arena) { arena_ = std::move(arena); }

 private:
  std::shared_ptr<std::byte> storage(Category category, Bytes size, Backing backing);

  std::shared_ptr<MemoryTracker> tracker_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<PhantomArena> arena_ = std::make_shared<PhantomArena>();
};

}  // namespace shardbench
