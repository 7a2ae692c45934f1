// --check: every step's reduced gradients and the final masters against an unsharded reference.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "src/scenario.hpp"

namespace shardbench {

/// Rank 0 trains the whole global batch by itself, on whole tensors and with an AdamW of its own (in double),
/// and sends what it finds to the others, who compare their slices. Independent of sharding, collectives and
/// the optimizer; the model's arithmetic is checked against PyTorch elsewhere (tests/golden). All calls are
/// collective.
class ReferenceCheck {
 public:
  explicit ReferenceCheck(const TrainContext& context);
  ReferenceCheck(const ReferenceCheck&) = delete;
  ReferenceCheck& operator=(const ReferenceCheck&) = delete;
  ~ReferenceCheck();

  /// After the scenario's step: empty if the gradients agree, else one line naming tensor, rank and element.
  std::optional<std::string> compare_step(int step, Scenario& scenario);
  /// After the last step: the masters, and that bf16 parameters are their masters rounded.
  std::optional<std::string> compare_masters(Scenario& scenario);

 private:
  class Reference;
  std::unique_ptr<Reference> reference_;  ///< on rank 0
  const TrainContext& context_;
  double master_tolerance_;
  int last_step_ = 0;
};

}  // namespace shardbench
