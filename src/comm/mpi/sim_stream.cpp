#include "src/comm/mpi/sim_stream.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "src/errors.hpp"

namespace shardbench::mpi {
namespace {

namespace sg4 = simgrid::s4u;

/// One end of a message under way.
struct Transit {
  sg4::CommPtr comm;
  std::shared_ptr<Fabric::Parcel> parcel;
  std::vector<std::span<std::byte>> into;  ///< empty for what is sent
};

/// All that this stream has under way.
using Outstanding = std::set<std::vector<Transit>*>;

class StreamMessageSet final : public MessageSet {
 public:
  /// A group's number and its members' world ranks.
  struct Group {
    int number;
    std::vector<int> members;
    int rank;  ///< of this member, in the group
  };
  StreamMessageSet(Fabric& fabric, const Group& group, Outstanding& outstanding)
      : fabric_(fabric), group_(group), outstanding_(outstanding) {
    outstanding_.insert(&transits_);
  }
  StreamMessageSet(const StreamMessageSet&) = delete;
  StreamMessageSet& operator=(const StreamMessageSet&) = delete;
  ~StreamMessageSet() override { outstanding_.erase(&transits_); }

  void send(int peer, int tag, std::span<const std::byte> message) override {
    sends_[{peer, tag}].push_back(message);
  }
  void receive(int peer, int tag, std::span<std::byte> message) override {
    receives_[{peer, tag}].push_back(message);
  }
  bool test() override {
    post();
    std::erase_if(transits_, [](const Transit& transit) {
      if (!transit.comm->test()) return false;
      if (transit.parcel->contents && !transit.into.empty()) unpack(*transit.parcel->contents, transit.into);
      return true;
    });
    return transits_.empty();
  }

 private:
  [[nodiscard]] int world(int member) const { return group_.members[static_cast<std::size_t>(member)]; }

  /// What goes to one peer at once is one message: the ranges of a step travel together.
  void post() {
    for (const auto& [from, ranges] : receives_) {
      auto parcel = fabric_.meet({group_.number, world(from.first), world(group_.rank), from.second}, false);
      transits_.push_back(
          {.comm = parcel->mailbox->get_async<void>(&parcel->received), .parcel = parcel, .into = ranges});
    }
    for (const auto& [to, ranges] : sends_) {
      auto parcel = fabric_.meet({group_.number, world(group_.rank), world(to.first), to.second}, true);
      std::size_t bytes = 0;
      for (const auto& range : ranges) bytes += range.size();
      // A copy: the sender may go on to change the original at the very instant at which it has arrived.
      if (!fabric_.arena()->contains(ranges.front().data())) parcel->contents = pack(ranges, bytes);
      transits_.push_back(
          {.comm = parcel->mailbox->put_async(parcel.get(), bytes), .parcel = parcel, .into = {}});
    }
    receives_.clear();
    sends_.clear();
  }

  static std::shared_ptr<std::vector<std::byte>> pack(std::span<const std::span<const std::byte>> ranges,
                                                      std::size_t bytes) {
    auto contents = std::make_shared<std::vector<std::byte>>();
    contents->reserve(bytes);
    for (const auto& range : ranges) contents->insert(contents->end(), range.begin(), range.end());
    return contents;
  }
  static void unpack(std::span<const std::byte> contents, std::span<const std::span<std::byte>> ranges) {
    for (const auto& range : ranges) {
      SHARDBENCH_ASSERT(range.size() <= contents.size());
      std::copy_n(contents.begin(), range.size(), range.begin());
      contents = contents.subspan(range.size());
    }
    SHARDBENCH_ASSERT(contents.empty());
  }

  Fabric& fabric_;
  const Group& group_;
  Outstanding& outstanding_;
  std::map<std::pair<int, int>, std::vector<std::span<const std::byte>>>
      sends_;  ///< by peer and tag; not posted
  std::map<std::pair<int, int>, std::vector<std::span<std::byte>>> receives_;
  std::vector<Transit> transits_;
};

class StreamTransport final : public Transport {
 public:
  StreamTransport(std::shared_ptr<Fabric> fabric, StreamMessageSet::Group group, Outstanding& outstanding)
      : fabric_(std::move(fabric)), group_(std::move(group)), outstanding_(outstanding) {}

