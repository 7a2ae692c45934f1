#include "src/comm/vote.hpp"

#include <span>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {
namespace {

class VoteOperation final : public Operation {
 public:
  VoteOperation(std::shared_ptr<Transport> transport, std::uint32_t ballot)
      : transport_(std::move(transport)), messages_(transport_->message_set()), known_(ballot) {}

  [[nodiscard]] std::uint32_t outcome() const { return known_; }
  [[nodiscard]] bool contends() const override { return false; }  // four bytes

 private:
  void start() override { exchange(); }

  bool advance() override {
    while (distance_ < transport_->size()) {
      if (!messages_->test()) return false;
      known_ |= heard_;
      distance_ *= 2;
      ++round_;
      exchange();
    }
    return true;
  }

  /// After round k a rank knows the ballots of the 2^(k+1) - 1 ranks before it, and its own.
  void exchange() {
    const int n = transport_->size();
    if (distance_ >= n) return;
    const int rank = transport_->rank();
    told_ = known_;
    messages_->receive((rank - distance_ + n) % n, round_, std::as_writable_bytes(std::span(&heard_, 1)));
    messages_->send((rank + distance_) % n, round_, std::as_bytes(std::span(&told_, 1)));
  }

  std::shared_ptr<Transport> transport_;
  std::unique_ptr<MessageSet> messages_;
  std::uint32_t known_;
  std::uint32_t told_ = 0;
  std::uint32_t heard_ = 0;
  int distance_ = 1;
  int round_ = 0;
};

class RankVote final : public Vote {
 public:
  RankVote(std::unique_ptr<Transport> transport, ProgressEngine& engine)
      : transport_(std::move(transport)), engine_(engine), queue_(engine.add_queue()) {}

  void cast(std::uint32_t ballot) override {
    SHARDBENCH_ASSERT(operation_ == nullptr);
    operation_ = std::make_shared<VoteOperation>(transport_, ballot);
    engine_.submit(queue_, operation_);
  }

  std::uint32_t outcome() override {
    SHARDBENCH_ASSERT(operation_ != nullptr);
    engine_.wait(*operation_);
    return std::exchange(operation_, nullptr)->outcome();
  }

 private:
  std::shared_ptr<Transport> transport_;
  ProgressEngine& engine_;
  ProgressEngine::QueueId queue_;
  std::shared_ptr<VoteOperation> operation_;
};

}  // namespace

std::unique_ptr<Vote> make_vote(std::unique_ptr<Transport> transport, ProgressEngine& engine) {
  return std::make_unique<RankVote>(std::move(transport), engine);
}

}  // namespace shardbench
