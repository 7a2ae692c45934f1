// When a rank's streams get where: at once on a host, later on a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

namespace shardbench {

enum class Stream : std::uint8_t { compute, comm };

/// A moment in a stream's order of work: when the host asked for it, and the mark that tells when the device
/// came there. Where asking and doing are one there is no mark.
struct Instant {
  double issued_s = 0.0;
  std::int64_t mark = -1;
};

class Timeline {
 public:
  Timeline() = default;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  virtual ~Timeline() = default;

  /// The end of the work that the stream has been asked for.
  virtual Instant mark(Stream stream) = 0;
  /// Whether instants are known as soon as they are made.
  [[nodiscard]] virtual bool is_immediate() const = 0;
  /// Waits until the device has passed every mark. Throws what ended its work instead.
  virtual void settle() = 0;
  /// Seconds on the world's clock of an instant that has been settled.
  [[nodiscard]] virtual double seconds(const Instant& instant) const = 0;
  /// Forgets all marks.
  virtual void restart() = 0;

  /// Names what is asked for until the matching `pop`, for profilers; `number` tells its like apart, where it
  /// is not negative. Names nest.
  virtual void push(std::string_view /*name*/, int /*number*/) {}
  virtual void pop() {}
};

/// The host does at once what it is asked for.
class HostTimeline final : public Timeline {
 public:
  explicit HostTimeline(std::function<double()> now) : now_(std::move(now)) {}

  Instant mark(Stream /*stream*/) override { return {.issued_s = now_()}; }
  [[nodiscard]] bool is_immediate() const override { return true; }
  void settle() override {}
  [[nodiscard]] double seconds(const Instant& instant) const override { return instant.issued_s; }
  void restart() override {}

 private:
  std::function<double()> now_;
};

}  // namespace shardbench
