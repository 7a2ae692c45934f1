#include "src/device/buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {
namespace {

constexpr std::size_t alignment_bytes = 64;                   // a cache line, and AVX-512's widest load
constexpr std::int64_t arena_window = std::int64_t{4} << 20;  // physical size of a rank's phantom arena

/// Address space of at least `size` bytes whose windows all map the same physical pages.
std::shared_ptr<std::byte> map_aliased(Bytes size) {
  const auto fail = [&](const char* call) -> RunError {
    return RunError(
        fmt::format("cannot map a phantom arena of {} bytes: {} failed: {}; use a smaller model or "
                    "raise the address-space limit (ulimit -v)",
                    size.count(), call, std::strerror(errno)));
  };
  const std::int64_t windows = std::max<std::int64_t>(1, ceil_div(size.count(), arena_window));
  const auto length = static_cast<std::size_t>(windows * arena_window);
  const int file = memfd_create("shardbench-phantom", MFD_CLOEXEC);
  if (file < 0) throw fail("memfd_create");
  const std::unique_ptr<const int, void (*)(const int*)> close_file(&file, [](const int* f) { close(*f); });
  if (ftruncate(file, arena_window) != 0) throw fail("ftruncate");
  void* base = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw fail("mmap");
  std::shared_ptr<std::byte> arena(static_cast<std::byte*>(base),
                                   [length](std::byte* p) { munmap(p, length); });
  for (std::int64_t window = 0; window < windows; ++window)
    if (mmap(arena.get() + window * arena_window, arena_window, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
      throw fail("mmap");
  return arena;
}

std::shared_ptr<std::byte> allocate_real(Category category, Bytes size) {
  const auto length =
      (static_cast<std::size_t>(std::max<std::int64_t>(size.count(), 1)) + alignment_bytes - 1) /
      alignment_bytes * alignment_bytes;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, length));
  if (data == nullptr)
    throw RunError(
        fmt::format("out of memory: {} bytes for {}; use a smaller model, more ranks or --payload phantom",
                    size.count(), name_of(category)));
  return {data, [](std::byte* p) { std::free(p); }};
}

}  // namespace

std::string_view name_of(Category category) {
  constexpr std::array<std::string_view, category_count> names = {
      "parameters",     "gradients",   "optimizer", "gathered_parameters",
      "reduce_buffers", "activations", "workspace"};
  return names[static_cast<std::size_t>(category)];
}

void MemoryTracker::add(Category category, Bytes change) {
  const std::size_t i = index(category);
  current_[i] += change;
  total_ += change;
  peak_[i] = std::max(peak_[i], current_[i]);
  total_peak_ = std::max(total_peak_, total_);
  if (observer_ && change != Bytes(0)) observer_(category, current_[i]);
}

void MemoryTracker::restart_peaks() {
  peak_ = current_;
  total_peak_ = total_;
}

Buffer::Buffer(std::shared_ptr<MemoryTracker> tracker, Category category, DType dtype, Elements elements,
               Backing backing, std::shared_ptr<std::byte> data)
    : tracker_(std::move(tracker)),
      category_(category),
      dtype_(dtype),
      elements_(elements),
      backing_(backing),
      data_(std::move(data)) {
  tracker_->add(category_, bytes());
}

Buffer::~Buffer() { tracker_->add(category_, Bytes(-bytes().count())); }

std::span<float> Buffer::floats() const {
  SHARDBENCH_ASSERT(holds_values() && dtype_ == DType::fp32);
  return {reinterpret_cast<float*>(data_.get()), static_cast<std::size_t>(elements_.count())};
}

Memory::Memory() : tracker_(std::make_shared<MemoryTracker>()) {}

BufferRef Memory::allocate(Category category, DType dtype, Elements elements, Backing backing) {
  SHARDBENCH_ASSERT(elements.count() >= 0);
  const Bytes size = bytes_of(dtype, elements);
  std::shared_ptr<std::byte> data;
  if (backing == Backing::memory) {
    data = allocate_real(category, size);
  } else if (backing == Backing::aliased) {
    if (arena_ == nullptr || arena_size_ < size) {
      arena_ = map_aliased(size);
      arena_size_ = size;
    }
    data = arena_;
  }
  return BufferRef(new Buffer(tracker_, category, dtype, elements, backing, std::move(data)));
}

}  // namespace shardbench
