// What a rank computes with and communicates through: the host and MPI, or a GPU and NCCL.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/kernels.hpp"
#include "src/comm/world.hpp"
#include "src/device/timeline.hpp"
#include "src/options.hpp"

namespace shardbench {

/// Whether the rank really trains or only plans.
enum class Purpose { run, plan };

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// As --backend names it.
  [[nodiscard]] virtual std::string name() const = 0;
  /// NCCL's version, or "none".
  [[nodiscard]] virtual std::string nccl_version() const = 0;
  virtual kernels::Kernels& kernels() = 0;
  virtual Timeline& timeline() = 0;
  /// See World::communicator.
  virtual std::unique_ptr<Communicator> communicator(std::span<const int> members) = 0;
};

/// Makes what the options ask for. Collective; it may change where `memory` allocates, so nothing is
/// allocated before.
using BackendFactory = std::function<std::unique_ptr<Backend>(const Options&, World&, Memory&)>;

/// The host's memory, OpenMP kernels, and the world's own communicators.
std::unique_ptr<Backend> make_host_backend(const Options& options, World& world, Memory& memory,
                                           Purpose purpose);

/// OpenMP threads per rank: --threads, else the CPUs that the ranks of a machine share out evenly, at least
/// one.
int thread_count(const Options& options, const Placement& placement);

/// Of the kernels that train the model on the host.
kernels::ScratchNeeds scratch_needs(const Options& options, int threads);

}  // namespace shardbench
