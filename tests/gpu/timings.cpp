// What check.sh asks of a GPU beside runs: what marks cost, and how fast NCCL moves memory on one device. One
// line of JSON.
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "src/device/cuda/cuda_timeline.hpp"
#include "src/errors.hpp"

namespace shardbench::test {
namespace {

constexpr int repetitions = 21;
constexpr int marks = 1000;
constexpr std::int64_t megabytes = 512;  // far more than the second-level cache holds

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void check(ncclResult_t code) {
  if (code != ncclSuccess) throw RunError(fmt::format("NCCL: {}", ncclGetErrorString(code)));
}

/// Seconds that a mark costs the host and the stream.
struct MarkCost {
  double host_s;
  double stream_s;
};

MarkCost cost_of_a_mark(cuda::CudaTimeline& timeline) {
  std::vector<double> host;
  std::vector<double> stream;
  for (int i = 0; i < repetitions; ++i) {
    timeline.restart();
    const Instant first = timeline.mark(Stream::compute);
    Instant last = first;
    for (int mark = 0; mark < marks; ++mark) last = timeline.mark(Stream::compute);
    timeline.settle();
    host.push_back((last.issued_s - first.issued_s) / marks);
    stream.push_back((timeline.seconds(last) - timeline.seconds(first)) / marks);
  }
  return {median(host), median(stream)};
}

/// Bytes a second that `collective` delivers.
template <class Collective>
double bandwidth(cuda::CudaTimeline& timeline, Collective collective) {
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    timeline.restart();
    const Instant begin = timeline.mark(Stream::compute);
    collective();
    const Instant end = timeline.mark(Stream::compute);
    timeline.settle();
    seconds.push_back(timeline.seconds(end) - timeline.seconds(begin));
  }
  return 1e6 * static_cast<double>(megabytes) / median(seconds);
}

void measure() {
  const auto device = std::make_shared<cuda::CudaDevice>(0);
  cuda::CudaTimeline timeline(device, now, [] {});
  const MarkCost mark = cost_of_a_mark(timeline);

  const auto from = device->allocate(Bytes(megabytes * 1'000'000));
  const auto to = device->allocate(Bytes(megabytes * 1'000'000));
  constexpr std::size_t floats = megabytes * 1'000'000 / sizeof(float);
  ncclComm_t comm = nullptr;
  const int ordinal = 0;
  check(ncclCommInitAll(&comm, 1, &ordinal));
  // Not in place: with one rank NCCL then really copies.
  const double gather = bandwidth(timeline, [&] {
    check(ncclAllGather(from.get(), to.get(), floats, ncclFloat32, comm, device->compute()));
  });
  const double scatter = bandwidth(timeline, [&] {
    check(ncclReduceScatter(from.get(), to.get(), floats, ncclFloat32, ncclSum, comm, device->compute()));
  });
  check(ncclCommDestroy(comm));
  fmt::print(R"({{"device": "{}", "mark_host_s": {:.4g}, "mark_stream_s": {:.4g}, )", device->name(),
             mark.host_s, mark.stream_s);
  fmt::print(R"("all_gather_bytes_per_s": {:.4g}, "reduce_scatter_bytes_per_s": {:.4g}}})"
             "\n",
             gather, scatter);
}

}  // namespace
}  // namespace shardbench::test

int main() {
  try {
    shardbench::test::measure();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_timings: {}\n", error.what());
    return 1;
  }
}
