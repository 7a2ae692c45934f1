#include "src/supervise/supervisor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "src/errors.hpp"
#include "src/say.hpp"

namespace shardbench {
namespace {

constexpr std::array<int, 3> stop_signals = {SIGTERM, SIGINT, SIGUSR1};

// A launcher and a batch system may both pass a signal on: what comes this soon is the same request.
constexpr double same_request_s = 0.5;

// How often progress is looked at: a fraction of the limit, and not so often that it disturbs.
constexpr double looks_per_limit = 10.0;
constexpr double shortest_look_s = 0.05;
constexpr double longest_look_s = 1.0;

// Launchers forward what a rank prints, but may drop what they have not read when a rank dies.
constexpr std::chrono::milliseconds last_words{100};

double steady_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : stop_signals) sigaddset(&set, signal);
  return set;
}

int checked(int result, const char* call) {
  if (result < 0) throw RunError(fmt::format("{} failed: {}", call, std::strerror(errno)));
  return result;
}

}  // namespace

std::string name_of_signal(StopRequests requests) {
  for (const int signal : stop_signals)
    if ((requests & (1U << static_cast<unsigned>(signal))) != 0)
      return fmt::format("SIG{}", sigabbrev_np(signal));
  return "no signal";
}

Supervisor::Supervisor(Settings settings) : settings_(std::move(settings)) {
  if (settings_.kind == Kind::inert) return;
  const sigset_t set = stop_signal_set();
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0)
    throw RunError(fmt::format("pthread_sigmask failed: {}", std::strerror(error)));
  signals_ = checked(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC), "signalfd");
  wake_ = checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
  last_look_s_ = steady_now();
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

Supervisor::~Supervisor() {
  if (settings_.kind == Kind::inert) return;
  thread_.request_stop();
  const std::uint64_t one = 1;
  if (write(wake_, &one, sizeof one) < 0) {
    // The thread sees the stop at its next look.
  }
  thread_.join();
  close(wake_);
  close(signals_);
  // The signals stay blocked: the process is about to end with an exit code of its own.
}

void Supervisor::watch(const std::stop_token& stop) {
  std::array<pollfd, 2> files = {pollfd{.fd = signals_, .events = POLLIN, .revents = 0},
                                 pollfd{.fd = wake_, .events = POLLIN, .revents = 0}};
  while (!stop.stop_requested()) {
    if (poll(files.data(), files.size(), static_cast<int>(look_s() * 1e3)) < 0 && errno != EINTR) return;
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == sizeof info) hear(static_cast<int>(info.ssi_signo));
    check_progress();
  }
}

double Supervisor::look_s() const {
  return settings_.stall_limit_s > 0.0
             ? std::clamp(settings_.stall_limit_s / looks_per_limit, shortest_look_s, longest_look_s)
             : longest_look_s;
}

void Supervisor::hear(int signal) {
  const StopRequests bit = 1U << static_cast<unsigned>(signal);
  const double now = steady_now();
  if (!in_order_) end(fmt::format("ended by {} before the output was created", name_of_signal(bit)));
  const bool again = (requests_ & bit) != 0;
  if (again && now - heard_s_ > same_request_s)
    end(fmt::format("ended by a second {} before the step was finished", name_of_signal(bit)));
  if (!again) heard_s_ = now;
  requests_ |= bit;
}

void Supervisor::check_progress() {
  if (settings_.stall_limit_s <= 0.0) return;
  const double now = steady_now();
  // A process that was suspended has not waited: more than two looks' time does not count.
  const double since_last_look_s = std::min(now - last_look_s_, 2 * look_s());
  last_look_s_ = now;
  const std::uint64_t changes = activity_.changes();
  idle_s_ = changes == last_changes_ ? idle_s_ + since_last_look_s : 0.0;
  last_changes_ = changes;
  if (idle_s_ < settings_.stall_limit_s) return;
  const Position at = activity_.position();
  if (at.patience == Patience::unlimited) return;
  std::string where;
  if (at.step >= 0) where += fmt::format("step {}, ", at.step);
  if (!at.phase.empty()) where += fmt::format("{}, ", at.phase);
  if (at.layer >= 0) where += fmt::format("layer {}, ", at.layer);
  where += at.operation;
  if (at.group_size > 0) where += fmt::format(" (axis {}, {} ranks)", at.axis, at.group_size);
  end(fmt::format(
      "no progress for {:g} s at {}; a peer or the network may be gone; if the run is merely slow, "
      "raise --stall-timeout",
      settings_.stall_limit_s, where));
}

std::string Supervisor::who() const {
  const int rank = rank_;
  return rank < 0 ? settings_.program : fmt::format("{}: rank {}", settings_.program, rank);
}

void Supervisor::end(const std::string& why) const {
  say(stderr, fmt::format("{}: {}\n", who(), why));
  std::this_thread::sleep_for(last_words);
  // A launcher thinks nothing of a process that exits before it has started MPI, and the others would wait
  // for it in MPI_Init; a death by a signal it understands.
  if (rank_ < 0 && settings_.start == Start::by_launcher) kill(getpid(), SIGKILL);
  // Not exit(): the main thread may hold any lock.
  std::_Exit(static_cast<int>(ExitCode::run_failure));
}

}  // namespace shardbench
