#include "src/comm/nccl/nccl_communicator.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "src/errors.hpp"

namespace shardbench::nccl {
namespace {

void check(ncclResult_t code, const char* call, const char* file, int line) {
  if (code == ncclSuccess) return;
  throw RunError(fmt::format("{} failed at {}:{}: {}: {}", call, file, line, ncclGetErrorString(code),
                             ncclGetLastError(nullptr)));
}

#define SHARDBENCH_NCCL(call) check((call), #call, __FILE__, __LINE__)

ncclDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32; }

ncclRedOp_t operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return ncclSum;
    case Reduction::product:
      return ncclProd;
    case Reduction::minimum:
      return ncclMin;
    case Reduction::maximum:
      return ncclMax;
    case Reduction::average:
      return ncclAvg;
  }
  return ncclSum;
}

}  // namespace

/// NCCL's communicator of some ranks. While an exception unwinds, others may never come to a collective that
/// this rank is in: then it is aborted, which does not wait for them.
class NcclWorld::Group {
 public:
  explicit Group(ncclComm_t comm) : comm_(comm), exceptions_(std::uncaught_exceptions()) {
    SHARDBENCH_NCCL(ncclCommUserRank(comm, &rank_));
    SHARDBENCH_NCCL(ncclCommCount(comm, &size_));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    static_cast<void>(std::uncaught_exceptions() > exceptions_ ? ncclCommAbort(comm_)
                                                               : ncclCommDestroy(comm_));
  }

  [[nodiscard]] ncclComm_t get() const { return comm_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  void look_after() const {
    ncclResult_t state = ncclSuccess;
    SHARDBENCH_NCCL(ncclCommGetAsyncError(comm_, &state));
    if (state == ncclSuccess || state == ncclInProgress) return;
    throw RunError(
        fmt::format("NCCL gave up a collective: {}: {}", ncclGetErrorString(state), ncclGetLastError(comm_)));
  }

 private:
  ncclComm_t comm_;
  int exceptions_;
  int rank_ = 0;
  int size_ = 1;
};

namespace {

/// On its stream; the host knows when it was asked for only.
class NcclPending final : public PendingCollective {
 public:
  struct Times {
    Instant began;
    Instant ended;
  };
  NcclPending(BufferRef buffer, Times times, const cuda::CudaTimeline& timeline, cudaStream_t compute)
      : buffer_(std::move(buffer)), times_(times), timeline_(timeline), compute_(compute) {}

  void wait() override {
    if (std::exchange(waited_for_, true)) return;
    timeline_.wait(compute_, times_.ended);
  }
  [[nodiscard]] Instant began() const override { return times_.began; }
  [[nodiscard]] Instant ended() const override { return times_.ended; }
  [[nodiscard]] Algorithm algorithm() const override { return Algorithm::native; }
  [[nodiscard]] std::optional<Bytes> sent() const override { return std::nullopt; }

 private:
  BufferRef buffer_;  ///< freed on the compute stream, which has waited by then
  Times times_;
  const cuda::CudaTimeline& timeline_;
  cudaStream_t compute_;
  bool waited_for_ = false;
};

}  // namespace

std::string library_version() {
  int version = 0;
  SHARDBENCH_NCCL(ncclGetVersion(&version));
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclWorld::NcclWorld(ControlChannel& control, std::shared_ptr<cuda::CudaDevice> device)
    : rank_(control.rank()), device_(std::move(device)) {
  ncclUniqueId id{};
  if (rank_ == 0) SHARDBENCH_NCCL(ncclGetUniqueId(&id));
  const auto own = as_message(std::span<const ncclUniqueId>(&id, 1));
  id = from_message<ncclUniqueId>(broadcast(control, {own.begin(), own.end()})).front();
  ncclComm_t comm = nullptr;
  SHARDBENCH_NCCL(ncclCommInitRank(&comm, control.size(), id, rank_));
  everyone_ = std::make_shared<Group>(comm);
  groups_.push_back(everyone_);
}

NcclWorld::~NcclWorld() = default;

void NcclWorld::look_after() const {
  for (const std::weak_ptr<Group>& weak : groups_)
    if (const std::shared_ptr<Group> group = weak.lock()) group->look_after();
}

std::unique_ptr<Communicator> NcclWorld::communicator(std::span<const int> members,
                                                      cuda::CudaTimeline& timeline) {
  class NcclCommunicator final : public Communicator {
   public:
    NcclCommunicator(std::shared_ptr<Group> group, std::shared_ptr<cuda::CudaDevice> device,
                     cuda::CudaTimeline& group_timeline)
        : group_(std::move(group)),
          device_(std::move(device)),
          timeline_(group_timeline),
          stream_(cuda::CudaDevice::make_comm_stream()) {}

    [[nodiscard]] int rank() const override { return group_->rank(); }
    [[nodiscard]] int size() const override { return group_->size(); }

    Pending start(Collective collective, BufferRef buffer, Reduction reduction) override {
      SHARDBENCH_ASSERT(collective == Collective::all_reduce || buffer->elements().count() % size() == 0);
      timeline_.wait(stream_.get(), timeline_.mark(Stream::compute));
      const Instant began = timeline_.mark(stream_.get());
      issue(collective, *buffer, reduction);
      const Instant ended = timeline_.mark(stream_.get());
      return std::make_unique<NcclPending>(std::move(buffer), NcclPending::Times{began, ended}, timeline_,
                                           device_->compute());
    }

   private:
    void issue(Collective collective, const Buffer& buffer, Reduction reduction) const {
      const auto all = static_cast<std::size_t>(buffer.elements().count());
      const std::size_t block = all / static_cast<std::size_t>(size());
      const ncclDataType_t type = type_of(buffer.dtype());
      std::byte* const data = buffer.data();
      std::byte* const own = data + rank() * buffer.bytes().count() / size();
      switch (collective) {
        case Collective::all_reduce:
          SHARDBENCH_NCCL(
              ncclAllReduce(data, data, all, type, operation_of(reduction), group_->get(), stream_.get()));
          break;
        case Collective::reduce_scatter:
          SHARDBENCH_NCCL(ncclReduceScatter(data, own, block, type, operation_of(reduction), group_->get(),
                                            stream_.get()));
          break;
        case Collective::all_gather:
          SHARDBENCH_NCCL(ncclAllGather(own, data, block, type, group_->get(), stream_.get()));
          break;
      }
    }

    std::shared_ptr<Group> group_;
    std::shared_ptr<cuda::CudaDevice> device_;
    cuda::CudaTimeline& timeline_;
    cuda::StreamHandle stream_;
  };

  const auto key = std::find(members.begin(), members.end(), rank_) - members.begin();
  ncclComm_t comm = nullptr;
  SHARDBENCH_NCCL(ncclCommSplit(everyone_->get(), members.front(), static_cast<int>(key), &comm, nullptr));
  auto group = std::make_shared<Group>(comm);
  groups_.push_back(group);
  return std::make_unique<NcclCommunicator>(std::move(group), device_, timeline);
}

}  // namespace shardbench::nccl
