// The errors that end a run, and the assertion for what only a bug can break.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace shardbench {

/// Process exit codes (docs/contract.md).
enum class ExitCode : int { done = 0, run_failure = 1, usage = 2, check_failed = 3 };

/// The user asked for something that cannot be done: problem, reason, what to do. Exit 2.
/// Only thrown where every rank throws it alike.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A failure while running (I/O, MPI, memory). Exit 1; ends the whole job.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A RunError that every rank has heard of and throws alike, so that the job can end without an abort.
class AgreedError : public RunError {
 public:
  using RunError::RunError;
};

/// A broken internal promise: a bug in shardbench, never the user's fault.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void throw_internal_error(const char* expression, const char* file, int line) {
  throw InternalError(
      fmt::format("internal error: {} does not hold at {}:{}; please report it", expression, file, line));
}

}  // namespace shardbench

#define SHARDBENCH_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::shardbench::throw_internal_error(#expression, __FILE__, __LINE__))
