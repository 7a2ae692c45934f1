// The MPI library's own non-blocking collectives: the baseline that our schedules are compared with.
#include <utility>

#include "kernels/bodies/elementwise.hpp"
#include "src/comm/mpi/mpi_platform.hpp"
#include "src/comm/scheduled_communicator.hpp"

namespace shardbench::mpi {
namespace {

struct Operators {
  MPI_Op sum;
  MPI_Op product;
  MPI_Op minimum;
  MPI_Op maximum;
};

/// MPI has no average: it is a sum, divided when complete.
MPI_Op select(Reduction reduction, const Operators& operators) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::average:
      return operators.sum;
    case Reduction::product:
      return operators.product;
    case Reduction::minimum:
      return operators.minimum;
    case Reduction::maximum:
      return operators.maximum;
  }
  return MPI_OP_NULL;
}

/// MPI has no bfloat16: an opaque two-byte type and reductions for it.
class BFloat16Operations {
 public:
  BFloat16Operations() {
    SHARDBENCH_MPI(MPI_Type_contiguous(2, MPI_BYTE, &type_));
    SHARDBENCH_MPI(MPI_Type_commit(&type_));
    SHARDBENCH_MPI(MPI_Op_create(&combine<bodies::add>, 1, &sum_));
    SHARDBENCH_MPI(MPI_Op_create(&combine<bodies::multiply>, 1, &product_));
    SHARDBENCH_MPI(MPI_Op_create(&combine<bodies::minimum>, 1, &minimum_));
    SHARDBENCH_MPI(MPI_Op_create(&combine<bodies::maximum>, 1, &maximum_));
  }
  BFloat16Operations(const BFloat16Operations&) = delete;
  BFloat16Operations& operator=(const BFloat16Operations&) = delete;
  ~BFloat16Operations() {
    for (MPI_Op* op : {&maximum_, &minimum_, &product_, &sum_}) MPI_Op_free(op);
    MPI_Type_free(&type_);
  }
  [[nodiscard]] MPI_Datatype type() const { return type_; }
  [[nodiscard]] MPI_Op op(Reduction reduction) const {
    return select(reduction, {.sum = sum_, .product = product_, .minimum = minimum_, .maximum = maximum_});
  }

 private:
  using Body = void (*)(std::int64_t, bodies::BFloat16*, const bodies::BFloat16*);

  template <Body body>
  // NOLINTNEXTLINE(readability-non-const-parameter): the signature is MPI_User_function's
  static void combine(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
    for (int i = 0; i < *count; ++i)
      body(i, static_cast<bodies::BFloat16*>(in_out), static_cast<const bodies::BFloat16*>(in));
  }

  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  MPI_Op sum_ = MPI_OP_NULL;
  MPI_Op product_ = MPI_OP_NULL;
  MPI_Op minimum_ = MPI_OP_NULL;
  MPI_Op maximum_ = MPI_OP_NULL;
};

/// What operations in flight need, though the communicator that issued them may be gone.
struct NativeGroup {
  explicit NativeGroup(CommHandle owned) : comm(std::move(owned)) {}
  CommHandle comm;
  BFloat16Operations bf16;
};

class NativeOperation final : public Operation {
 public:
  NativeOperation(Collective collective, BufferRef buffer, Reduction reduction,
                  std::shared_ptr<const NativeGroup> group)
      : collective_(collective),
        buffer_(std::move(buffer)),
        reduction_(reduction),
        group_(std::move(group)),
        comm_(group_->comm.get()),
        ranks_(group_->comm.size()),
        rank_(group_->comm.rank()) {
    const bool is_bf16 = buffer_->dtype() == DType::bf16;
    type_ = is_bf16 ? group_->bf16.type() : MPI_FLOAT;
    op_ = is_bf16 ? group_->bf16.op(reduction)
                  : select(reduction,
                           {.sum = MPI_SUM, .product = MPI_PROD, .minimum = MPI_MIN, .maximum = MPI_MAX});
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
    if (done != 0) complete();
    return done != 0;
  }

  void complete() {
    if (collective_ == Collective::all_gather) return;
    std::int64_t first = 0;
    std::int64_t count = buffer_->elements().count();
    if (collective_ == Collective::reduce_scatter) {
      // In place, MPI puts the result at the buffer's start; ours belongs in this rank's block.
      count /= ranks_;
      first = rank_ * count;
      const std::int64_t element = size_of(buffer_->dtype());
      if (rank_ > 0) std::copy_n(buffer_->data(), count * element, buffer_->data() + first * element);
    }
    if (reduction_ != Reduction::average || !buffer_->holds_values()) return;
    if (buffer_->dtype() == DType::fp32) {
      divide(reinterpret_cast<float*>(buffer_->data()) + first, count);
    } else {
      divide(reinterpret_cast<bodies::BFloat16*>(buffer_->data()) + first, count);
    }
  }

  template <class Value>
  void divide(Value* values, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i)
      bodies::divided_copy(i, values, values, static_cast<float>(ranks_));
  }

  Collective collective_;
  BufferRef buffer_;
  Reduction reduction_;
  std::shared_ptr<const NativeGroup> group_;
  MPI_Comm comm_;
  int ranks_;
  int rank_;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  MPI_Op op_ = MPI_OP_NULL;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

class NativeCommunicator final : public Communicator {
 public:
  NativeCommunicator(CommHandle comm, ProgressEngine& engine)
      : group_(std::make_shared<const NativeGroup>(std::move(comm))),
        engine_(engine),
        queue_(engine.add_queue()),
        rank_(group_->comm.rank()),
        size_(group_->comm.size()) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  Pending start(Collective collective, BufferRef buffer, Reduction reduction) override {
    SHARDBENCH_ASSERT(collective == Collective::all_reduce || buffer->elements().count() % size_ == 0);
    auto operation = std::make_shared<NativeOperation>(collective, std::move(buffer), reduction, group_);
    engine_.submit(queue_, operation);
    return std::make_unique<EnginePending>(
        engine_, std::move(operation),
        EnginePending::Facts{.algorithm = Algorithm::native, .sent = std::nullopt});
  }

 private:
  std::shared_ptr<const NativeGroup> group_;
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
