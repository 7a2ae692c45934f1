// MPI as SimGrid's SMPI simulates it: every rank is an actor of one process, time is modelled.
#include <simgrid/actor.h>
#include <simgrid/host.h>

#include <algorithm>
#include <climits>
#include <utility>
#include <vector>

#include "src/comm/mpi/mpi_platform.hpp"
#include "src/comm/mpi/sim_fabric.hpp"
#include "src/comm/mpi/sim_modelled.hpp"
#include "src/comm/mpi/sim_stream.hpp"

namespace shardbench::mpi {
namespace {

int checked_count(std::size_t bytes) {
  // SMPI has no large-count calls, and wraps messages of 2 GiB and more.
  if (bytes > static_cast<std::size_t>(INT_MAX))
    throw RunError(
        fmt::format("a message of {} bytes is too large for the simulator (2 GiB); use a smaller bucket, "
                    "more ranks or --algorithm ring",
                    bytes));
  return static_cast<int>(bytes);
}

/// Letters between ranks, outside the model: they take no simulated time.
class SharedControl final : public ControlChannel {
 public:
  SharedControl(std::shared_ptr<Fabric> fabric, int rank) : fabric_(std::move(fabric)), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return fabric_->size(); }
  void send(int to, std::span<const std::byte> message) override { fabric_->post(rank_, to, message); }
  std::vector<std::byte> receive(int from) override { return fabric_->collect(rank_, from); }

 private:
  std::shared_ptr<Fabric> fabric_;
  int rank_;
};

class SimulatedPlatform final : public Platform {
 public:
  SimulatedPlatform(MPI_Comm world, Memory& memory) : fabric_(Fabric::join(world)) {
    SHARDBENCH_MPI(MPI_Comm_rank(world, &rank_));
    memory.use(fabric_->arena());
  }

  // (MPI_Wtime would let simulated time pass.)
  [[nodiscard]] double now() const override { return simgrid::s4u::Engine::get_clock(); }
  void sleep(double seconds) override { sg_actor_sleep_for(seconds); }

  void pause(int /*attempt*/, std::span<MPI_Request* const> outstanding) override {
    // Polling would advance the simulated clock by the cost of each poll; blocking does not distort it.
    // Returning would have the caller look again for ever; the simulator would not notice.
    if (outstanding.empty()) throw InternalError("a simulated rank waits although nothing is in flight");
    std::vector<MPI_Request> requests;
    std::vector<std::size_t> position;
    for (std::size_t i = 0; i < outstanding.size(); ++i)
      if (*outstanding[i] != MPI_REQUEST_NULL) {
        requests.push_back(*outstanding[i]);
        position.push_back(i);
      }
    // SMPI's MPI_Test may finish a request and still answer "not yet"; the next test will tell.
    if (requests.empty()) return;
    int completed = MPI_UNDEFINED;
    SHARDBENCH_MPI(
        MPI_Waitany(static_cast<int>(requests.size()), requests.data(), &completed, MPI_STATUS_IGNORE));
    if (completed == MPI_UNDEFINED)
      throw InternalError("MPI_Waitany completed none of the requests it was given");
    const auto index = static_cast<std::size_t>(completed);
    *outstanding[position[index]] = requests[index];
  }

  void post_send(std::span<const std::byte> message, int peer, int tag, MPI_Comm comm,
                 MPI_Request* out) override {
    SHARDBENCH_MPI(MPI_Isend(message.data(), checked_count(message.size()), MPI_BYTE, peer, tag, comm, out));
  }
  void post_receive(std::span<std::byte> message, int peer, int tag, MPI_Comm comm,
                    MPI_Request* out) override {
    SHARDBENCH_MPI(MPI_Irecv(message.data(), checked_count(message.size()), MPI_BYTE, peer, tag, comm, out));
  }

  void check_supported(const WorldSettings& settings) const override {
    if (!fabric_->problem().empty()) throw UsageError(fabric_->problem());
    const auto refuse = [](const std::string& what, const std::string& instead) {
      throw UsageError(fmt::format("{}; use {}", what, instead));
    };
    if (settings.progress == Progress::thread)
      refuse("--progress thread cannot run in the simulator, where one thread plays all ranks",
             "stream or poll");
    if (settings.algorithm == Algorithm::native)
      refuse(
          "--algorithm native is refused in the simulator: SMPI's non-blocking collectives are linear and "
          "wrong in "
          "place",
          "nccl, coarse, direct, ring, doubling or hierarchical");
    if (is_modelled(settings.algorithm) && settings.progress != Progress::stream)
      refuse(
          fmt::format("--algorithm {} proceeds on a stream, whatever ranks do", name_of(settings.algorithm)),
          "--progress stream");
    if (settings.algorithm == Algorithm::nccl && !fabric_->machine())
      refuse("--algorithm nccl needs a platform that describes NCCL on it",
             "shardbench simulate, or --algorithm coarse");
  }

  std::unique_ptr<ControlChannel> control(Activity& /*activity*/) override {
    return std::make_unique<SharedControl>(fabric_, rank_);
  }
  std::unique_ptr<Communicator> streamed_communicator(std::span<const int> members, ScheduleChoice choice,
                                                      Memory& memory) override {
    const int sequence = groups_made_++;
    if (!is_modelled(choice.algorithm))
      return make_streamed_communicator(fabric_, rank_, sequence, members, choice, memory);
    const auto own = std::find(members.begin(), members.end(), rank_) - members.begin();
    return make_modelled_communicator(fabric_->modelled_group(sequence, members, choice.algorithm),
                                      static_cast<int>(own), static_cast<int>(members.size()),
                                      choice.algorithm);
  }
  void compute_beside_streams(double seconds, double contention) override {
    fabric_->compute(rank_, seconds, contention);
  }

  [[nodiscard]] Placement placement() const override {
    return {.host = sg_host_self_get_name(),
            .local_rank = 0,
            .local_size = 1,
            .allowed_cpus = 1,
            .machine_ranks = 1,
            .machine_cpus = 1,
            .affinity = ""};
  }
  [[nodiscard]] const std::vector<int>& nodes() const override { return fabric_->nodes(); }
  [[nodiscard]] bool simulated() const override { return true; }
  [[nodiscard]] const Hardware* hardware() const override {
    return fabric_->machine() ? &fabric_->machine()->gpu : nullptr;
  }
  [[nodiscard]] std::string wait_policy() const override {
    return "simulated: block until a message completes";
  }

  [[nodiscard]] std::string description() const override {
    return fabric_->machine() ? fabric_->machine()->json : std::string();
  }

 private:
  std::shared_ptr<Fabric> fabric_;
  int rank_ = 0;
  int groups_made_ = 0;
};

}  // namespace

bool reports_no_thread_level() { return true; }
bool is_simulation() { return true; }
bool started_by_launcher() { return true; }
void prepare_environment() {}

std::unique_ptr<Platform> make_platform(MPI_Comm world, Memory& memory) {
  return std::make_unique<SimulatedPlatform>(world, memory);
}

std::unique_ptr<Communicator> make_native_communicator(CommHandle /*comm*/, ProgressEngine& /*engine*/) {
  throw InternalError("native collectives are refused in the simulator");
}

}  // namespace shardbench::mpi
