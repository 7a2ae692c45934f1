// The MPI library's own non-blocking collectives: the baseline that our schedules are compared with.
#include <utility>

#include "kernels/bodies/elementwise.hpp"
#include "src/comm/mpi/mpi_platform.hpp"
#include "src/comm/scheduled_communicator.hpp"

namespace shardbench::mpi {
namespace {

/// MPI has no bfloat16: an opaque two-byte type and reductions for it.
class BFloat16Operations {
 public:
  BFloat16Operations() {
    SHARDBENCH_MPI(MPI_Type_contiguous(2, MPI_BYTE, &type_));
    SHARDBENCH_MPI(MPI_Type_commit(&type_));
    SHARDBENCH_MPI(MPI_Op_create(&add, 1, &sum_));
    SHARDBENCH_MPI(MPI_Op_create(&largest, 1, &maximum_));
  }
  BFloat16Operations(const BFloat16Operations&) = delete;
  BFloat16Operations& operator=(const BFloat16Operations&) = delete;
  ~BFloat16Operations() {
    MPI_Op_free(&maximum_);
    MPI_Op_free(&sum_);
    MPI_Type_free(&type_);
  }
  [[nodiscard]] MPI_Datatype type() const { return type_; }
  [[nodiscard]] MPI_Op op(Reduction reduction) const { return reduction == Reduction::sum ? sum_ : maximum_; }

 private:
  // NOLINTNEXTLINE(readability-non-const-parameter): the signature is MPI_User_function's
  static void add(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
    for (int i = 0; i < *count; ++i)
      bodies::add(i, static_cast<bodies::BFloat16*>(in_out), static_cast<const bodies::BFloat16*>(in));
  }
  // NOLINTNEXTLINE(readability-non-const-parameter): the signature is MPI_User_function's
  static void largest(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
    for (int i = 0; i < *count; ++i)
      bodies::maximum(i, static_cast<bodies::BFloat16*>(in_out), static_cast<const bodies::BFloat16*>(in));
  }

  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  MPI_Op sum_ = MPI_OP_NULL;
  MPI_Op maximum_ = MPI_OP_NULL;
};

class NativeOperation final : public Operation {
 public:
  NativeOperation(Collective collective, BufferRef buffer, Reduction reduction, MPI_Comm comm,
                  const BFloat16Operations& bf16, int ranks)
      : collective_(collective), buffer_(std::move(buffer)), comm_(comm), ranks_(ranks) {
    const bool is_bf16 = buffer_->dtype() == DType::bf16;
    type_ = is_bf16 ? bf16.type() : MPI_FLOAT;
    op_ = is_bf16 ? bf16.op(reduction) : reduction == Reduction::sum ? MPI_SUM : MPI_MAX;
    if (collective == Collective::reduce_scatter) {
      // In place, MPI puts the result at the buffer's start; ours belongs in this rank's block.
      SHARDBENCH_MPI(MPI_Comm_rank(comm_, &rank_));
    }
  }

 private:
  void start() override {
    const MPI_Count all = buffer_->elements().count();
    const MPI_Count block = all / ranks_;
    std::byte* data = buffer_->data();
    switch (collective_) {
      case Collective::all_reduce:
        SHARDBENCH_MPI(MPI_Iallreduce_c(MPI_IN_PLACE, data, all, type_, op_, comm_, &request_));
        break;
      case Collective::reduce_scatter:
        SHARDBENCH_MPI(MPI_Ireduce_scatter_block_c(MPI_IN_PLACE, data, block, type_, op_, comm_, &request_));
        break;
      case Collective::all_gather:
        SHARDBENCH_MPI(
            MPI_Iallgather_c(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, block, type_, comm_, &request_));
        break;
    }
  }

  bool advance() override {
    int done = 0;
    SHARDBENCH_MPI(MPI_Test(&request_, &done, MPI_STATUS_IGNORE));
    if (done != 0 && collective_ == Collective::reduce_scatter) {
      const std::int64_t block = buffer_->bytes().count() / ranks_;
      if (rank_ > 0) std::copy_n(buffer_->data(), block, buffer_->data() + rank_ * block);
    }
    return done != 0;
  }

  Collective collective_;
  BufferRef buffer_;
  MPI_Comm comm_;
  int ranks_;
  int rank_ = 0;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  MPI_Op op_ = MPI_OP_NULL;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

class NativeCommunicator final : public Communicator {
 public:
  NativeCommunicator(CommHandle comm, ProgressEngine& engine)
      : comm_(std::move(comm)),
        engine_(engine),
        queue_(engine.add_queue()),
        rank_(comm_.rank()),
        size_(comm_.size()) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  Pending start(Collective collective, BufferRef buffer, Reduction reduction) override {
    SHARDBENCH_ASSERT(collective == Collective::all_reduce || buffer->elements().count() % size_ == 0);
    auto operation = std::make_shared<NativeOperation>(collective, std::move(buffer), reduction, comm_.get(),
                                                       bf16_, size_);
    engine_.submit(queue_, operation);
    return std::make_unique<EnginePending>(
        engine_, std::move(operation),
        EnginePending::Facts{.algorithm = Algorithm::native, .sent = std::nullopt});
  }

 private:
  CommHandle comm_;
  BFloat16Operations bf16_;
  ProgressEngine& engine_;
  ProgressEngine::QueueId queue_;
  int rank_;
  int size_;
};

}  // namespace

std::unique_ptr<Communicator> make_native_communicator(CommHandle comm, ProgressEngine& engine) {
  return std::make_unique<NativeCommunicator>(std::move(comm), engine);
}

}  // namespace shardbench::mpi
