#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_kernels.hpp"
#include "src/backends.hpp"
#include "src/comm/nccl/nccl_communicator.hpp"
#include "src/device/cuda/cuda_timeline.hpp"
#include "src/device/device_choice.hpp"
#include "src/errors.hpp"

namespace shardbench {
namespace {

// Between looks at a device that works; far shorter than a step.
constexpr std::chrono::microseconds pause(20);

std::vector<std::string> texts_of_all(ControlChannel& control, const std::string& own) {
  std::vector<std::string> texts;
  for (const auto& message : gather(control, as_message(std::span<const char>(own)))) {
    const std::vector<char> characters = from_message<char>(message);
    texts.emplace_back(characters.begin(), characters.end());
  }
  return texts;
}

/// This rank's device. What is wrong on one rank all ranks throw alike, before any of them enters NCCL.
std::shared_ptr<cuda::CudaDevice> take_device(World& world) {
  const Placement placement = world.placement();
  std::shared_ptr<cuda::CudaDevice> device;
  std::string problem;
  try {
    device = std::make_shared<cuda::CudaDevice>(choose_device(placement.local_rank, cuda::visible_devices()));
  } catch (const RunError& error) {
    problem = error.what();
  }
  const auto problems = texts_of_all(world.control(), problem);
  const auto bus_ids = texts_of_all(world.control(), device ? device->bus_id() : "");
  const auto hosts = texts_of_all(world.control(), placement.host);
  agree_with_root(world.control(), [&] {
    std::vector<DeviceSeat> seats;
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      if (!problems[rank].empty()) throw RunError(fmt::format("rank {}: {}", rank, problems[rank]));
      seats.push_back({.host = hosts[rank], .bus_id = bus_ids[rank]});
    }
    check_devices_differ(seats);
    return std::string();
  });
  return device;
}

class NcclBackend final : public Backend {
 public:
  NcclBackend(const Options& options, World& world, Memory& memory)
      : device_(take_device(world)),
        nccl_(world.control(), device_),
        timeline_(
            device_, [&world] { return world.now(); },
            [this] {
              nccl_.look_after();
              std::this_thread::sleep_for(pause);
            }) {
    memory.use(device_);
    kernels_ = kernels::make_cuda_kernels(device_, memory, options.param_dtype);
  }

  [[nodiscard]] std::string name() const override { return "nccl"; }
  [[nodiscard]] std::string nccl_version() const override { return nccl::library_version(); }
  kernels::Kernels& kernels() override { return *kernels_; }
  Timeline& timeline() override { return timeline_; }
  std::unique_ptr<Communicator> communicator(std::span<const int> members) override {
    return nccl_.communicator(members, timeline_);
  }

 private:
  std::shared_ptr<cuda::CudaDevice> device_;
  nccl::NcclWorld nccl_;
  cuda::CudaTimeline timeline_;
  std::unique_ptr<kernels::Kernels> kernels_;
};

}  // namespace

bool has_nccl() { return true; }

std::unique_ptr<Backend> make_backend(const Options& options, World& world, Memory& memory) {
  if (options.backend == BackendChoice::nccl) return std::make_unique<NcclBackend>(options, world, memory);
  return make_host_backend(options, world, memory, Purpose::run);
}

}  // namespace shardbench
