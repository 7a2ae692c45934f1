// A real MPI library on real hosts.
#include <sched.h>
#include <sys/prctl.h>
#include <ctime>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "src/comm/mpi/mpi_platform.hpp"

namespace shardbench::mpi {
namespace {

// A rank with a core of its own yields this often before it sleeps: about 50 us, a small message's latency on a
// shared-memory node.
constexpr int yields_before_sleep = 200;

struct SleepRange {
  double shortest;
  double longest;
  double growth;
};
// Sleeps between looks at the network. With a core per rank they stay below what a step could notice; with more ranks
// than cores a rank that looks often steals the time of the one it waits for.
constexpr SleepRange own_core{.shortest = 2e-6, .longest = 50e-6, .growth = 1.1};
constexpr SleepRange shared_core{.shortest = 20e-6, .longest = 1e-3, .growth = 1.3};

std::string cpu_list(const cpu_set_t& set) {
  std::string text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    int last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpu);
    if (last > cpu) text += fmt::format("-{}", last);
    cpu = last;
  }
  return text;
}

class RealPlatform final : public Platform {
 public:
  explicit RealPlatform(MPI_Comm world) {
    // Default slack rounds every short sleep up by 50 us.
    prctl(PR_SET_TIMERSLACK, 1UL);

    MPI_Comm shared = MPI_COMM_NULL;
    SHARDBENCH_MPI(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared));
    const CommHandle node(shared);
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
      throw RunError(fmt::format("sched_getaffinity failed: {}", std::strerror(errno)));
    cpu_set_t together;
    SHARDBENCH_MPI(MPI_Allreduce(&allowed, &together, sizeof allowed, MPI_BYTE, MPI_BOR, node.get()));

    std::string host(256, '\0');
    if (gethostname(host.data(), host.size() - 1) != 0)
      throw RunError(fmt::format("gethostname failed: {}", std::strerror(errno)));
    host.resize(std::strlen(host.c_str()));
    placement_ = {.host = host,
                  .local_rank = node.rank(),
                  .local_size = node.size(),
                  .allowed_cpus = CPU_COUNT(&allowed),
                  .host_cpus = CPU_COUNT(&together),
                  .affinity = cpu_list(allowed)};
    shares_cores_ = node.size() > CPU_COUNT(&together);
  }

  [[nodiscard]] double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void sleep(double seconds) override {
    const double whole = std::floor(seconds);
    const timespec duration{.tv_sec = static_cast<time_t>(whole),
                            .tv_nsec = static_cast<long>((seconds - whole) * 1e9)};
    nanosleep(&duration, nullptr);  // an interrupted sleep is merely shorter; callers look at the clock
  }

  void pause(int attempt, std::span<MPI_Request* const> /*outstanding*/) override {
    const int yields = shares_cores_ ? 0 : yields_before_sleep;
    if (attempt < yields) {
      sched_yield();
      return;
    }
    const SleepRange& range = shares_cores_ ? shared_core : own_core;
    const int sleeps = std::min(attempt - yields, 60);  // growth has long met its limit
    sleep(std::min(range.longest, range.shortest * std::pow(range.growth, sleeps)));
  }

  void post_send(std::span<const std::byte> message, int peer, int tag, MPI_Comm comm, MPI_Request* out) override {
    SHARDBENCH_MPI(MPI_Isend_c(message.data(), std::ssize(message), MPI_BYTE, peer, tag, comm, out));
  }
  void post_receive(std::span<std::byte> message, int peer, int tag, MPI_Comm comm, MPI_Request* out) override {
    SHARDBENCH_MPI(MPI_Irecv_c(message.data(), std::ssize(message), MPI_BYTE, peer, tag, comm, out));
  }

  [[nodiscard]] Placement placement() const override { return placement_; }
  [[nodiscard]] bool simulated() const override { return false; }
  [[nodiscard]] std::string wait_policy() const override {
    return shares_cores_ ? "sleep 20 us growing to 1 ms (more ranks than cores)"
                         : "yield 200 times, then sleep 2 us growing to 50 us";
  }

 private:
  Placement placement_;
  bool shares_cores_ = false;
};

}  // namespace

void check_supported(const WorldSettings& /*settings*/) {}

void prepare_environment() {
  // Hydra tells how many ranks share this host. When all do, UCX's other transports only cost file descriptors and
  // start-up time; across hosts they are needed. A user's own choice stands.
  const char* local = std::getenv("MPI_LOCALNRANKS");
  const char* all = std::getenv("PMI_SIZE");
  if (local != nullptr && all != nullptr && std::string_view(local) == all) setenv("UCX_TLS", "posix,self", 0);
}

std::unique_ptr<Platform> make_platform(MPI_Comm world) { return std::make_unique<RealPlatform>(world); }

}  // namespace shardbench::mpi
