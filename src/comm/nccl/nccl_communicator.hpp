// Collectives through NCCL, on streams of their own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "src/comm/world.hpp"
#include "src/device/cuda/cuda_timeline.hpp"

namespace shardbench::nccl {

/// Name and version, such as "NCCL 2.28.9".
std::string library_version();

/// NCCL's communicator of all ranks, from which those of groups are split.
class NcclWorld {
 public:
  /// Collective over `control`.
  NcclWorld(ControlChannel& control, std::shared_ptr<cuda::CudaDevice> device);
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;
  ~NcclWorld();

  /// As World::communicator; `timeline` outlives it. Collectives wait for what compute has been asked for
  /// before them, and compute for them where they are waited for; the host waits for neither.
  std::unique_ptr<Communicator> communicator(std::span<const int> members, cuda::CudaTimeline& timeline);
  /// Throws RunError where a communicator has failed behind the host's back.
  void look_after() const;

 private:
  class Group;
  int rank_;
  std::shared_ptr<cuda::CudaDevice> device_;
  std::shared_ptr<Group> everyone_;
  std::vector<std::weak_ptr<Group>> groups_;
};

}  // namespace shardbench::nccl
