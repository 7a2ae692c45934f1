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
    if (mmap(arena.get() + i * window, static_cast<std::size_t>(window), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
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

/// Page-grained best-fit allocation from what was freed before, so that a step does not fault its pages in
/// anew; but hardly more (5 % and 4 MiB) is kept than the rank has needed at once: what the process holds is
/// what the tracker's peak says. (malloc would do either one or the other, depending on a threshold of its
/// own.)
class BlockCache : public std::enable_shared_from_this<BlockCache> {
 public:
  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache() {
    for (const auto& [block, size] : free_) munmap(block, size);
  }

  /// Throws std::bad_alloc when the system has no memory left.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    const std::size_t size = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    std::byte* block = take(size);
    if (block == nullptr) block = map_new(size);
    active_ += size;
    most_active_ = std::max(most_active_, active_);
    return {block, [cache = shared_from_this(), size](std::byte* p) { cache->put_back(p, size); }};
  }

 private:
  using Blocks = std::map<std::byte*, std::size_t>;  ///< address to size; neighbours are merged

  static constexpr std::size_t page_bytes = 4096;
  static constexpr std::size_t slack_fraction = 20;
  static constexpr std::size_t slack_bytes = std::size_t{4} << 20;

  /// The front of the smallest kept block that is large enough; null if there is none.
  std::byte* take(std::size_t size) {
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block)
      if (block->second >= size && (best == free_.end() || block->second < best->second)) best = block;
    if (best == free_.end()) return nullptr;
    const auto [block, available] = *best;
    free_.erase(best);
    if (available > size) free_.emplace(block + size, available - size);
    kept_ -= size;
    return block;
  }

  std::byte* map_new(std::size_t size) {
    const std::size_t peak = std::max(most_active_, active_ + size);
    release_beyond(peak + peak / slack_fraction + slack_bytes - size);
    void* block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(block);
  }

  /// Gives kept pages back, from the ends of the largest blocks, until no more than `limit` bytes are held.
  void release_beyond(std::size_t limit) {
    while (!free_.empty() && active_ + kept_ > limit) {
      const auto largest = std::max_element(free_.begin(), free_.end(),
                                            [](const auto& a, const auto& b) { return a.second < b.second; });
      const std::size_t size = std::min(largest->second, active_ + kept_ - limit);
      const std::size_t pages = (size + page_bytes - 1) / page_bytes * page_bytes;
      largest->second -= pages;
      kept_ -= pages;
      munmap(largest->first + largest->second, pages);
      if (largest->second == 0) free_.erase(largest);
    }
  }

  void put_back(std::byte* block, std::size_t size) {
    active_ -= size;
    kept_ += size;
    auto here = free_.emplace(block, size).first;
    if (const auto next = std::next(here); next != free_.end() && block + size == next->first) {
      here->second += next->second;
      free_.erase(next);
    }
    if (here == free_.begin()) return;
    if (const auto before = std::prev(here); before->first + before->second == block) {
      before->second += here->second;
      free_.erase(here);
    }
  }

  Blocks free_;
  std::size_t active_ = 0;
  std::size_t kept_ = 0;
  std::size_t most_active_ = 0;
};

std::shared_ptr<std::byte> PhantomArena::at_least(Bytes size) {
  if (newest_ == nullptr || mappings_.back().size < size) {
    newest_ = map_aliased(size);
    std::erase_if(mappings_, [](const Mapping& mapping) { return mapping.begin.expired(); });
    mappings_.push_back({.begin = newest_, .size = size});
  }
  return newest_;
}

bool PhantomArena::contains(const std::byte* address) const {
  return std::any_of(mappings_.begin(), mappings_.end(), [&](const Mapping& mapping) {
    const std::shared_ptr<std::byte> begin = mapping.begin.lock();
    return begin != nullptr && address >= begin.get() && address < begin.get() + mapping.size.count();
  });
}

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
  if (tracker_) tracker_->add(category_, bytes());
}

Buffer::~Buffer() {
  if (tracker_) tracker_->add(category_, Bytes(-bytes().count()));
}

std::span<float> Buffer::floats() const {
  SHARDBENCH_ASSERT(holds_values() && dtype_ == DType::fp32);
  return {reinterpret_cast<float*>(data_.get()), static_cast<std::size_t>(elements_.count())};
}

Memory::Memory() : tracker_(std::make_shared<MemoryTracker>()), cache_(std::make_shared<BlockCache>()) {}

BufferRef Memory::allocate(Category category, DType dtype, Elements elements, Backing backing) {
  SHARDBENCH_ASSERT(elements.count() >= 0);
  return BufferRef(new Buffer(tracker_, category, dtype, elements, backing,
                              storage(category, bytes_of(dtype, elements), backing)));
}

BufferRef Memory::part(const BufferRef& whole, std::int64_t offset, Elements count, Backing stand_in) {
  SHARDBENCH_ASSERT(offset >= 0 && count.count() >= 0 && offset + count.count() <= whole->elements().count());
  const DType dtype = whole->dtype();
  const Category category = whole->category_;
  if (!whole->holds_values())
    return BufferRef(new Buffer(nullptr, category, dtype, count, stand_in,
                                storage(category, bytes_of(dtype, count), stand_in)));
  std::shared_ptr<std::byte> data(whole->data() + offset * size_of(dtype), [whole](std::byte*) {});
  return BufferRef(new Buffer(nullptr, category, dtype, count, Backing::memory, std::move(data)));
}

std::shared_ptr<std::byte> Memory::storage(Category category, Bytes size, Backing backing) {
  if (backing == Backing::none) return nullptr;
  if (backing == Backing::aliased) return arena_->at_least(size);
  try {
    return size < small_block ? allocate_small(size)
                              : cache_->allocate(static_cast<std::size_t>(size.count()));
  } catch (const std::bad_alloc&) {
    throw RunError(
        fmt::format("out of memory: {} bytes for {}; use a smaller model or micro-batch, or --compute "
                    "timed --payload phantom",
                    size.count(), name_of(category)));
  }
}

}  // namespace shardbench
