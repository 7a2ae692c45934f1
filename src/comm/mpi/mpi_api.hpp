// mpi.h, its error check and its handles. Only files of this folder include it.
#pragma once

#include <fmt/format.h>
#include <mpi.h>

#include <string>
#include <utility>

#include "src/errors.hpp"

namespace shardbench::mpi {

inline void check(int code, const char* call, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  throw RunError(fmt::format("{} failed at {}:{}: {}", call, file, line, text));
}

#define SHARDBENCH_MPI(call) ::shardbench::mpi::check((call), #call, __FILE__, __LINE__)

/// An owned communicator whose errors are returned, not fatal, so that `check` sees them.
class CommHandle {
 public:
  CommHandle() = default;
  explicit CommHandle(MPI_Comm comm) : comm_(comm) {
    SHARDBENCH_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  }
  CommHandle(CommHandle&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  CommHandle& operator=(CommHandle&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  CommHandle(const CommHandle&) = delete;
  CommHandle& operator=(const CommHandle&) = delete;
  ~CommHandle() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] MPI_Comm get() const { return comm_; }
  [[nodiscard]] int rank() const {
    int rank = 0;
    SHARDBENCH_MPI(MPI_Comm_rank(comm_, &rank));
    return rank;
  }
  [[nodiscard]] int size() const {
    int size = 0;
    SHARDBENCH_MPI(MPI_Comm_size(comm_, &size));
    return size;
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

inline CommHandle duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  SHARDBENCH_MPI(MPI_Comm_dup(comm, &copy));
  return CommHandle(copy);
}

}  // namespace shardbench::mpi
