#include "src/comm/scheduled_communicator.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/comm/reduction.hpp"
#include "src/comm/schedule.hpp"
#include "src/errors.hpp"

namespace shardbench {
namespace {

// Tags tell chains of one collective apart, and one collective from the next that a faster peer may have
// begun. MPI guarantees 32767 as the least upper bound of a tag.
constexpr int tag_limit = 32768;

class ScheduledOperation final : public Operation {
 public:
  ScheduledOperation(Schedule schedule, ScheduleScratch scratch, BufferRef buffer, Reduction reduction,
                     std::shared_ptr<Transport> transport, int first_tag)
      : schedule_(std::move(schedule)),
        scratch_(std::move(scratch)),
        buffer_(std::move(buffer)),
        reduction_(reduction),
        transport_(std::move(transport)),
        first_tag_(first_tag),
        slots_(std::min(schedule_.chains.size(), concurrent_chains)) {}

 private:
  /// A running chain, its step and its share of the scratch. A chain first goes through the steps that reduce
  /// (`reducing`), then completes what this rank owns (rounding, averaging), then the steps that gather.
  struct Slot {
    std::size_t index = 0;
    const Chain* chain = nullptr;
    std::size_t step = 0;
    bool posted = false;
    bool reducing = false;      ///< `own` is not complete yet
    bool accumulating = false;  ///< ... and its sum so far lies in the accumulator
    int tag = 0;
    std::unique_ptr<MessageSet> messages;
  };

  void start() override {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].index = i;
      slots_[i].messages = transport_->message_set();
      next_chain(slots_[i]);
    }
  }

  bool advance() override {
    bool done = true;
    for (Slot& slot : slots_) done = advance_slot(slot) && done;
    return done;
  }

  void next_chain(Slot& slot) {
    slot.chain = next_ < schedule_.chains.size() ? &schedule_.chains[next_] : nullptr;
    slot.tag = (first_tag_ + static_cast<int>(next_)) % tag_limit;
    slot.step = 0;
    slot.posted = false;
    ++next_;
  }

  bool advance_slot(Slot& slot) {
    while (slot.chain != nullptr) {
      if (slot.step == slot.chain->steps.size()) {
        if (slot.reducing) complete_own(slot);
        next_chain(slot);
        continue;
      }
      const Step& step = slot.chain->steps[slot.step];
      if (!slot.posted) post(slot, step);
      if (!slot.messages->test()) return false;
      if (step.on_receive != OnReceive::store) add_received(slot, step);
      ++slot.step;
      slot.posted = false;
    }
    return true;
  }

  void post(Slot& slot, const Step& step) {
    if (step.on_receive == OnReceive::add_in_fp32 && !slot.accumulating) load_accumulator(slot);
    if (step.on_receive == OnReceive::store && slot.reducing) complete_own(slot);
    slot.reducing = step.on_receive != OnReceive::store;
    std::int64_t staged = 0;
    for (const Transfer& receive : step.receives) {
      const bool direct = step.on_receive == OnReceive::store;
      std::byte* into = direct ? at(receive.range.begin) : staging(slot, staged);
      if (!direct) staged += receive.range.count;
      slot.messages->receive(receive.peer, slot.tag, {into, length(receive.range)});
    }
    for (const Transfer& send : step.sends)
      slot.messages->send(send.peer, slot.tag, {at(send.range.begin), length(send.range)});
    slot.posted = true;
  }

  void add_received(Slot& slot, const Step& step) {
    if (!buffer_->holds_values()) return;  // phantom bytes mean nothing
    std::int64_t staged = 0;
    for (const Transfer& receive : step.receives) {
      const std::byte* from = staging(slot, staged);
      const Range range = receive.range;
      staged += range.count;
      if (step.on_receive == OnReceive::add_in_fp32) {
        combine(reduction_, accumulator(slot), reinterpret_cast<const bodies::BFloat16*>(from), range.count);
      } else if (buffer_->dtype() == DType::fp32) {
        combine(reduction_, reinterpret_cast<float*>(at(range.begin)), reinterpret_cast<const float*>(from),
                range.count);
      } else {
        combine(reduction_, reinterpret_cast<bodies::BFloat16*>(at(range.begin)),
                reinterpret_cast<const bodies::BFloat16*>(from), range.count);
      }
    }
  }

  void load_accumulator(Slot& slot) {
    slot.accumulating = true;
    if (!buffer_->holds_values()) return;
    const Range range = slot.chain->own;
    const auto* own = reinterpret_cast<const bodies::BFloat16*>(at(range.begin));
    for (std::int64_t i = 0; i < range.count; ++i) bodies::scaled_copy(i, accumulator(slot), own, 1.0F);
  }

