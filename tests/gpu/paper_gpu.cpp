// A GPU on paper: CUDA's runtime, cuBLASLt and NCCL as far as shardbench calls them. Nothing is computed and
// memory is the host's, but whatever is asked for is looked at: launches, products' shapes, addresses, and
// whether a collective's memory is touched by work that does not wait for it. What a GPU would refuse, or do
// wrong only sometimes, ends the process with a line.
//
// A shared library to be preloaded (LD_PRELOAD) into programs of the preset `cuda`. PAPER_GPU_GROUPS has the
// sizes of the communicators that are split off, a digit each, in order (default: as large as what they are
// split from). With PAPER_GPU_LOST the device never gets ready and NCCL reports a lost peer.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "paper GPU: %s\n", what.c_str());
  std::_Exit(99);
}
void require(bool holds, const char* what) {
  if (!holds) refuse(what);
}

// What is known to have come before: operations of each stream, counted.
using Clock = std::vector<long>;

struct Group {
  int rank;
  int size;
};

/// A collective, until its memory is given back.
struct Traffic {
  const char* begin;
  const char* end;
  std::size_t stream;
  long operation;
};

/// What CUDA's libraries keep behind their functions.
class Books {
 public:
  ~Books() {
    if (kernels > 0)
      std::fprintf(stderr, "paper GPU: %ld kernels, %ld products, %ld collectives, %zu allocations left\n",
                   kernels, products, collectives, allocations_.size());
  }

  cudaStream_t make_stream() {
    for (Clock& clock : streams_) clock.push_back(0);
    streams_.emplace_back(streams_.size() + 1);
    return reinterpret_cast<cudaStream_t>(streams_.size());
  }
  Clock& clock(cudaStream_t stream) { return streams_[index_of(stream)]; }
  long pass(cudaStream_t stream) {
    looks_until_ready = 2;
    return ++clock(stream)[index_of(stream)];
  }

  cudaEvent_t make_event() {
    events_.emplace_back();
    return reinterpret_cast<cudaEvent_t>(events_.size());
  }
  Clock& event(cudaEvent_t event) { return events_[reinterpret_cast<std::uintptr_t>(event) - 1]; }
  const Clock& recorded(cudaEvent_t e) {
    require(!event(e).empty(), "an event is used before it is recorded");
    return event(e);
  }

  void allocated(const void* begin, std::size_t bytes) {
    allocations_[static_cast<const char*>(begin)] = bytes;
  }
  std::size_t freed(void* begin, cudaStream_t stream) {
    const auto allocation = allocations_.find(static_cast<char*>(begin));
    require(allocation != allocations_.end(), "what is freed was not allocated");
    const std::size_t bytes = allocation->second;
    touch(begin, bytes, stream);
    std::erase_if(traffic_, [&](const Traffic& t) { return overlaps(t, begin, bytes); });
    allocations_.erase(allocation);
    return bytes;
  }
  /// The stream reads or writes these bytes, or gives them back.
  void touch(const void* begin, std::size_t bytes, cudaStream_t stream) {
    require_allocated(begin, bytes);
    for (const Traffic& t : traffic_)
      require(t.stream == index_of(stream) || !overlaps(t, begin, bytes) ||
                  clock(stream)[t.stream] >= t.operation,
              "a collective's memory is used by work that does not wait for it");
  }
  void collective(const void* begin, std::size_t bytes, cudaStream_t stream) {
    require_allocated(begin, bytes);
    // All of it but the mark that the collective itself waits for.
    require(clock(stream)[0] + 1 >= streams_[0][0], "a collective does not wait for the compute before it");
    ++collectives;
    const auto* first = static_cast<const char*>(begin);
    traffic_.push_back({first, first + bytes, index_of(stream), pass(stream)});
  }

  cudaError_t last_error = cudaSuccess;
  int looks_until_ready = 0;
  std::map<const void*, int> shared_bytes;  ///< that a kernel may ask for beyond the default
  std::size_t splits = 0;
  long kernels = 0;
  long products = 0;
  long collectives = 0;

