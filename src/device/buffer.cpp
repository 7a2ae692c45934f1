#include "src/device/buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {
namespace {

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

}  // namespace

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

DeviceSpan<float> Buffer::floats() const {
  SHARDBENCH_ASSERT(holds_values() && dtype_ == DType::fp32);
  return {reinterpret_cast<float*>(data_.get()), elements_.count()};
}

Memory::Memory() : tracker_(std::make_shared<MemoryTracker>()), device_(make_host_device()) {}

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
    return device_->allocate(size);
  } catch (const std::bad_alloc&) {
    throw RunError(
        fmt::format("out of memory: {} bytes for {}; use a smaller model or micro-batch, or --compute "
                    "timed --payload phantom",
                    size.count(), name_of(category)));
  }
}

}  // namespace shardbench
