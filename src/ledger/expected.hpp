// What one rank should hold and communicate in one optimizer step, in closed form.
#pragma once

#include <span>
#include <vector>

#include "src/options.hpp"
#include "src/shard/layout.hpp"
#include "src/shard/mesh.hpp"
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
  int stage = 0;  ///< of ZeRO
  Bytes parameters;
  Bytes parameters_padding;  ///< of buckets that are gathered where they rest
  Bytes gradients;
  Bytes optimizer;
  std::vector<ExpectedCollective> collectives;
  double textbook_volume_elements = 0.0;  ///< 2 or 3 A Psi (N-1)/N
  double textbook_static_bytes = 0.0;
};

/// DDP: 16 Psi bytes (bf16); one all-reduce per bucket, in the last micro-batch only.
ExpectedLedger expected_ddp(const Options& options, std::span<const TensorInfo> tensors, std::int64_t buckets,
                            int ranks);

/// ZeRO-1 with buckets as `layouts`: 4 Psi + 12 Psi/N bytes; one reduce-scatter a bucket in the last
/// micro-batch and one all-gather a bucket, in the optimizer phase or (--param-gather overlap) in forward.
ExpectedLedger expected_zero1(const Options& options, std::span<const TensorInfo> tensors,
                              std::span<const GroupLayout> layouts, int rank);

/// ZeRO-2: 2 Psi + 14 Psi/N bytes; as ZeRO-1, but reduce-scatters in every micro-batch: (A+1) Psi (N-1)/N.
ExpectedLedger expected_zero2(const Options& options, std::span<const TensorInfo> tensors,
                              std::span<const GroupLayout> layouts, int rank);

/// ZeRO-3 with A micro-batches and G groups (docs/schedules.md): A*G all-gathers in forward; in backward
/// those of the groups that were freed; A*G reduce-scatters. Elements over dp, x (N-1)/N: all 3A Psi, blocks
/// A(3 Psi - Psi_last), none 2A Psi; a root group is gathered once a micro-batch.
ExpectedLedger expected_zero3(const Options& options, std::span<const TensorInfo> tensors,
                              const Grouping& grouping, std::span<const GroupLayout> layouts,
                              const Mesh& mesh);

/// Adds to zero3's ledger what a tensor-parallel group of `tp` > 1 exchanges, T = B*seq tokens, per
/// micro-batch: 2L+1 all-reduces of T*h in forward and in backward, or with sequence parallelism 2L+1
/// all-gathers and reduce-scatters in each and, once a step, 2L+1 all-reduces of the norm gradients that rest
/// here (`resting_norms` elements); 3 fp32 all-reduces of T for the loss. Recomputation repeats a block's
/// forward collectives but the one after w2.
ExpectedLedger expected_mesh2d(ExpectedLedger ledger, const Options& options, Elements resting_norms, int tp);

/// What the tracker held on entering an optimizer phase.
struct StaticBytes {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
};

/// A row for expected_peak() beside the tracker's.
LedgerRow peak_row(Bytes expected, Bytes measured);

/// Sets the measured step beside the expected one.
std::vector<LedgerRow> ledger_rows(const ExpectedLedger& expected, const StaticBytes& held,
                                   const StepTotals& totals);

/// The first row whose measured value is not expected + padding, if any.
const LedgerRow* first_mismatch(std::span<const LedgerRow> rows);

}  // namespace shardbench
