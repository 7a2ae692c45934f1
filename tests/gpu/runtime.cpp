// The device and its timeline on a CUDA runtime that only keeps books, so that what they do with its answers
// shows without a GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "src/device/cuda/cuda_timeline.hpp"
#include "src/errors.hpp"

namespace {

/// What CUDA's own library keeps behind its functions.
struct Books {
  cudaError_t last_error = cudaSuccess;
  cudaError_t count_error = cudaSuccess;
  int driver_version = 13000;
  bool is_full = false;
  int queries_until_ready = 0;
  float now_ms = 0.0F;
  std::vector<float> recorded_ms;  // by event, from 1
};
Books books;

/// As the runtime does: whatever is no success is also the last error.
cudaError_t answer(cudaError_t code) {
  if (code != cudaSuccess) books.last_error = code;
  return code;
}

std::size_t index_of(cudaEvent_t event) { return reinterpret_cast<std::uintptr_t>(event) - 1; }

}  // namespace

extern "C" {
cudaError_t cudaGetLastError() { return std::exchange(books.last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorNotReady ? "not ready" : "failed";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = books.count_error == cudaSuccess ? 2 : 0;
  return answer(books.count_error);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = books.driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "Paper GPU");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int, int) {
  std::strcpy(id, "0000:01:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = reinterpret_cast<cudaStream_t>(&books);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned int) { return cudaSuccess; }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  if (books.is_full) return answer(cudaErrorMemoryAllocation);
  return cudaMallocHost(memory, bytes);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return cudaFreeHost(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t*, std::size_t*) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  books.recorded_ms.push_back(0.0F);
  *event = reinterpret_cast<cudaEvent_t>(books.recorded_ms.size());
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  books.recorded_ms[index_of(event)] = books.now_ms;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) {
  return answer(books.queries_until_ready-- > 0 ? cudaErrorNotReady : cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = books.recorded_ms[index_of(end)] - books.recorded_ms[index_of(begin)];
  return cudaSuccess;
}
}

namespace shardbench::cuda {
namespace {

template <class Error, class Work>
std::string message_of(Work work) {
  try {
    work();
    return "nothing was thrown";
  } catch (const Error& error) {
    return error.what();
  }
}

class Runtime : public testing::Test {
 protected:
  Runtime() { books = Books(); }
};

TEST_F(Runtime, WaitingForAStepLeavesNoErrorToTheNextLaunch) {
  int looks = 0;
  CudaTimeline timeline(
      std::make_shared<CudaDevice>(0), [] { return 1.0; }, [&] { ++looks; });
  timeline.restart();
  const Instant begin = timeline.mark(Stream::compute);
  books.now_ms += 250.0F;
  const Instant end = timeline.mark(Stream::compute);
  books.queries_until_ready = 3;
  timeline.settle();
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(timeline.seconds(begin), 1.0);
  EXPECT_EQ(timeline.seconds(end), 1.25);
}

TEST_F(Runtime, ADriverThatIsTooOldIsNoMissingDevice) {
  EXPECT_EQ(visible_devices(), 2);
  books.count_error = cudaErrorInsufficientDriver;
  books.driver_version = 0;
  EXPECT_EQ(visible_devices(), 0);
  books.driver_version = 12080;
  EXPECT_EQ(
      message_of<RunError>([] { visible_devices(); }),
      "the NVIDIA driver supports CUDA 12.8, but this program was built with CUDA 13.0; install a newer "
      "driver or NVIDIA's cuda-compat, or use --backend mpi");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Runtime, FullMemoryIsTold) {
  CudaDevice device(0);
  books.is_full = true;
  EXPECT_EQ(message_of<std::bad_alloc>([&] { device.allocate(Bytes(100)); }),
            "no 100 bytes are left on Paper GPU 0000:01:00.0; see nvidia-smi for who else uses it, or use a "
            "smaller model or micro-batch");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Runtime, WhatIsWrittenTakesPartsOfTheStagingMemory) {
  CudaDevice device(0);
  std::vector<std::byte> values(20 << 20);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i * 2654435761U >> 24U);
  const auto memory = device.allocate(Bytes(std::ssize(values)));
  device.write(memory.get(), values);
  std::vector<std::byte> found(values.size());
  device.read(found, memory.get());
  EXPECT_TRUE(found == values);
}

}  // namespace
}  // namespace shardbench::cuda
