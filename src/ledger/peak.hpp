// The memory ledger: how much a rank holds at once, and of what, in each phase of a step.
#pragma once

#include <array>

#include "src/options.hpp"
#include "src/shard/mesh.hpp"
#include "src/trace/recorder.hpp"

namespace shardbench {

/// Bytes held at one moment.
struct MemoryUse {
  Bytes parameters;  ///< resting, like gradients and optimizer state
  Bytes gradients;
  Bytes optimizer;
  Bytes gathered;             ///< all-gather outputs and unsharded parameters
  Bytes unsharded_gradients;  ///< fp32, between a layer's backward and its reduction
  Bytes reduce_buffers;
  Bytes activations;  ///< without the logits
  Bytes logits;
  Bytes workspace;  ///< temporaries of compute and messages

  [[nodiscard]] Bytes total() const {
    return parameters + gradients + optimizer + gathered + unsharded_gradients + reduce_buffers +
           activations + logits + workspace;
  }
};

/// The largest moment of each phase.
struct ExpectedPeak {
  std::array<MemoryUse, 3> phases;  ///< by Phase
  [[nodiscard]] Phase largest() const;
  [[nodiscard]] const MemoryUse& of(Phase phase) const { return phases[static_cast<std::size_t>(phase)]; }
};

/// What the rank at `mesh` holds when ZeRO stage 0 ... 3 trains as `options` say (--layout, --wrap,
/// --reshard-after-forward, --prefetch, --rs-wait, --bucket-mb, --recompute, --sequence-parallel, dtypes,
/// --micro-batch, --compute), with `threads` OpenMP threads. Walks a step layer by layer with the sizes of
/// docs/memory.md and nothing of the training code; exact but for a rounding in the staging of
/// collectives.
ExpectedPeak expected_peak(const Options& options, int stage, const Mesh& mesh, int threads);

}  // namespace shardbench
