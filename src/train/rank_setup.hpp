// Builds what one rank trains with, in the order of dependence: recorder, decoder, scenario.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/scenario.hpp"
#include "src/trace/recorder.hpp"
#include "src/train/calibration.hpp"
#include "src/train/context.hpp"
#include "src/train/tensor_parallel.hpp"

namespace shardbench {

class RankSetup {
 public:
  RankSetup(const Options& options, const ScenarioDefinition& definition, World& world, Memory& memory,
            Backend& backend, Purpose purpose);

  [[nodiscard]] const TrainContext& context() const { return *context_; }
  [[nodiscard]] Recorder& recorder() { return recorder_; }
  [[nodiscard]] Scenario& scenario() { return *scenario_; }
  [[nodiscard]] int threads() const { return threads_; }

  /// Imitated seconds of a block's shorter pass.
  [[nodiscard]] double shortest_block_s() const;

  /// One optimizer step, recorded. Remembers what is held on entering the first timed optimizer phase.
  void step(int index, bool warmup);
  /// Forward and backward without the optimizer, every collective on its own and compute without jitter;
  /// leaves parameters as they were.
  void rehearse(int index);

  [[nodiscard]] const StaticBytes& held() const { return held_; }
  /// The rows for the last step; the last of them is the peak's.
  [[nodiscard]] std::vector<LedgerRow> ledger() const;

 private:
  std::unique_ptr<TracedTensorParallelGroup> make_tensor_parallel_group();
  std::unique_ptr<Decoder> make_decoder(Purpose purpose);
  void imitate(double seconds) {
    if (seconds > 0.0) world_.imitate_compute(slowdown_ * seconds);
  }

  const Options& options_;
  World& world_;
  Backend& backend_;
  Memory& memory_;
  int threads_;
  Mesh mesh_;
  Backing message_;
  ComputeTimes times_;     ///< of imitated compute
  double slowdown_ = 1.0;  ///< by --jitter, in this step
  ModelledCopies copies_;
  std::vector<TensorInfo> tensors_;
  RopeTables rope_tables_;
  Recorder recorder_;
  std::unique_ptr<TracedTensorParallelGroup> tensor_parallel_;  ///< null where tp is 1
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<TrainContext> context_;
  std::unique_ptr<Scenario> scenario_;
  StaticBytes held_;
  bool held_is_known_ = false;
};

}  // namespace shardbench
