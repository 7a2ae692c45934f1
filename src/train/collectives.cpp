#include "src/train/collectives.hpp"

namespace shardbench {

InFlight TracedCommunicator::start(Collective collective, BufferRef buffer, Subject subject,
                                   Reduction reduction) {
  const double issue_s = recorder_->now();
  const DType dtype = buffer->dtype();
  const Elements size = buffer->elements();
  InFlight handle;
  handle.pending_ = communicator_->start(collective, std::move(buffer), reduction);
  handle.recorder_ = recorder_;
  const auto sent = handle.pending_->sent();
  handle.event_ = recorder_->collective_issued(subject,
                                               {.collective = collective,
                                                .axis = axis_,
                                                .algorithm = handle.pending_->algorithm(),
                                                .dtype = dtype,
                                                .group_size = communicator_->size(),
                                                .size = size,
                                                .sent_bytes = sent ? sent->count() : -1},
                                               issue_s);
  if (recorder_->rehearsal()) handle.pending_->wait();
  return handle;
}

void InFlight::wait() {
  recorder_->collective_waited_for(event_);
  const Instant begin = recorder_->mark();
  pending_->wait();
  const Instant end = recorder_->mark();
  recorder_->collective_done(
      event_, {.wait_start = begin, .wait_end = end, .start = pending_->began(), .end = pending_->ended()});
  pending_.reset();
}

}  // namespace shardbench
