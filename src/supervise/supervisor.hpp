// A thread beside each rank that hears signals and notices when nothing goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "src/supervise/activity.hpp"

namespace shardbench {

/// Minutes beyond the slowest operation of a healthy run.
constexpr double default_stall_limit_s = 300.0;

/// Signals that ask a run to end, one bit (1 << number) each; 0 for none.
using StopRequests = std::uint32_t;

/// The first of the signals in `requests`, e.g. "SIGTERM".
std::string name_of_signal(StopRequests requests);

/// From construction to destruction, SIGTERM, SIGINT and SIGUSR1 no longer kill the process: they become stop
/// requests, which the run asks for between steps. Ends the process itself, with one line and exit code 1,
///   - when a signal comes before finishes_in_order() (nothing would hear it), or the same one again,
///   - when the activity has not changed for the stall limit.
/// Make it before any other thread, for those inherit which signals are blocked.
class Supervisor {
 public:
  /// `inert`: no signals, no thread, for a simulator whose ranks share one process.
  enum class Kind { active, inert };
  enum class Start { alone, by_launcher };
  struct Settings {
    std::string program;
    double stall_limit_s = 0.0;  ///< 0: none
    Kind kind = Kind::active;
    Start start = Start::alone;
  };

  explicit Supervisor(Settings settings);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();

  [[nodiscard]] Activity& activity() { return activity_; }
  /// To be called as soon as MPI has started.
  void set_rank(int rank) { rank_ = rank; }

  /// From now on the run asks for requests() between steps and ends in order when there are any.
  void finishes_in_order() { in_order_ = true; }
  [[nodiscard]] StopRequests requests() const { return requests_; }

  /// Prints the line and ends the process, from any thread, so that the launcher ends the other ranks.
  [[noreturn]] void end(const std::string& why) const;

 private:
  void watch(const std::stop_token& stop);
  void hear(int signal);
  void check_progress();
  [[nodiscard]] double look_s() const;
  [[nodiscard]] std::string who() const;

  Settings settings_;
  Activity activity_;
  std::atomic<int> rank_ = -1;
  std::atomic<bool> in_order_ = false;
  std::atomic<StopRequests> requests_ = 0;

  // Only the thread uses these.
  std::uint64_t last_changes_ = 0;
  double last_look_s_ = 0.0;
  double idle_s_ = 0.0;   ///< without a change, as far as the process was running
  double heard_s_ = 0.0;  ///< when the first signal came

  int signals_ = -1;  ///< signalfd
  int wake_ = -1;     ///< eventfd that ends the thread
  std::jthread thread_;
};

}  // namespace shardbench
