// The HDF5 file of one run (src/trace/SCHEMA.md): written by rank 0, flushed between windows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/ledger/expected.hpp"
#include "src/options.hpp"
#include "src/trace/recorder.hpp"

namespace shardbench {

constexpr int schema_version = 1;

enum class RunStatus { running, complete, interrupted, failed };
std::string_view name_of(RunStatus status);

/// One row of `ranks`.
struct RankRow {
  std::int32_t rank = 0;
  std::int32_t dp_index = 0;
  std::int32_t tp_index = 0;
  std::int32_t pid = 0;
  std::int32_t threads = 0;
  Placement placement;
};

/// One row of `clock`: rank's clock minus rank 0's, measured at `at_s` of rank 0's clock.
struct ClockRow {
  std::int32_t rank = 0;
  double at_s = 0.0;
  double offset_s = 0.0;
  double uncertainty_s = 0.0;
};

/// A sample of a process_* category, or a tracked one.
struct MemoryRow {
  std::int32_t rank = 0;
  std::int32_t step = 0;
  double at_s = 0.0;
  std::string category;
  std::int64_t bytes = 0;
};

struct MemoryPeakRow {
  std::int32_t rank = 0;
  std::string category;
  std::int64_t peak_bytes = 0;
};

struct RankLedgerRow {
  std::int32_t rank = 0;
  LedgerRow row;
};

/// One row of `tensors`: sums over the unsharded fp32 master.
struct TensorRow {
  std::int32_t index = 0;
  std::string name;
  std::int64_t elements = 0;
  double sum = 0.0;
  double sum_of_squares = 0.0;
};

/// One row of `calibration`.
struct CalibrationRow {
  std::string kind;
  std::int32_t layer = 0;
  std::string direction;
  double compute_alone_s = 0.0;
  double communication_alone_s = 0.0;
};

class TraceFile {
 public:
  /// Creates the file with every dataset empty and status `running`. Throws UsageError when it exists and may
  /// not be replaced, RunError with path and reason when it cannot be written.
  TraceFile(const std::string& path, ExistingFile existing);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile();

  void set(const std::string& attribute, const std::string& value);
  void set(const std::string& attribute, std::int64_t value);
  void set_status(RunStatus status);
  void set_config(const std::string& json);

  void append(std::span<const RankRow> rows);
  void append(std::span<const ClockRow> rows);
  void append(int rank, std::span<const StepRecord> rows);
  void append(int rank, std::span<const Event> rows);
  void append(std::span<const MemoryRow> rows);
  void append(std::span<const MemoryPeakRow> rows);
  void append(std::span<const RankLedgerRow> rows);
  void append(std::span<const TensorRow> rows);
  void append(std::span<const CalibrationRow> rows);

  /// Everything appended so far survives the process's death.
  void flush();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Versions of the HDF5 headers and of the library that runs, e.g. "1.10.8 (headers 1.10.8), serial".
std::string hdf5_version();

}  // namespace shardbench
