#include <algorithm>

#include "src/train/backend.hpp"

namespace shardbench {
namespace {

/// Tracked scratch for kernels that compute; accounted for alike in a plan, absent when compute is only
/// timed.
BufferRef allocate_scratch(const Options& options, const kernels::ScratchNeeds& needs, Memory& memory,
                           Purpose purpose) {
  if (options.compute == Compute::timed) return nullptr;
  return memory.allocate(Category::workspace, DType::fp32, Elements(kernels::openmp_scratch_elements(needs)),
                         purpose == Purpose::run ? Backing::memory : Backing::none);
}

class HostBackend final : public Backend {
 public:
  HostBackend(const Options& options, World& world, Memory& memory, Purpose purpose)
      : world_(world), timeline_([&world] { return world.now(); }) {
    const auto needs = scratch_needs(options, thread_count(options, world.placement()));
    scratch_ = allocate_scratch(options, needs, memory, purpose);
    kernels_ = kernels::make_openmp_kernels(
        needs, scratch_ && scratch_->holds_values() ? scratch_->floats() : DeviceSpan<float>{},
        [&world] { world.poll(); });
  }

  [[nodiscard]] std::string name() const override { return "mpi"; }
  [[nodiscard]] std::string nccl_version() const override { return "none"; }
  kernels::Kernels& kernels() override { return *kernels_; }
  Timeline& timeline() override { return timeline_; }
  std::unique_ptr<Communicator> communicator(std::span<const int> members) override {
    return world_.communicator(members);
  }

 private:
  World& world_;
  HostTimeline timeline_;
  BufferRef scratch_;
  std::unique_ptr<kernels::Kernels> kernels_;
};

}  // namespace

int thread_count(const Options& options, const Placement& placement) {
  if (options.threads > 0) return options.threads;
  return std::max(1, placement.machine_cpus / placement.machine_ranks);
}

kernels::ScratchNeeds scratch_needs(const Options& options, int threads) {
  return {.longest_sequence = options.dims.seq,
          .widest_weight_row = std::max(options.dims.hidden, options.dims.ffn),
          .threads = threads};
}

std::unique_ptr<Backend> make_host_backend(const Options& options, World& world, Memory& memory,
                                           Purpose purpose) {
  return std::make_unique<HostBackend>(options, world, memory, purpose);
}

}  // namespace shardbench
