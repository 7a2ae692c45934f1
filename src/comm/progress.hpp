// Advances pending operations: one queue a communicator, the head of each queue running.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace shardbench {

/// Something that proceeds by being asked to. Only its engine calls start and advance.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  [[nodiscard]] bool started() const { return started_; }
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
  friend class Engine;
  bool started_ = false;
  double start_s_ = 0.0;
  double end_s_ = 0.0;
  std::atomic<bool> done_ = false;
};

/// Carries out each queue's operations one after the other, in the order they were submitted.
class Engine {
 public:
  using QueueId = std::size_t;

  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  virtual QueueId add_queue() = 0;
  virtual void submit(QueueId queue, std::shared_ptr<Operation> operation) = 0;
  /// Returns once it is done; throws what ended the engine instead.
  virtual void wait(const Operation& operation) = 0;

 protected:
  static void start(Operation& operation, double now) {
    operation.started_ = true;
    operation.start_s_ = now;
    operation.start();
  }
  static bool advance(Operation& operation) { return operation.advance(); }
  static void finish(Operation& operation, double now) {
    operation.end_s_ = now;
    // Last, so that a waiter that sees it finds the times set.
    operation.done_.store(true, std::memory_order_release);
  }
};

/// Operations advance whenever somebody asks: a waiter, compute between its tiles, or a progress thread. The
/// head of each queue is the one that runs.
class ProgressEngine final : public Engine {
 public:
  /// `now` is the world's clock; `pause(attempt)` lets time pass in a wait, politely (attempt counts from 0).
  struct Hooks {
    std::function<double()> now;
    std::function<void(int)> pause;
  };

  explicit ProgressEngine(Hooks hooks) : hooks_(std::move(hooks)) {}

  QueueId add_queue() override;
  /// Starts the operation at once if it is the head.
  void submit(QueueId queue, std::shared_ptr<Operation> operation) override;
  /// Throws what fail() was given.
  void wait(const Operation& operation) override;
  /// One round over all queues.
  void advance();
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
