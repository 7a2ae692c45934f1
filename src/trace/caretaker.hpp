// A small process that outlives rank 0: if rank 0 dies without having finished its file, the file shall not
// say "running" for ever.
#pragma once

#include <memory>
#include <string>

#include "src/trace/trace_file.hpp"

namespace shardbench {

/// Starts this executable once more, as a caretaker of `path`, in a session of its own. A launcher that kills
/// the ranks does not know it; a batch system that kills everything at once does, and then the status stays
/// `running`.
class Caretaker {
 public:
  /// Throws RunError when the process cannot be started.
  explicit Caretaker(const std::string& path);
  Caretaker(const Caretaker&) = delete;
  Caretaker& operator=(const Caretaker&) = delete;
  /// Unless dismissed, leaves the file to the caretaker, and waits until it is done. To be destroyed after
  /// the file.
  ~Caretaker();

  /// What the status becomes if this process dies from now on; `failed` until told otherwise.
  void expect(RunStatus status) const;
  /// The file has its final status: the caretaker ends and is waited for.
  void dismiss();

 private:
  void tell(char word) const;
  void wait() const;

  int process_ = -1;
  int pipe_ = -1;
};

/// A caretaker of the file at `path`. Where none can be had the file is closed as failed, and RunError
/// thrown: a file without one could say `running` for ever.
std::unique_ptr<Caretaker> start_caretaker(TraceFile& file, const std::string& path);

/// The first argument with which Caretaker starts the executable; the path follows.
constexpr const char* caretaker_argument = "--caretaker";

/// The caretaker's main: listens on standard input until rank 0 dismisses it or dies. Returns the exit code.
int take_care_of(const std::string& path);

}  // namespace shardbench