 private:
  static std::size_t index_of(cudaStream_t stream) {
    require(stream != nullptr, "the default stream is used, which waits for others");
    return reinterpret_cast<std::uintptr_t>(stream) - 1;
  }
  static bool overlaps(const Traffic& t, const void* begin, std::size_t bytes) {
    const auto* first = static_cast<const char*>(begin);
    return first < t.end && t.begin < first + bytes;
  }
  void require_allocated(const void* begin, std::size_t bytes) {
    const auto* first = static_cast<const char*>(begin);
    const auto after = allocations_.upper_bound(first);
    require(after != allocations_.begin(), "an address is not the device's");
    const auto& [start, size] = *std::prev(after);
    require(first + bytes <= start + size, "a range reaches beyond its allocation");
  }

  std::vector<Clock> streams_;
  std::vector<Clock> events_;
  std::map<const char*, std::size_t> allocations_;
  std::vector<Traffic> traffic_;
};

Books& books() {
  static Books books;  // a C interface has nowhere else to keep it
  return books;
}

bool is_lost() { return std::getenv("PAPER_GPU_LOST") != nullptr; }

struct Layout {
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t stride;
  std::uint32_t type;
  std::int32_t batch;
  std::int64_t batch_stride;

  explicit Layout(cublasLtMatrixLayout_t layout) {
    const auto get = [&](cublasLtMatrixLayoutAttribute_t attribute, auto& value) {
      std::size_t written = 0;
      cublasLtMatrixLayoutGetAttribute(layout, attribute, &value, sizeof value, &written);
    };
    get(CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
    get(CUBLASLT_MATRIX_LAYOUT_COLS, columns);
    get(CUBLASLT_MATRIX_LAYOUT_LD, stride);
    get(CUBLASLT_MATRIX_LAYOUT_TYPE, type);
    get(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch);
    get(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
    require(rows > 0 && columns > 0 && batch > 0, "a product has an empty matrix");
    require(stride >= static_cast<std::int64_t>(rows), "a leading dimension is shorter than a column");
  }
  [[nodiscard]] std::size_t bytes() const {
    const auto last = (batch - 1) * batch_stride + static_cast<std::int64_t>(columns - 1) * stride;
    return (static_cast<std::size_t>(last) + rows) * (type == CUDA_R_16BF ? 2 : 4);
  }
};

std::size_t size_of(ncclDataType_t type) { return type == ncclBfloat16 ? 2 : 4; }
Group& group_of(ncclComm_t comm) { return *reinterpret_cast<Group*>(comm); }

/// `own` is a rank's block of `whole`.
ncclResult_t blocks(const void* own, const void* whole, std::size_t bytes, ncclComm_t comm,
                    cudaStream_t stream) {
  const auto rank = static_cast<std::size_t>(group_of(comm).rank);
  require(own == static_cast<const char*>(whole) + rank * bytes, "a collective is not in place");
  books().collective(whole, bytes * static_cast<std::size_t>(group_of(comm).size), stream);
  return ncclSuccess;
}

}  // namespace

extern "C" {
cudaError_t cudaGetLastError() { return std::exchange(books().last_error, cudaSuccess); }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 8;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "Paper GPU");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int ordinal) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02d:00.0", ordinal);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  require(flags == cudaStreamNonBlocking, "a stream waits for the default stream");
  *stream = books().make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const Clock& before = books().recorded(event);
  Clock& clock = books().clock(stream);
  for (std::size_t i = 0; i < before.size(); ++i) clock[i] = std::max(clock[i], before[i]);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  constexpr std::size_t alignment = 256;
  *memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  std::memset(*memory, 0, bytes);
  books().allocated(*memory, bytes);
  books().pass(stream);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  books().freed(memory, stream);
  books().pass(stream);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  books().touch(kind == cudaMemcpyHostToDevice ? to : from, bytes, stream);
  books().pass(stream);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  books().touch(to, bytes, stream);
  books().pass(stream);
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t*, std::size_t*) { return cudaSuccess; }

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = books().make_event();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  books().pass(stream);
  books().event(event) = books().clock(stream);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  books().recorded(event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  books().recorded(event);
  if (!is_lost() && books().looks_until_ready-- <= 0) return cudaSuccess;
  return books().last_error = cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  // A microsecond an operation.
  const Clock& first = books().recorded(begin);
  const Clock& last = books().recorded(end);
  *milliseconds = 1e-3F * static_cast<float>(last[0] - first[0]);
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value) {
  books().shared_bytes[function] = value;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, std::size_t shared_bytes,
                               cudaStream_t stream) {
  // CUDA's programming guide, technical specifications of compute capability 9.0.
  constexpr unsigned int widest = 2147483647U;
  constexpr unsigned int highest = 65535U;
  constexpr unsigned int most_threads = 1024U;
  constexpr int default_shared = 48 << 10;
  constexpr int most_shared = 227 << 10;
  require(grid.x > 0 && grid.x <= widest && grid.y > 0 && grid.y <= highest && grid.z == 1,
          "a grid is empty or too large");
  require(block.x > 0 && block.x * block.y * block.z <= most_threads, "a block is empty or too large");
  const auto asked = books().shared_bytes.find(kernel);
  const int allowed = asked == books().shared_bytes.end() ? default_shared : asked->second;
  require(shared_bytes <= static_cast<std::size_t>(std::min(allowed, most_shared)), "too much shared memory");
  ++books().kernels;
  books().pass(stream);
  return cudaSuccess;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&books());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* found) {
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void*, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void*, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const auto is_transposed = [&](cublasLtMatmulDescAttributes_t attribute) {
    std::int32_t operation = CUBLAS_OP_N;
    std::size_t written = 0;
    cublasLtMatmulDescGetAttribute(description, attribute, &operation, sizeof operation, &written);
    return operation == CUBLAS_OP_T;
  };
  const Layout left(a_layout);
  const Layout right(b_layout);
  const Layout result(c_layout);
  const bool left_turned = is_transposed(CUBLASLT_MATMUL_DESC_TRANSA);
  const bool right_turned = is_transposed(CUBLASLT_MATMUL_DESC_TRANSB);
  require((left_turned ? left.columns : left.rows) == result.rows &&
              (right_turned ? right.rows : right.columns) == result.columns &&
              (left_turned ? left.rows : left.columns) == (right_turned ? right.columns : right.rows),
          "a product's shapes do not fit");
  require(left.type == right.type && result.type == CUDA_R_32F && c == d, "a product's types do not fit");
  require(left.batch == result.batch && right.batch == result.batch, "a product's batches do not fit");
  books().touch(a, left.bytes(), stream);
  books().touch(b, right.bytes(), stream);
  books().touch(d, result.bytes(), stream);
  books().touch(workspace, workspace_bytes, stream);
  ++books().products;
  books().pass(stream);
  return CUBLAS_STATUS_SUCCESS;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId, int rank) {
  *comm = reinterpret_cast<ncclComm_t>(new Group{rank, size});
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t whole, int color, int key, ncclComm_t* comm, ncclConfig_t*) {
  const char* const sizes = std::getenv("PAPER_GPU_GROUPS");
  const std::size_t split = books().splits++;
  const int size = sizes == nullptr             ? group_of(whole).size
                   : split < std::strlen(sizes) ? sizes[split] - '0'
                                                : 0;
  require(color >= 0 && key >= 0 && key < size,
          "a communicator is split off that PAPER_GPU_GROUPS does not know");
  *comm = reinterpret_cast<ncclComm_t>(new Group{key, size});
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = group_of(comm).rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* size) {
  *size = group_of(comm).size;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  require(!is_lost(), "a communicator is destroyed whose peers are lost: that would hang");
  delete &group_of(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  delete &group_of(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = is_lost() ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t, cudaStream_t stream) {
  require(from == to, "an all-reduce is not in place");
  books().collective(to, count * size_of(type), stream);
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return blocks(to, from, count * size_of(type), comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return blocks(from, to, count * size_of(type), comm, stream);
}
}
