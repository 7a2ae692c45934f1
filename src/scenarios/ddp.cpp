// DDP (ZeRO-0): every rank holds everything; gradients are averaged.
//
//   for each micro-batch: forward, backward; gradients accumulate locally
//   in the last backward: all_reduce each bucket as soon as its layers are done, overlapping the layers below
//   wait for the buckets in order, update everything everywhere
//
// Static bytes per rank: 16 Psi. Elements sent per rank and step: 2 Psi (N-1)/N, whatever A. Buckets after
// PyTorch's DistributedDataParallel: 1 MiB first, then 25 MiB, in reverse declaration order.
#include "src/scenario.hpp"
#include "src/train/gradient_buckets.hpp"
#include "src/train/optimizer_step.hpp"

namespace shardbench {
namespace {

constexpr Bytes mebibyte(1 << 20);

class Ddp final : public Scenario {
 public:
  explicit Ddp(TrainContext& context)
      : context_(context),
        dp_(make_data_parallel_communicators(context).reduce),
        state_(context, whole_tensors(context.tensors)),
        weights_(context.tensors.size()),
        gradients_(context, state_),
        buckets_(context, dp_, state_, make_ddp_buckets(context),
                 1.0 / static_cast<double>(context.options.grad_accum * dp_.size())) {
    for (const Slice& slice : state_.slices()) {
      const TensorInfo& tensor = context.tensors[static_cast<std::size_t>(slice.tensor)];
      weights_.set(slice.tensor, view(state_.parameters(), slice.offset, tensor.rows, tensor.columns));
    }
  }

  void forward_backward(int step) override {
    loss_sum_ = 0.0;
    gradients_.begin_step();
    for (int micro = 0; micro < context_.options.grad_accum; ++micro) {
      context_.decoder.load_batch(step, first_sequence(context_.options, dp_.rank(), micro));
      forward(micro);
      backward(micro);
      loss_sum_ += context_.decoder.loss_sum();
    }
    buckets_.wait();
  }

  void optimizer_step() override {
    context_.recorder.enter(Phase::optimizer, 0);
    // Averaged gradients are the same everywhere, so the norm needs no communication.
    std::optional<TracedCommunicator> none;
    gradient_squares_ = clip_and_update(context_, state_, none);
  }

  ResidentState& state() override { return state_; }
  [[nodiscard]] Replication replication() const override { return Replication::replicated; }
  [[nodiscard]] double gradient_squares() const override { return gradient_squares_; }
  [[nodiscard]] double loss_sum() const override { return loss_sum_; }
  [[nodiscard]] ExpectedLedger expected() const override {
    return expected_ddp(context_.options, context_.tensors, std::ssize(buckets_.buckets()), dp_.size());
  }

 private:
  void forward(int micro) {
    context_.recorder.enter(Phase::forward, micro);
    for (int layer = 0; layer < context_.dims().layer_count(); ++layer) {
      const auto span = context_.recorder.compute({.layer = layer});
      context_.decoder.forward(layer, weights_);
    }
  }

  void backward(int micro) {
    context_.recorder.enter(Phase::backward, micro);
    const bool last = micro + 1 == context_.options.grad_accum;
    for (int layer = context_.dims().head_layer(); layer >= 0; --layer) {
      gradients_.open(layer);
      {
        const auto span = context_.recorder.compute({.layer = layer});
        context_.decoder.backward(layer, weights_, gradients_.gradients());
        gradients_.add_to_resting(layer);
      }
      if (last) buckets_.reduce_completed(layer);
    }
  }

  static std::vector<Bucket> make_ddp_buckets(const TrainContext& context) {
    const Bytes cap = context.options.bucket_mb * mebibyte;
    const Bytes first_cap = context.options.bucket_mb == default_bucket_mb ? mebibyte : cap;
    return make_buckets(context.tensors, context.options.reduce_dtype, first_cap, cap);
  }

  TrainContext& context_;
  TracedCommunicator dp_;
  ResidentState state_;
  WeightTable weights_;
  LayerGradients gradients_;
  GradientBuckets buckets_;
  double loss_sum_ = 0.0;
  double gradient_squares_ = 0.0;
};

}  // namespace

ScenarioDefinition scenario_definition() {
  return {.name = "ddp",
          .options = {OptionFamily::buckets},
          .make = [](TrainContext& context) -> std::unique_ptr<Scenario> {
            return std::make_unique<Ddp>(context);
          }};
}

}  // namespace shardbench
