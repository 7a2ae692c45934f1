// What surrounds one rank: its clock, its peers, its place. Nothing here is global, so that a simulator can
// run every rank in one process.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/comm/communicator.hpp"
#include "src/comm/hardware.hpp"
#include "src/comm/vote.hpp"
#include "src/supervise/activity.hpp"

namespace shardbench {

/// How pending collectives advance: only in waits, between compute tiles, by an own sleeping thread, or
/// (simulated) by themselves, as on a stream of the GPU's.
enum class Progress { none, poll, thread, stream };

/// Where a rank runs.
struct Placement {
  std::string host;
  int local_rank = 0;
  int local_size = 1;    ///< ranks on this host
  int allowed_cpus = 1;  ///< of this rank
  /// Ranks that run under this kernel, and the CPUs that they may use together. Containers and network
  /// namespaces look like hosts of their own but share the machine's cores.
  int machine_ranks = 1;
  int machine_cpus = 1;
  std::string affinity;  ///< CPU list, e.g. "0-3,8"
};

/// Blocking messages between ranks for set-up and for collecting traces; never used inside a timed step.
class ControlChannel {
 public:
  ControlChannel() = default;
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;
  virtual ~ControlChannel() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  virtual void send(int to, std::span<const std::byte> message) = 0;
  /// The next message from that rank.
  virtual std::vector<std::byte> receive(int from) = 0;
};

class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Steady (or simulated) seconds since this object was made.
  [[nodiscard]] virtual double now() const = 0;
  /// Lets time pass as compute would, giving pending collectives their chances to advance (at most 1 ms
  /// apart).
  virtual void imitate_compute(double seconds) = 0;
  /// Called between compute tiles; advances pending collectives under Progress::poll.
  virtual void poll() = 0;

  /// Throws UsageError, alike on every rank, when this world cannot do what its settings ask for.
  virtual void check_settings() const = 0;

  virtual ControlChannel& control() = 0;
  /// A communicator over `members` (world ranks, in group order, this rank among them). Collective: every
  /// rank calls it at the same time, groups being equal or disjoint. Throws UsageError, alike on every rank,
  /// when the algorithm is hierarchical and some group's members are not equal runs of ranks per node.
  virtual std::unique_ptr<Communicator> communicator(std::span<const int> members) = 0;

  [[nodiscard]] virtual Placement placement() const = 0;
  /// The node of every rank of the world, the same list on each.
  [[nodiscard]] virtual const std::vector<int>& nodes() const = 0;
  [[nodiscard]] virtual bool simulated() const = 0;
  /// What a rank computes with, where the world models it; null where it is real.
  [[nodiscard]] virtual const Hardware* hardware() const = 0;
  /// The simulated machine as JSON (an object); empty where the machine is real or says nothing.
  [[nodiscard]] virtual std::string machine_description() const { return {}; }
  [[nodiscard]] virtual std::string library() const = 0;      ///< name and version of what carries messages
  [[nodiscard]] virtual std::string wait_policy() const = 0;  ///< how a rank waits for messages

  /// A vote among all ranks. Collective.
  virtual std::unique_ptr<Vote> vote() = 0;
  /// What this rank is doing; whoever waits or computes keeps it up to date.
  [[nodiscard]] virtual Activity& activity() const = 0;

  /// Collective: the last messages, before this object is destroyed in order.
  virtual void leave() = 0;
  /// Ends every rank of the job at once with this exit code.
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

/// What a world needs to know from the options.
struct WorldSettings {
  Progress progress = Progress::poll;
  Algorithm algorithm = Algorithm::automatic;
  std::optional<int> ranks_per_node;  ///< where the system's answer shall not count
  double contention =
      0.0;  ///< imitated compute takes (1 + this) times as long while a collective is under way
};

// Helpers over a control channel. All are collective.

void barrier(ControlChannel& channel);
/// Rank 0's bytes on every rank (binomial tree).
std::vector<std::byte> broadcast(ControlChannel& channel, std::vector<std::byte> message);
/// Every rank's message at rank 0, in rank order; empty elsewhere.
std::vector<std::vector<std::byte>> gather(ControlChannel& channel, std::span<const std::byte> message);
/// Element-wise sum in rank order, the same on every rank.
std::vector<double> sum(ControlChannel& channel, std::vector<double> values);
double maximum(ControlChannel& channel, double value);

/// Runs `work` on rank 0 only; what it throws, UsageError or RunError, every rank throws alike (the latter as
/// AgreedError), so that none is left waiting. Returns rank 0's result everywhere.
std::string agree_with_root(ControlChannel& channel, const std::function<std::string()>& work);

template <class T>
std::span<const std::byte> as_message(std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(values);
}

template <class T>
std::vector<T> from_message(std::span<const std::byte> message) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(message.size() / sizeof(T));
  std::copy_n(message.data(), values.size() * sizeof(T), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

}  // namespace shardbench
