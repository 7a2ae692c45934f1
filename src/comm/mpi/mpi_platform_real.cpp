// A real MPI library on real hosts.
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <ctime>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string_view>

#include "src/comm/mpi/mpi_control.hpp"
#include "src/comm/mpi/mpi_platform.hpp"

namespace shardbench::mpi {
namespace {

/// How a rank waits: it yields its core this often, then sleeps ever longer between looks at the network.
struct WaitPolicy {
  int yields;
  double shortest_sleep_s;
  double longest_sleep_s;
};
constexpr double sleep_growth = 1.2;
constexpr int sleeps_until_longest = 60;

/// A yield lets whoever shares the core run at once, so that a message travels without a sleep in its way;
/// but a crowd of ranks that only yield keeps busy with looking. Measured on 2 cores, zero3 tiny,
/// milliseconds a step: 4 ranks 3.9 (151 if they sleep up to 1 ms without yielding), 16 ranks 38, 64 ranks
/// 330 (the whole run in 14 s, 23 s if they only yield).
WaitPolicy choose_policy(int ranks, int cpus) {
  const double crowd = std::max(1.0, static_cast<double>(ranks) / cpus);
  return {.yields = crowd <= 8.0 ? 1000 : 100,
          .shortest_sleep_s = crowd <= 8.0 ? 2e-6 : 50e-6,
          .longest_sleep_s = std::min(25e-6 * (1.0 + crowd), 5e-3)};
}

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

/// Equal for processes under one kernel, whatever namespaces they live in.
std::uint64_t machine_identity(const std::string& host) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  return std::hash<std::string>{}(text.empty() ? host : text);
}

std::string host_name() {
  std::string host(256, '\0');
  if (gethostname(host.data(), host.size() - 1) != 0)
    throw RunError(fmt::format("gethostname failed: {}", std::strerror(errno)));
  host.resize(std::strlen(host.c_str()));
  return host;
}

/// Of the ranks on this rank's machine: how many, and which CPUs they may use together.
struct Machine {
  int ranks = 0;
  cpu_set_t cpus{};
};

Machine find_machine(MPI_Comm world, const std::string& host, const cpu_set_t& allowed) {
  struct Home {
    std::uint64_t machine = 0;
    cpu_set_t allowed{};
  };
  int ranks = 0;
  SHARDBENCH_MPI(MPI_Comm_size(world, &ranks));
  const Home own{.machine = machine_identity(host), .allowed = allowed};
  std::vector<Home> homes(static_cast<std::size_t>(ranks));
  SHARDBENCH_MPI(MPI_Allgather(&own, sizeof own, MPI_BYTE, homes.data(), sizeof own, MPI_BYTE, world));
  Machine machine;
  for (const Home& home : homes) {
    if (home.machine != own.machine) continue;
    ++machine.ranks;
    CPU_OR(&machine.cpus, &machine.cpus, &home.allowed);
  }
  return machine;
}

class RealPlatform final : public Platform {
 public:
  explicit RealPlatform(MPI_Comm world) : world_(world) {
    // Default slack rounds every short sleep up by 50 us.
    prctl(PR_SET_TIMERSLACK, 1UL);

    MPI_Comm shared = MPI_COMM_NULL;
    SHARDBENCH_MPI(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared));
    const CommHandle node(shared);
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
      throw RunError(fmt::format("sched_getaffinity failed: {}", std::strerror(errno)));
    const std::string host = host_name();
    const Machine machine = find_machine(world, host, allowed);

    placement_ = {.host = host,
                  .local_rank = node.rank(),
                  .local_size = node.size(),
                  .allowed_cpus = CPU_COUNT(&allowed),
                  .machine_ranks = machine.ranks,
                  .machine_cpus = CPU_COUNT(&machine.cpus),
                  .affinity = cpu_list(allowed)};
    policy_ = choose_policy(machine.ranks, CPU_COUNT(&machine.cpus));

