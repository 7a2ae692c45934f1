#include "src/device/cuda/cuda_timeline.hpp"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "src/errors.hpp"

namespace shardbench::cuda {
namespace {

// The shortest of a few looks; each takes some microseconds, before the step's time begins.
constexpr int looks = 3;

constexpr std::size_t longest_name = 48;  // of a range

EventHandle make_event() {
  cudaEvent_t event = nullptr;
  SHARDBENCH_CUDA(cudaEventCreate(&event));
  return EventHandle(event);
}

}  // namespace

CudaTimeline::CudaTimeline(std::shared_ptr<CudaDevice> device, std::function<double()> now,
                           std::function<void()> look_after)
    : device_(std::move(device)), now_(std::move(now)), look_after_(std::move(look_after)) {}

Instant CudaTimeline::mark(Stream stream) {
  SHARDBENCH_ASSERT(stream == Stream::compute);  // there are several of communication
  return mark(device_->compute());
}

Instant CudaTimeline::mark(cudaStream_t stream) {
  if (marks_ == events_.size()) events_.push_back(make_event());
  const Instant instant{.issued_s = now_(), .mark = static_cast<std::int64_t>(marks_++)};
  SHARDBENCH_CUDA(cudaEventRecord(event(instant), stream));
  return instant;
}

void CudaTimeline::wait(cudaStream_t stream, const Instant& instant) const {
  SHARDBENCH_CUDA(cudaStreamWaitEvent(stream, event(instant)));
}

void CudaTimeline::settle() {
  for (std::size_t i = 0; i < marks_; ++i) {
    cudaError_t code = cudaErrorNotReady;
    while ((code = cudaEventQuery(events_[i].get())) == cudaErrorNotReady) {
      cudaGetLastError();  // "not ready" stays the last error, which the next launch would take for its own
      look_after_();
    }
    SHARDBENCH_CUDA(code);
  }
}

double CudaTimeline::seconds(const Instant& instant) const {
  float milliseconds = 0.0F;
  SHARDBENCH_CUDA(cudaEventElapsedTime(&milliseconds, base_.get(), event(instant)));
  // The two clocks are known to agree to some microseconds only; but nothing happens before it is asked for.
  return std::max(instant.issued_s, base_s_ + 1e-3 * static_cast<double>(milliseconds));
}

void CudaTimeline::restart() {
  marks_ = 0;
  find_base();
}

void CudaTimeline::push(std::string_view name, int number) {
  std::array<char, longest_name> text{};
  const std::size_t room = text.size() - 1;
  if (number < 0) {
    fmt::format_to_n(text.data(), room, "{}", name);
  } else {
    fmt::format_to_n(text.data(), room, "{} {}", name, number);
  }
  nvtxRangePushA(text.data());
}

void CudaTimeline::pop() { nvtxRangePop(); }

void CudaTimeline::find_base() {
  SHARDBENCH_CUDA(cudaStreamSynchronize(device_->compute()));
  double shortest_s = std::numeric_limits<double>::infinity();
  for (int look = 0; look < looks; ++look) {
    EventHandle event = make_event();
    const double before_s = now_();
    SHARDBENCH_CUDA(cudaEventRecord(event.get(), device_->compute()));
    SHARDBENCH_CUDA(cudaEventSynchronize(event.get()));
    const double round_trip_s = now_() - before_s;
    if (round_trip_s >= shortest_s) continue;
    shortest_s = round_trip_s;
    base_s_ = before_s + round_trip_s / 2;
    base_ = std::move(event);
  }
}

}  // namespace shardbench::cuda
