// A communicator that carries schedules out over point-to-point messages.
#pragma once

#include <memory>

#include "src/comm/communicator.hpp"
#include "src/comm/progress.hpp"
#include "src/comm/transport.hpp"

namespace shardbench {

/// Which schedules a communicator carries out.
struct ScheduleChoice {
  Algorithm algorithm = Algorithm::automatic;  ///< any but native
  int node_size = 1;  ///< of the group's nodes (node_size_of); only hierarchical asks
};

/// `engine` and `memory` must outlive the communicator.
std::unique_ptr<Communicator> make_scheduled_communicator(std::unique_ptr<Transport> transport,
                                                          Engine& engine, Memory& memory,
                                                          ScheduleChoice choice);

/// A handle on an operation in the engine; keeps buffers and scratch until it is waited for and destroyed.
class EnginePending final : public PendingCollective {
 public:
  struct Facts {
    Algorithm algorithm;
    std::optional<Bytes> sent;
  };
  EnginePending(Engine& engine, std::shared_ptr<Operation> operation, Facts facts)
      : engine_(engine), operation_(std::move(operation)), facts_(facts) {}

  void wait() override { engine_.wait(*operation_); }
  [[nodiscard]] Instant began() const override { return {operation_->start_s()}; }
  [[nodiscard]] Instant ended() const override { return {operation_->end_s()}; }
  [[nodiscard]] Algorithm algorithm() const override { return facts_.algorithm; }
  [[nodiscard]] std::optional<Bytes> sent() const override { return facts_.sent; }

 private:
  Engine& engine_;
  std::shared_ptr<Operation> operation_;
  Facts facts_;
};

}  // namespace shardbench