    int rank = 0;
    int ranks = 0;
    int first_of_node = 0;
    SHARDBENCH_MPI(MPI_Comm_rank(world, &rank));
    SHARDBENCH_MPI(MPI_Comm_size(world, &ranks));
    SHARDBENCH_MPI(MPI_Allreduce(&rank, &first_of_node, 1, MPI_INT, MPI_MIN, node.get()));
    nodes_.resize(static_cast<std::size_t>(ranks));
    SHARDBENCH_MPI(MPI_Allgather(&first_of_node, 1, MPI_INT, nodes_.data(), 1, MPI_INT, world));
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
    if (attempt < policy_.yields) {
      sched_yield();
      return;
    }
    const int sleeps = std::min(attempt - policy_.yields, sleeps_until_longest);
    sleep(std::min(policy_.longest_sleep_s, policy_.shortest_sleep_s * std::pow(sleep_growth, sleeps)));
  }

  void post_send(std::span<const std::byte> message, int peer, int tag, MPI_Comm comm,
                 MPI_Request* out) override {
    SHARDBENCH_MPI(MPI_Isend_c(message.data(), std::ssize(message), MPI_BYTE, peer, tag, comm, out));
  }
  void post_receive(std::span<std::byte> message, int peer, int tag, MPI_Comm comm,
                    MPI_Request* out) override {
    SHARDBENCH_MPI(MPI_Irecv_c(message.data(), std::ssize(message), MPI_BYTE, peer, tag, comm, out));
  }

  void check_supported(const WorldSettings& settings) const override {
    if (is_modelled(settings.algorithm))
      throw UsageError(fmt::format(
          "--algorithm {} is a model, which only a simulation has (shardbench simulate); use another",
          name_of(settings.algorithm)));
    if (settings.progress == Progress::stream)
      throw UsageError(
          "--progress stream exists only in simulation (shardbench simulate); use poll, thread or none");
  }

  std::unique_ptr<ControlChannel> control(Activity& activity) override {
    return make_mpi_control(world_, *this, activity);
  }
  std::unique_ptr<Communicator> streamed_communicator(std::span<const int> /*members*/,
                                                      ScheduleChoice /*choice*/,
                                                      Memory& /*memory*/) override {
    throw InternalError("a real machine has no streams");
  }
  void compute_beside_streams(double /*seconds*/, double /*contention*/) override {
    throw InternalError("a real machine has no streams");
  }

  [[nodiscard]] Placement placement() const override { return placement_; }
  [[nodiscard]] const std::vector<int>& nodes() const override { return nodes_; }
  [[nodiscard]] bool simulated() const override { return false; }
  [[nodiscard]] const Hardware* hardware() const override { return nullptr; }
  [[nodiscard]] std::string wait_policy() const override {
    return fmt::format("yield {} times, then sleep {:.0f} us growing to {:.0f} us", policy_.yields,
                       1e6 * policy_.shortest_sleep_s, 1e6 * policy_.longest_sleep_s);
  }
  [[nodiscard]] std::string description() const override { return {}; }

 private:
  MPI_Comm world_;
  Placement placement_;
  std::vector<int> nodes_;
  WaitPolicy policy_{};
};

}  // namespace

bool reports_no_thread_level() { return false; }
bool is_simulation() { return false; }

bool started_by_launcher() {
  for (const char* name : {"PMI_RANK", "PMI_FD", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

void prepare_environment() {
  // Hydra tells how many ranks share this host. When all do, UCX's other transports only cost file
  // descriptors and start-up time; across hosts they are needed. A user's own choice stands.
  const char* local = std::getenv("MPI_LOCALNRANKS");
  const char* all = std::getenv("PMI_SIZE");
  if (local != nullptr && all != nullptr && std::string_view(local) == all)
    setenv("UCX_TLS", "posix,self", 0);
}

std::unique_ptr<Platform> make_platform(MPI_Comm world, Memory& /*memory*/) {
  return std::make_unique<RealPlatform>(world);
}

}  // namespace shardbench::mpi
