#include "src/device/buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {
namespace {

constexpr std::size_t alignment_bytes = 64;  // a cache line, and AVX-512's widest load
constexpr Bytes small_block(16 << 10);       // below it malloc, from it on pages of our own
// A phantom arena is mapped in windows of at least this size, and in at most so many: the system grants a
// process 65,530 mappings (vm.max_map_count), which a simulation shares out among all its ranks.
constexpr std::int64_t smallest_arena_window = std::int64_t{4} << 20;
constexpr std::int64_t most_arena_windows = 64;

/// Address space of at least `size` bytes whose windows all map the same physical pages.
std::shared_ptr<std::byte> map_aliased(Bytes size) {
  const auto fail = [&](const char* call) -> RunError {
    return RunError(
        fmt::format("cannot map a phantom arena of {} bytes: {} failed: {}; use a smaller model or "
                    "raise the address-space limit (ulimit -v)",
                    size.count(), call, std::strerror(errno)));
  };
  constexpr std::int64_t page = 4096;
  const std::int64_t share = ceil_div(ceil_div(size.count(), most_arena_windows), page) * page;
  const std::int64_t window = std::max(smallest_arena_window, share);
  const std::int64_t windows = std::max<std::int64_t>(1, ceil_div(size.count(), window));
  const auto length = static_cast<std::size_t>(windows * window);
  const int file = memfd_create("shardbench-phantom", MFD_CLOEXEC);
  if (file < 0) throw fail("memfd_create");
  const std::unique_ptr<const int, void (*)(const int*)> close_file(&file, [](const int* f) { close(*f); });
  if (ftruncate(file, window) != 0) throw fail("ftruncate");
  void* base = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw fail("mmap");
  std::shared_ptr<std::byte> arena(static_cast<std::byte*>(base),
                                   [length](std::byte* p) { munmap(p, length); });
  for (std::int64_t i = 0; i < windows; ++i)
    if (mmap(arena.get() + i * window, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
        MAP_FAILED)
      throw fail("mmap");
  return arena;
}

/// Below a page or so malloc wastes less.
std::shared_ptr<std::byte> allocate_small(Bytes size) {
  const auto length =
      (static_cast<std::size_t>(std::max<std::int64_t>(size.count(), 1)) + alignment_bytes - 1) /
      alignment_bytes * alignment_bytes;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, length));
  if (data == nullptr) throw std::bad_alloc();
  return {data, [](std::byte* p) { std::free(p); }};
}

}  // namespace

/// Keeps freed blocks for the next allocation of about their size, so that a step does not fault its pages in
/// anew, but never more than the rank has needed at once: what the process holds is what the tracker's peak
/// says. (malloc would do either one or the other, depending on a threshold of its own.)
class BlockCache : public std::enable_shared_from_this<BlockCache> {
 public:
  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache() {
    for (const auto& [size, block] : free_) munmap(block, size);
  }

  /// Throws std::bad_alloc when the system has no memory left.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    const std::size_t size = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    active_ += size;
    most_active_ = std::max(most_active_, active_);
    const auto fit = free_.lower_bound(size);
    if (fit != free_.end() && fit->first <= size + size / largest_waste) {
      const auto [block_size, block] = *fit;
      free_.erase(fit);
      cached_ -= block_size;
      active_ += block_size - size;
      return handle(block, block_size);
    }
    while (!free_.empty() && active_ + cached_ > most_active_) release(std::prev(free_.end()));
    void* block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
      active_ -= size;
      throw std::bad_alloc();
    }
    return handle(static_cast<std::byte*>(block), size);
  }

 private:
  static constexpr std::size_t page_bytes = 4096;
  static constexpr std::size_t largest_waste = 16;  ///< a block may be larger than asked for by this fraction

  std::shared_ptr<std::byte> handle(std::byte* block, std::size_t size) {
    return {block, [cache = shared_from_this(), size](std::byte* p) { cache->put_back(p, size); }};
  }

  void put_back(std::byte* block, std::size_t size) {
    active_ -= size;
    cached_ += size;
    free_.emplace(size, block);
  }

  void release(std::multimap<std::size_t, std::byte*>::iterator block) {
    munmap(block->second, block->first);
    cached_ -= block->first;
    free_.erase(block);
  }

  std::multimap<std::size_t, std::byte*> free_;  ///< by size
  std::size_t active_ = 0;
  std::size_t cached_ = 0;
  std::size_t most_active_ = 0;
};

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

Memory::Memory() : tracker_(std::make_shared<MemoryTracker>()), cache_(std::make_shared<BlockCache>()) {}

BufferRef Memory::allocate(Category category, DType dtype, Elements elements, Backing backing) {
  SHARDBENCH_ASSERT(elements.count() >= 0);
  const Bytes size = bytes_of(dtype, elements);
  std::shared_ptr<std::byte> data;
  if (backing == Backing::memory) {
    try {
      data = size < small_block ? allocate_small(size)
                                : cache_->allocate(static_cast<std::size_t>(size.count()));
    } catch (const std::bad_alloc&) {
      throw RunError(
          fmt::format("out of memory: {} bytes for {}; use a smaller model, more ranks or --payload phantom",
                      size.count(), name_of(category)));
    }
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
