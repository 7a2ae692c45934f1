// Host memory: small blocks from malloc, others from a cache of pages.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "src/device/device.hpp"

namespace shardbench {
namespace {

constexpr std::size_t alignment_bytes = 64;  // a cache line, and AVX-512's widest load
constexpr Bytes small_block(16 << 10);       // below it malloc, from it on pages of our own

/// Below a page or so malloc wastes less.
std::shared_ptr<std::byte> allocate_small(Bytes size) {
  const auto length =
      (static_cast<std::size_t>(std::max<std::int64_t>(size.count(), 1)) + alignment_bytes - 1) /
      alignment_bytes * alignment_bytes;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, length));
  if (data == nullptr) throw std::bad_alloc();
  return {data, [](std::byte* p) { std::free(p); }};
}

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

class HostDevice final : public Device {
 public:
  [[nodiscard]] std::string name() const override { return "cpu"; }

  std::shared_ptr<std::byte> allocate(Bytes size) override {
    return size < small_block ? allocate_small(size)
                              : cache_->allocate(static_cast<std::size_t>(size.count()));
  }
  void read(std::span<std::byte> to, const std::byte* from) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }

 private:
  std::shared_ptr<BlockCache> cache_ = std::make_shared<BlockCache>();
};

}  // namespace

std::shared_ptr<Device> make_host_device() { return std::make_shared<HostDevice>(); }

}  // namespace shardbench
