// MPI as SimGrid's SMPI simulates it: every rank is an actor of one process, time is modelled.
#include <simgrid/actor.h>
#include <simgrid/host.h>

#include <array>
#include <climits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "src/comm/mpi/mpi_platform.hpp"

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

/// Of each rank of the world: the first rank on a host of the same name.
std::vector<int> gather_nodes(MPI_Comm world) {
  constexpr std::size_t longest_name = 128;
  int ranks = 0;
  SHARDBENCH_MPI(MPI_Comm_size(world, &ranks));
  std::array<char, longest_name> own{};
  std::string_view(sg_host_self_get_name()).copy(own.data(), longest_name);
  std::vector<char> all(static_cast<std::size_t>(ranks) * longest_name);
  SHARDBENCH_MPI(
      MPI_Allgather(own.data(), longest_name, MPI_CHAR, all.data(), longest_name, MPI_CHAR, world));
  std::map<std::string_view, int> first;
  std::vector<int> nodes;
  nodes.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string_view name(all.data() + static_cast<std::size_t>(rank) * longest_name, longest_name);
    nodes.push_back(first.try_emplace(name, rank).first->second);
  }
  return nodes;
}

class SimulatedPlatform final : public Platform {
 public:
  explicit SimulatedPlatform(MPI_Comm world) : nodes_(gather_nodes(world)) {}

  [[nodiscard]] double now() const override { return MPI_Wtime(); }
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

  [[nodiscard]] Placement placement() const override {
    return {.host = sg_host_self_get_name(),
            .local_rank = 0,
            .local_size = 1,
            .allowed_cpus = 1,
            .machine_ranks = 1,
            .machine_cpus = 1,
            .affinity = ""};
  }
  [[nodiscard]] const std::vector<int>& nodes() const override { return nodes_; }
  [[nodiscard]] bool simulated() const override { return true; }
  [[nodiscard]] const Hardware* hardware() const override { return nullptr; }
  [[nodiscard]] std::string wait_policy() const override {
    return "simulated: block until a message completes";
  }

 private:
  std::vector<int> nodes_;
};

}  // namespace

void check_supported(const WorldSettings& settings) {
  if (settings.progress == Progress::thread)
    throw UsageError("--progress thread cannot run in the simulator (one thread plays all ranks); use poll");
  if (settings.algorithm == Algorithm::native)
    throw UsageError(
        "--algorithm native is refused in the simulator: SMPI's non-blocking collectives are linear and "
        "wrong in place; use direct, ring, doubling or hierarchical");
}

bool reports_no_thread_level() { return true; }
bool is_simulation() { return true; }
bool started_by_launcher() { return true; }
void prepare_environment() {}

std::unique_ptr<Platform> make_platform(MPI_Comm world) { return std::make_unique<SimulatedPlatform>(world); }

std::unique_ptr<Communicator> make_native_communicator(CommHandle /*comm*/, ProgressEngine& /*engine*/) {
  throw InternalError("native collectives are refused in the simulator");
}

}  // namespace shardbench::mpi