  [[nodiscard]] int rank() const override { return group_.rank; }
  [[nodiscard]] int size() const override { return static_cast<int>(group_.members.size()); }
  std::unique_ptr<MessageSet> message_set() override {
    return std::make_unique<StreamMessageSet>(*fabric_, group_, outstanding_);
  }

 private:
  std::shared_ptr<Fabric> fabric_;
  StreamMessageSet::Group group_;
  Outstanding& outstanding_;
};

/// Runs one queue of operations on an actor of its own.
class StreamEngine final : public Engine {
 public:
  StreamEngine(std::shared_ptr<Fabric> fabric, int rank) : state_(std::make_shared<State>()) {
    state_->fabric = std::move(fabric);
    state_->rank = rank;
    sg4::Actor::create("stream", sg4::this_actor::get_host(), [state = state_] { run(*state); })->daemonize();
  }

  QueueId add_queue() override { return 0; }

  void submit(QueueId /*queue*/, std::shared_ptr<Operation> operation) override {
    state_->queue.push_back(std::move(operation));
    state_->work->release();
  }

  void wait(const Operation& operation) override {
    while (!operation.done()) {
      state_->is_awaited = true;
      state_->progress->acquire();
    }
  }

  Outstanding& outstanding() { return state_->outstanding; }

 private:
  /// Outlives the engine for as long as the actor does.
  struct State {
    std::shared_ptr<Fabric> fabric;
    int rank = 0;
    std::deque<std::shared_ptr<Operation>> queue;
    Outstanding outstanding;
    sg4::SemaphorePtr work = sg4::Semaphore::create(0);
    sg4::SemaphorePtr progress = sg4::Semaphore::create(0);
    bool is_awaited = false;  ///< the rank waits for the next operation to end
  };

  static void run(State& state) {
    for (;;) {
      state.work->acquire();
      {
        const std::shared_ptr<Operation> operation = std::move(state.queue.front());
        state.queue.pop_front();
        state.fabric->add_load(state.rank, 1);
        start(*operation, sg4::Engine::get_clock());
        while (!advance(*operation)) block(state);
        state.fabric->add_load(state.rank, -1);
        finish(*operation, sg4::Engine::get_clock());
      }
      if (std::exchange(state.is_awaited, false)) state.progress->release();
    }
  }

  /// Until some message has arrived or left.
  static void block(const State& state) {
    std::vector<sg4::CommPtr> comms;
    for (const auto* transits : state.outstanding)
      for (const Transit& transit : *transits) comms.push_back(transit.comm);
    sg4::Comm::wait_any(comms);
  }

  std::shared_ptr<State> state_;
};

/// The communicator with the engine that drives it.
class StreamedCommunicator final : public Communicator {
 public:
  StreamedCommunicator(std::shared_ptr<Fabric> fabric, StreamMessageSet::Group group, ScheduleChoice choice,
                       Memory& memory, int world_rank)
      : engine_(fabric, world_rank),
        scheduled_(make_scheduled_communicator(
            std::make_unique<StreamTransport>(std::move(fabric), std::move(group), engine_.outstanding()),
            engine_, memory, choice)) {}

  [[nodiscard]] int rank() const override { return scheduled_->rank(); }
  [[nodiscard]] int size() const override { return scheduled_->size(); }
  Pending start(Collective collective, BufferRef buffer, Reduction reduction) override {
    return scheduled_->start(collective, std::move(buffer), reduction);
  }

 private:
  StreamEngine engine_;
  std::unique_ptr<Communicator> scheduled_;
};

}  // namespace

std::unique_ptr<Communicator> make_streamed_communicator(std::shared_ptr<Fabric> fabric, int rank,
                                                         int sequence, std::span<const int> members,
                                                         ScheduleChoice choice, Memory& memory) {
  const auto own = std::find(members.begin(), members.end(), rank) - members.begin();
  StreamMessageSet::Group group{.number = fabric->group_number(sequence, members.front()),
                                .members = {members.begin(), members.end()},
                                .rank = static_cast<int>(own)};
  return std::make_unique<StreamedCommunicator>(std::move(fabric), std::move(group), choice, memory, rank);
}

}  // namespace shardbench::mpi
