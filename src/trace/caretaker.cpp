#include "src/trace/caretaker.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "src/errors.hpp"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace shardbench {
namespace {

using namespace std::chrono_literals;

// What is said through the pipe.
constexpr char dismissed = 'd';
constexpr char interrupted = 'i';

// A dying process closes its pipe before it gives up its lock on the file: how often and how long to try.
constexpr int attempts = 100;
constexpr std::chrono::milliseconds between_attempts{50};
constexpr std::chrono::milliseconds poll_interval{5};

void check(int error, const char* call) {
  if (error != 0)
    throw RunError(fmt::format("cannot start the file's caretaker: {}: {}", call, std::strerror(error)));
}

/// posix_spawn's two descriptions of the process to be, freed in the end.
class SpawnPlan {
 public:
  SpawnPlan() {
    check(posix_spawn_file_actions_init(&actions_), "posix_spawn_file_actions_init");
    check(posix_spawnattr_init(&attributes_), "posix_spawnattr_init");
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }

  /// Standard input is `input`, and standard error stays, so that a launcher that waits until its pipes are
  /// closed returns when the file is in order. No other file stays open and no signal blocked, and the
  /// session is a new one, so that nobody's kill of a group reaches it.
  pid_t start(int input, std::vector<std::string> arguments) {
    check(posix_spawn_file_actions_adddup2(&actions_, input, STDIN_FILENO),
          "posix_spawn_file_actions_adddup2");
    check(posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, "/dev/null", O_WRONLY, 0),
          "posix_spawn_file_actions_addopen");
    check(posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1),
          "posix_spawn_file_actions_addclosefrom_np");
    sigset_t none;
    sigemptyset(&none);
    check(posix_spawnattr_setsigmask(&attributes_, &none), "posix_spawnattr_setsigmask");
    check(posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID),
          "posix_spawnattr_setflags");
    std::vector<char*> words;
    words.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    pid_t process = -1;
    check(posix_spawn(&process, "/proc/self/exe", &actions_, &attributes_, words.data(), environ),
          "posix_spawn");
    return process;
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

}  // namespace

Caretaker::Caretaker(const std::string& path) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) check(errno, "pipe2");
  pipe_ = ends[1];
  try {
    process_ = SpawnPlan().start(ends[0], {"shardbench-caretaker", caretaker_argument, path});
  } catch (...) {
    close(ends[0]);
    close(pipe_);
    throw;
  }
  close(ends[0]);
}

Caretaker::~Caretaker() {
  if (pipe_ < 0) return;
  close(pipe_);
  wait();
}

void Caretaker::wait() const {
  // It gives up by itself; a second more, so that this does not hang should it be stopped.
  for (auto left = attempts * between_attempts + 1s; left.count() > 0; left -= poll_interval) {
    if (waitpid(process_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(poll_interval);
  }
}

void Caretaker::expect(RunStatus status) const {
  if (status == RunStatus::interrupted) tell(interrupted);
}

void Caretaker::dismiss() {
  tell(dismissed);
  close(std::exchange(pipe_, -1));
  wait();
}

void Caretaker::tell(char word) const {
  // Without a reader (someone killed the caretaker) SIGPIPE would come; it is ignored where the program
  // starts.
  while (write(pipe_, &word, 1) < 0 && errno == EINTR) {
  }
}

std::unique_ptr<Caretaker> start_caretaker(TraceFile& file, const std::string& path) {
  try {
    return std::make_unique<Caretaker>(path);
  } catch (const RunError&) {
    file.finish(RunStatus::failed);
    throw;
  }
}

int take_care_of(const std::string& path) {
  // Only rank 0's end, not a signal that someone sends to a whole user or terminal, is this process's end.
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) std::signal(signal, SIG_IGN);
  RunStatus status = RunStatus::failed;
  for (;;) {
    char word = 0;
    const ssize_t got = read(STDIN_FILENO, &word, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (word == dismissed) return static_cast<int>(ExitCode::done);
    if (word == interrupted) status = RunStatus::interrupted;
  }
  for (int attempt = 0; attempt < attempts; ++attempt) {
    try {
      if (close_abandoned(path, status)) return static_cast<int>(ExitCode::done);
    } catch (const RunError&) {
      // What does not work now may work in a moment; if not, the status stays as it is.
    }
    std::this_thread::sleep_for(between_attempts);
  }
  return static_cast<int>(ExitCode::run_failure);
}

}  // namespace shardbench
