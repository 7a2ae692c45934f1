// The HDF5 file of one run (src/trace/SCHEMA.md): written by rank 0, flushed between windows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/trace/recorder.hpp"
#include "src/trace/rows.hpp"

namespace shardbench {

constexpr int schema_version = 1;

enum class RunStatus { running, complete, interrupted, failed };
std::string_view name_of(RunStatus status);

enum class ExistingFile { refuse, overwrite };

/// Which tables a file has: those of a training run, or also `collectives`.
enum class Tables { training, collectives };

/// Throws what TraceFile's constructor would, but leaves nothing behind and an existing file as it is.
void check_output(const std::string& path, ExistingFile existing);

/// Gives the status to a file whose writer died while it said `running`; any other is left alone. False while
/// another process has it open.
bool close_abandoned(const std::string& path, RunStatus status);

class TraceFile {
 public:
  /// Creates the file with every dataset empty and status `running`. Throws UsageError when it exists and may
  /// not be replaced, RunError with path and reason when it cannot be written.
  TraceFile(const std::string& path, ExistingFile existing, Tables tables = Tables::training);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile();

  void set(const std::string& attribute, const std::string& value);
  void set(const std::string& attribute, std::int64_t value);
  void set(const std::string& attribute, int value) { set(attribute, std::int64_t{value}); }
  void set(const std::string& attribute, double value);
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
  /// Only into a file made with Tables::collectives.
  void append(int rank, std::span<const CollectiveRecord> rows);

  /// Everything appended so far survives the process's death. Throws RunError when the file is no longer at
  /// its path: what is written then is lost.
  void flush();
  /// The last words: sets the status, with the checksums of all that was written, and has the system bring
  /// the file to its disk. Nothing may be set or appended afterwards.
  void finish(RunStatus status);

 private:
  class Impl;
  void set_status(RunStatus status);
  void give_up();

  std::unique_ptr<Impl> impl_;
};

/// Versions of the HDF5 headers and of the library that runs, e.g. "1.10.8 (headers 1.10.8), serial".
std::string hdf5_version();

}  // namespace shardbench
