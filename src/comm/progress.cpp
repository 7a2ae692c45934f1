#include "src/comm/progress.hpp"

#include <algorithm>
#include <utility>

namespace shardbench {

ProgressEngine::QueueId ProgressEngine::add_queue() {
  const std::scoped_lock lock(mutex_);
  queues_.emplace_back();
  return queues_.size() - 1;
}

void ProgressEngine::submit(QueueId queue, std::shared_ptr<Operation> operation) {
  const std::scoped_lock lock(mutex_);
  queues_[queue].push_back(std::move(operation));
  if (queues_[queue].size() == 1) advance_queue(queues_[queue]);
}

void ProgressEngine::fail(std::exception_ptr failure) {
  const std::scoped_lock lock(mutex_);
  failure_ = std::move(failure);
}

void ProgressEngine::advance() {
  const std::scoped_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  for (auto& queue : queues_) advance_queue(queue);
}

bool ProgressEngine::collective_under_way() {
  const std::scoped_lock lock(mutex_);
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& queue) {
    return !queue.empty() && queue.front()->started() && queue.front()->contends();
  });
}

void ProgressEngine::advance_queue(std::deque<std::shared_ptr<Operation>>& queue) const {
  while (!queue.empty()) {
    const std::shared_ptr<Operation> head = queue.front();
    if (!head->started()) start(*head, hooks_.now());
    if (!Engine::advance(*head)) return;
    queue.pop_front();
    finish(*head, hooks_.now());
  }
}

void ProgressEngine::wait(const Operation& operation) {
  for (int attempt = 0; !operation.done(); ++attempt) {
    advance();
    if (operation.done()) break;
    hooks_.pause(attempt);
  }
  // A progress thread that is still in advance() holds a reference to the operation; once it has let go, the
  // waiter's is the last, and buffers are released on the waiter's thread.
  const std::scoped_lock lock(mutex_);
}

}  // namespace shardbench
