// Advances pending operations: one queue a communicator, the head of each queue running.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace shardbench {

/// Something that proceeds by being asked to. Only the engine calls start and advance, under its lock.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] double start_s() const { return start_s_; }
  [[nodiscard]] double end_s() const { return end_s_; }
  /// Whether it moves enough data to slow compute down.
  [[nodiscard]] virtual bool contends() const { return true; }

 protected:
  virtual void start() = 0;
  /// Does what can be done now; true when complete.
  virtual bool advance() = 0;

 private:
  friend class ProgressEngine;
  bool started_ = false;
  double start_s_ = 0.0;
  double end_s_ = 0.0;
  std::atomic<bool> done_ = false;
};

class ProgressEngine {
 public:
  /// `now` is the world's clock; `pause(attempt)` lets time pass in a wait, politely (attempt counts from 0).
  struct Hooks {
    std::function<double()> now;
    std::function<void(int)> pause;
  };
  using QueueId = std::size_t;

  explicit ProgressEngine(Hooks hooks) : hooks_(std::move(hooks)) {}

  QueueId add_queue();
  /// Appends to the queue and, if it is the head, starts it at once.
  void submit(QueueId queue, std::shared_ptr<Operation> operation);
  /// One round over all queues.
  void advance();
  /// Throws what fail() was given.
  void wait(const Operation& operation);
  /// Whether some operation that contends has started and is not known to be complete.
  [[nodiscard]] bool collective_under_way();
  /// Called by a progress thread that cannot go on: whoever waits shall hear of it.
  void fail(std::exception_ptr failure);

 private:
  void advance_queue(std::deque<std::shared_ptr<Operation>>& queue) const;

  Hooks hooks_;
  std::mutex mutex_;  // contended only with a progress thread
  std::exception_ptr failure_;
  std::vector<std::deque<std::shared_ptr<Operation>>> queues_;
};

}  // namespace shardbench
