// A communicator that leaves a trace: each collective becomes an event when it has been waited for.
#pragma once

#include <memory>
#include <utility>

#include "src/comm/communicator.hpp"
#include "src/trace/recorder.hpp"

namespace shardbench {

class TracedCommunicator;

/// A traced collective in flight. wait() stands still on the compute stream and records for how long.
class InFlight {
 public:
  InFlight() = default;
  void wait();
  [[nodiscard]] bool active() const { return pending_ != nullptr; }

 private:
  friend class TracedCommunicator;
  Pending pending_;
  Recorder* recorder_ = nullptr;
  std::size_t event_ = 0;
};

class TracedCommunicator {
 public:
  TracedCommunicator(std::shared_ptr<Communicator> communicator, Axis axis, Recorder& recorder)
      : communicator_(std::move(communicator)), axis_(axis), recorder_(&recorder) {}

  [[nodiscard]] int rank() const { return communicator_->rank(); }
  [[nodiscard]] int size() const { return communicator_->size(); }

  InFlight start(Collective collective, BufferRef buffer, Subject subject,
                 Reduction reduction = Reduction::sum);

 private:
  std::shared_ptr<Communicator> communicator_;
  Axis axis_;
  Recorder* recorder_;
};

}  // namespace shardbench
