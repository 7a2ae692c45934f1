// What a rank is doing, so that another of its threads can tell when it stands still, and where.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace shardbench {

/// Whether standing still for long is a sign that something is wrong.
enum class Patience { limited, unlimited };

/// Where in a run a rank is. The texts are literals: nothing here owns them.
struct Position {
  std::string_view operation = "starting";  ///< e.g. "computing", "waiting for all_gather"
  std::string_view phase = {};              ///< forward, backward, optimizer; empty outside a step
  std::string_view axis = {};               ///< of the collective waited for; empty for others
  int group_size = 0;                       ///< likewise
  int step = -1;                            ///< -1 outside a step
  int layer = -1;                           ///< -1 none
  Patience patience = Patience::limited;
};

/// Written by the rank's main thread, read by its supervisor.
class Activity {
 public:
  Activity() = default;
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;
  ~Activity() = default;

  void enter(const Position& position) {
    {
      const std::scoped_lock lock(mutex_);  // contended once a second at most
      position_ = position;
    }
    progressed();
  }
  /// Something outside a step.
  void enter(std::string_view operation) { enter(Position{.operation = operation}); }
  /// The same operation goes on, but not in vain: a tile computed, a message arrived.
  void progressed() { changes_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] Position position() const {
    const std::scoped_lock lock(mutex_);
    return position_;
  }
  /// Grows whenever the rank gets on.
  [[nodiscard]] std::uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;
  Position position_;
  std::atomic<std::uint64_t> changes_ = 0;
};

}  // namespace shardbench
