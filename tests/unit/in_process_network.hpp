// All ranks of a group in one process: messages are handed over in memory, and a waiting rank drives the
// others.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "src/comm/scheduled_communicator.hpp"
#include "src/device/buffer.hpp"
#include "tests/unit/support.hpp"

namespace shardbench::test {

/// Messages of one communicator. As MPI is allowed to, it reads a send buffer as late as possible (when the
/// receiver takes the message) and scribbles into a receive buffer as soon as it is posted.
class Network {
 public:
  struct Message {
    std::span<const std::byte> bytes;
    bool taken = false;
  };
  using Route = std::tuple<int, int, int>;  ///< from, to, tag

  std::deque<std::shared_ptr<Message>>& queue(const Route& route) { return queues_[route]; }
  void count(int from, std::size_t bytes) { sent_[from] += static_cast<std::int64_t>(bytes); }

  /// Bytes that a rank has sent so far.
  [[nodiscard]] Bytes sent(int from) const {
    const auto found = sent_.find(from);
    return Bytes(found == sent_.end() ? 0 : found->second);
  }
  /// Messages that nobody has received.
  [[nodiscard]] std::size_t undelivered() const {
    std::size_t messages = 0;
    for (const auto& [route, queue] : queues_) messages += queue.size();
    return messages;
  }

 private:
  std::map<Route, std::deque<std::shared_ptr<Message>>> queues_;
  std::map<int, std::int64_t> sent_;
};

class InProcessMessages final : public MessageSet {
 public:
  InProcessMessages(Network& network, int rank) : network_(network), rank_(rank) {}

  void send(int peer, int tag, std::span<const std::byte> message) override {
    sends_.push_back(std::make_shared<Network::Message>(Network::Message{message}));
    network_.queue({rank_, peer, tag}).push_back(sends_.back());
    network_.count(rank_, message.size());
  }
  void receive(int peer, int tag, std::span<std::byte> message) override {
    std::fill(message.begin(), message.end(), std::byte{0x7F});
    receives_.push_back({{peer, rank_, tag}, message});
  }
  bool test() override {
    std::erase_if(receives_, [this](const Receive& receive) { return take(receive); });
    std::erase_if(sends_, [](const auto& send) { return send->taken; });
    return receives_.empty() && sends_.empty();
  }

 private:
  struct Receive {
    Network::Route route;
    std::span<std::byte> into;
  };

  bool take(const Receive& receive) {
    auto& queue = network_.queue(receive.route);
    if (queue.empty()) return false;
    Network::Message& message = *queue.front();
    if (message.bytes.size() != receive.into.size())
      throw std::logic_error("a receive of " + std::to_string(receive.into.size()) + " bytes met a send of " +
                             std::to_string(message.bytes.size()));
    std::copy(message.bytes.begin(), message.bytes.end(), receive.into.begin());
    message.taken = true;
    queue.pop_front();
    return true;
  }

  Network& network_;
  int rank_;
  std::vector<std::shared_ptr<Network::Message>> sends_;
  std::vector<Receive> receives_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(Network& network, int rank, int size) : network_(network), rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  std::unique_ptr<MessageSet> message_set() override {
    return std::make_unique<InProcessMessages>(network_, rank_);
  }

 private:
  Network& network_;
  int rank_;
  int size_;
};

/// Ranks with an engine each and `communicators` communicators over all of them.
class Cluster {
 public:
  Cluster(int ranks, Algorithm algorithm, std::size_t communicators = 1)
      : Cluster(ranks, ScheduleChoice{.algorithm = algorithm, .node_size = 1}, communicators) {}
  Cluster(int ranks, ScheduleChoice choice, std::size_t communicators = 1) {
    for (std::size_t c = 0; c < communicators; ++c) networks_.push_back(std::make_unique<Network>());
    for (int rank = 0; rank < ranks; ++rank) {
      Rank& r = *ranks_.emplace_back(std::make_unique<Rank>(
          ProgressEngine::Hooks{.now = [this] { return static_cast<double>(++ticks_); },
                                .pause = [this](int attempt) { drive(attempt); }}));
      for (const auto& network : networks_)
        r.communicators.push_back(make_scheduled_communicator(
            std::make_unique<InProcessTransport>(*network, rank, ranks), r.engine, r.memory, choice));
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  Network& network(std::size_t communicator = 0) { return *networks_[communicator]; }
  Memory& memory(int rank) { return ranks_[static_cast<std::size_t>(rank)]->memory; }
  Communicator& communicator(int rank, std::size_t communicator = 0) {
    return *ranks_[static_cast<std::size_t>(rank)]->communicators[communicator];
  }

 private:
  struct Rank {
    explicit Rank(ProgressEngine::Hooks hooks) : engine(std::move(hooks)) {}
    Memory memory;
    ProgressEngine engine;
    std::vector<std::unique_ptr<Communicator>> communicators;
  };

  void drive(int attempt) {
    constexpr int patience = 100'000;
    if (attempt > patience) throw std::runtime_error("the ranks wait for each other");
    for (const auto& rank : ranks_) rank->engine.advance();
  }

  std::vector<std::unique_ptr<Network>> networks_;  // outlive the communicators
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::int64_t ticks_ = 0;
};

}  // namespace shardbench::test