  /// After the last adding step, and before anyone is sent the result.
  void complete_own(Slot& slot) {
    const bool accumulated = std::exchange(slot.accumulating, false);
    slot.reducing = false;
    const Range range = slot.chain->own;
    if (!buffer_->holds_values() || range.count == 0) return;
    if (accumulated) {
      auto* own = reinterpret_cast<bodies::BFloat16*>(at(range.begin));
      finish(reduction_, transport_->size(), own, accumulator(slot), range.count);
    } else if (reduction_ == Reduction::average && buffer_->dtype() == DType::fp32) {
      auto* own = reinterpret_cast<float*>(at(range.begin));
      finish(reduction_, transport_->size(), own, own, range.count);
    } else if (reduction_ == Reduction::average) {
      auto* own = reinterpret_cast<bodies::BFloat16*>(at(range.begin));
      finish(reduction_, transport_->size(), own, own, range.count);
    }
  }

  [[nodiscard]] std::byte* at(std::int64_t element) const {
    return buffer_->data() + element * size_of(buffer_->dtype());
  }
  [[nodiscard]] std::size_t length(Range range) const {
    return static_cast<std::size_t>(range.count * size_of(buffer_->dtype()));
  }
  [[nodiscard]] std::byte* staging(const Slot& slot, std::int64_t offset) const {
    const std::int64_t per_slot = scratch_.staging->elements().count() / std::ssize(slots_);
    const std::int64_t element = static_cast<std::int64_t>(slot.index) * per_slot + offset;
    return scratch_.staging->data() + element * size_of(buffer_->dtype());
  }
  [[nodiscard]] float* accumulator(const Slot& slot) const {
    const std::int64_t per_slot = scratch_.accumulator->elements().count() / std::ssize(slots_);
    return scratch_.accumulator->floats().data() + static_cast<std::int64_t>(slot.index) * per_slot;
  }

  Schedule schedule_;
  ScheduleScratch scratch_;
  BufferRef buffer_;
  Reduction reduction_;
  std::shared_ptr<Transport> transport_;  ///< with its messages: it may outlive the communicator in the queue
  int first_tag_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

class ScheduledCommunicator final : public Communicator {
 public:
  ScheduledCommunicator(std::unique_ptr<Transport> transport, Engine& engine, Memory& memory,
                        ScheduleChoice choice)
      : transport_(std::move(transport)),
        engine_(engine),
        memory_(memory),
        choice_(choice),
        queue_(engine.add_queue()) {}

  [[nodiscard]] int rank() const override { return transport_->rank(); }
  [[nodiscard]] int size() const override { return transport_->size(); }

  Pending start(Collective collective, BufferRef buffer, Reduction reduction) override {
    ScheduleRequest request{.collective = collective,
                            .algorithm = choice_.algorithm,
                            .dtype = buffer->dtype(),
                            .size = buffer->elements(),
                            .ranks = size(),
                            .rank = rank(),
                            .node_size = choice_.node_size};
    SHARDBENCH_ASSERT(collective == Collective::all_reduce || request.size.count() % size() == 0);
    request.algorithm = resolve(choice_.algorithm, request);
    Schedule schedule = make_schedule(request);
    const Bytes sent = bytes_of(request.dtype, schedule.sent());
    ScheduleScratch scratch = allocate_scratch(schedule, request.dtype, memory_,
                                               buffer->holds_values() ? Backing::memory : Backing::aliased);
    const int tag = next_tag_;
    next_tag_ = static_cast<int>((static_cast<std::size_t>(next_tag_) + schedule.chains.size()) % tag_limit);
    auto operation = std::make_shared<ScheduledOperation>(std::move(schedule), std::move(scratch),
                                                          std::move(buffer), reduction, transport_, tag);
    engine_.submit(queue_, operation);
    return std::make_unique<EnginePending>(
        engine_, std::move(operation), EnginePending::Facts{.algorithm = request.algorithm, .sent = sent});
  }

 private:
  std::shared_ptr<Transport> transport_;
  Engine& engine_;
  Memory& memory_;
  ScheduleChoice choice_;
  Engine::QueueId queue_;
  int next_tag_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_scheduled_communicator(std::unique_ptr<Transport> transport,
                                                          Engine& engine, Memory& memory,
                                                          ScheduleChoice choice) {
  return std::make_unique<ScheduledCommunicator>(std::move(transport), engine, memory, choice);
}

}  // namespace shardbench
