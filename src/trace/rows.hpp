// The rows of the trace file's smaller tables (SCHEMA.md); steps and events are recorder.hpp's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/comm/world.hpp"
#include "src/trace/recorder.hpp"

namespace shardbench {

/// One row of `ranks`.
struct RankRow {
  std::int32_t rank = 0;
  std::int32_t dp_index = 0;
  std::int32_t tp_index = 0;
  std::int32_t pid = 0;
  std::int32_t threads = 0;
  std::string device = "cpu";
  Placement placement;
};

/// One row of `clock`: rank's clock minus rank 0's, measured at `at_s` of rank 0's clock.
struct ClockRow {
  std::int32_t rank = 0;
  double at_s = 0.0;
  double offset_s = 0.0;
  double uncertainty_s = 0.0;
};

/// A sample of a process_* or device_* category, or a tracked one.
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

/// One row of the `ledger` table: measured = expected + padding, except for textbook rows.
struct LedgerRow {
  Axis axis = Axis::world;
  std::string quantity;
  double expected = 0.0;
  double measured = 0.0;
  double padding = 0.0;
  std::string unit;
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

/// What ended the timed repetitions of a line of the program `collectives`.
enum class Stop : std::int32_t {
  iterations,  ///< their number was fixed
  precision,   ///< the interval of the median was narrow enough
  budget,      ///< the time was used up
  rows         ///< so many repetitions that their rows would fill the memory
};
std::string_view name_of(Stop stop);

/// One repetition of one line of the program `collectives` on one rank: a row of `collectives`.
struct CollectiveRecord {
  std::int32_t line = 0;  ///< of the printed table, from 0
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::local;
  DType dtype = DType::fp32;
  Reduction reduction = Reduction::sum;  ///< says nothing about an all-gather
  Bytes size;                            ///< S as nccl-tests defines it
  Elements count;                        ///< as nccl-tests prints it
  std::int32_t repetition = 0;
  std::int32_t warmup = 0;  ///< 1 for what is not timed
  double start_s = 0.0;
  double end_s = 0.0;
  std::int64_t sent_bytes = 0;  ///< -1 where the library does not tell
  std::int64_t wrong = -1;      ///< elements; -1 where the result was not checked
  std::int32_t window = -1;     ///< of the timed ones, from 0; -1 for what is not timed
  Stop stop = Stop::iterations;
};

}  // namespace shardbench
