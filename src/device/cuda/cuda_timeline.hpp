// When a GPU's streams got where, by events, on the host's clock.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "src/device/cuda/cuda_device.hpp"
#include "src/device/timeline.hpp"

namespace shardbench::cuda {

/// Marks are events. What the device's clock said at one is told as the time since an event at the step's
/// begin, whose place on the host's clock is found by looking at both (Cristian, 1989); a step is short
/// enough for the two clocks not to drift apart.
class CudaTimeline final : public Timeline {
 public:
  /// `look_after` is called again and again while the host waits: it throws where work cannot end any more.
  CudaTimeline(std::shared_ptr<CudaDevice> device, std::function<double()> now,
               std::function<void()> look_after);

  Instant mark(Stream stream) override;
  /// How far a stream of communication has been asked to go.
  Instant mark(cudaStream_t stream);
  [[nodiscard]] bool is_immediate() const override { return false; }
  void settle() override;
  [[nodiscard]] double seconds(const Instant& instant) const override;
  void restart() override;
  /// NVTX ranges of the calling thread.
  void push(std::string_view name, int number) override;
  void pop() override;

  /// Makes `stream` wait until the device has come to that mark.
  void wait(cudaStream_t stream, const Instant& instant) const;

 private:
  [[nodiscard]] cudaEvent_t event(const Instant& instant) const {
    return events_[static_cast<std::size_t>(instant.mark)].get();
  }
  void find_base();

  std::shared_ptr<CudaDevice> device_;
  std::function<double()> now_;
  std::function<void()> look_after_;
  std::vector<EventHandle> events_;  ///< of this step's marks, then those kept for later steps
  std::size_t marks_ = 0;
  EventHandle base_;
  double base_s_ = 0.0;  ///< when the device passed it, on the host's clock
};

}  // namespace shardbench::cuda
