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
#include "src/train/layer_gradients.hpp"
#include "src/train/optimizer_step.hpp"

namespace shardbench {
namespace {

class Ddp final : public Scenario {
 public:
  explicit Ddp(TrainContext& context)
      : context_(context),
        dp_(make_data_parallel_communicators(context).reduce),
        buckets_(make_buckets(context.tensors, context.options.reduce_dtype, first_cap(context.options),
                              bucket_cap(context.options))),
        layouts_(make_bucket_layouts(buckets_, context.tensors, 1)),
        state_(context, everything()),
        weights_(context.tensors.size()),
        layer_gradients_(context),
        accumulated_(context, state_),
        reductions_(context, dp_, Collective::all_reduce, buckets_, layouts_, state_,
                    1.0 / static_cast<double>(context.options.grad_accum * dp_.size())) {
    for (const Slice& slice : state_.owned()) {
      const TensorInfo& tensor = context.tensors[static_cast<std::size_t>(slice.tensor)];
      weights_.set(slice.tensor, view(*state_.parameters(), slice.offset, tensor.rows, tensor.columns));
    }
  }

  void forward_backward(int step) override {
    accumulated_.begin_step();
    for (int micro = 0; micro < context_.options.grad_accum; ++micro) {
      context_.decoder.load_batch(step, first_sequence(context_, micro));
      forward(micro);
      backward(micro);
    }
    reductions_.wait();
  }

  void optimizer_step() override {
    context_.recorder.enter(Phase::optimizer, 0);
    // Averaged gradients are the same everywhere, so the norm needs no communication.
    std::optional<TracedCommunicator> none;
    clip_and_update(context_, state_, none);
  }

  ResidentState& state() override { return state_; }
  [[nodiscard]] Replication replication() const override { return Replication::replicated; }
  [[nodiscard]] ExpectedLedger expected() const override {
    return expected_ddp(context_.options, context_.tensors, std::ssize(buckets_), dp_.size());
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
      layer_gradients_.open(layer);
      {
        const auto span = context_.recorder.compute({.layer = layer});
        context_.decoder.backward(layer, weights_, layer_gradients_.gradients());
        accumulated_.add(layer, layer_gradients_);
      }
      if (last) reductions_.add_final(layer, accumulated_.source(), ResidentState::Accumulate::replace);
    }
  }

  [[nodiscard]] Residence everything() const {
    const std::vector<Slice> all = resident_slices(layouts_, 0);
    return {.owned = all, .parameters = hold_owned(all), .gradients = hold_owned(all)};
  }

  static Bytes first_cap(const Options& options) {
    return options.bucket_mb == default_bucket_mb ? Bytes(1 << 20) : bucket_cap(options);
  }

  TrainContext& context_;
  TracedCommunicator dp_;
  std::vector<Bucket> buckets_;
  std::vector<GroupLayout> layouts_;
  ResidentState state_;
  WeightTable weights_;
  LayerGradients layer_gradients_;
  AccumulatedGradients accumulated_;
  GradientBuckets reductions_;
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
