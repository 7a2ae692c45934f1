// What one rank should hold and communicate in one optimizer step, in closed form.
#pragma once

#include <span>
#include <vector>

#include "src/options.hpp"
#include "src/shard/layout.hpp"
#include "src/trace/recorder.hpp"
#include "src/trace/rows.hpp"

namespace shardbench {

/// All collectives of one kind, phase and axis in one optimizer step. S counts as nccl-tests defines it.
struct ExpectedCollective {
  Axis axis = Axis::dp;
  Collective collective = Collective::all_gather;
  Phase phase = Phase::forward;
  DType dtype = DType::fp32;
  int group_size = 1;
  std::int64_t count = 0;
  Elements size;     ///< without padding
  Elements padding;  ///< what equal blocks add to it
};

struct ExpectedLedger {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
  std::vector<ExpectedCollective> collectives;
  double textbook_volume_elements = 0.0;  ///< 2 or 3 A Psi (N-1)/N
  double textbook_static_bytes = 0.0;
};

/// DDP: 16 Psi bytes (bf16); one all-reduce per bucket, in the last micro-batch only.
ExpectedLedger expected_ddp(const Options& options, std::span<const TensorInfo> tensors, std::int64_t buckets,
                            int ranks);

/// ZeRO-3 with A micro-batches and G groups (docs/schedules.md): A*G all-gathers in forward; in backward
/// those of the groups that were freed; A*G reduce-scatters. Elements over dp, x (N-1)/N: all 3A Psi, blocks
/// A(3 Psi - Psi_last), none 2A Psi; a root group is gathered once a micro-batch.
ExpectedLedger expected_zero3(const Options& options, std::span<const TensorInfo> tensors,
                              const Grouping& grouping, std::span<const GroupLayout> layouts, int rank);

/// What the tracker held on entering an optimizer phase.
struct StaticBytes {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
};

/// Sets the measured step beside the expected one.
std::vector<LedgerRow> ledger_rows(const ExpectedLedger& expected, const StaticBytes& held,
                                   const StepTotals& totals);

/// The first row whose measured value is not expected + padding, if any.
const LedgerRow* first_mismatch(std::span<const LedgerRow> rows);

}  // namespace shardbench
