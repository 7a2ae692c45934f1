// ZeRO-1: the optimizer state is sharded; parameters and gradients rest whole on every rank.
//
//   for each micro-batch: forward, backward; gradients accumulate locally
//   in the last backward: reduce_scatter each bucket as soon as its layers are done, overlapping those below
//   update the own shard of each bucket
//   all_gather the parameters: after the update, or bucket by bucket under the next forward
//
// Static bytes per rank: 4 Psi + 12 Psi / N. Elements sent per rank and step: 2 Psi (N-1)/N, whatever A: as
// many as DDP, whose all-reduce is a reduce-scatter and an all-gather too. A true reduce-scatter, as in
// Megatron-LM's distributed optimizer (DeepSpeed's default path all-reduces and keeps a slice).
#include "src/scenario.hpp"
#include "src/train/bucketed_parameters.hpp"
#include "src/train/gradient_buckets.hpp"
#include "src/train/layer_gradients.hpp"
#include "src/train/optimizer_step.hpp"

namespace shardbench {
namespace {

class Zero1 final : public Scenario {
 public:
  explicit Zero1(TrainContext& context)
      : context_(context),
        dp_(make_data_parallel_communicators(context)),
        clipping_(make_clipping_communicator(context)),
        buckets_(make_buckets(context.tensors, context.options.reduce_dtype, bucket_cap(context.options),
                              bucket_cap(context.options))),
        layouts_(make_bucket_layouts(buckets_, context.tensors, dp_.reduce.size())),
        state_(context, {.owned = resident_slices(layouts_, dp_.reduce.rank()),
                         .parameters = hold_whole(layouts_, dp_.reduce.rank(), Padding::included),
                         .gradients = hold_whole(layouts_, dp_.reduce.rank(), Padding::none)}),
        parameters_(context, dp_.gather, buckets_, layouts_, state_),
        layer_gradients_(context),
        accumulated_(context, state_),
        reductions_(context, dp_.reduce, Collective::reduce_scatter, buckets_, layouts_, state_,
                    1.0 / static_cast<double>(context.options.grad_accum * dp_.reduce.size())) {}

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
    clip_and_update(context_, state_, clipping_);
    if (context_.options.parameter_gather == ParameterGather::end) {
      parameters_.gather();
      parameters_.wait_all();
    }
  }

  ResidentState& state() override { return state_; }
  [[nodiscard]] Replication replication() const override { return Replication::sharded; }
  [[nodiscard]] ExpectedLedger expected() const override {
    return expected_zero1(context_.options, context_.tensors, layouts_, dp_.reduce.rank());
  }

 private:
  void forward(int micro) {
    context_.recorder.enter(Phase::forward, micro);
    const bool gathers = micro == 0 && context_.options.parameter_gather == ParameterGather::overlap;
    if (gathers) parameters_.gather();
    for (int layer = 0; layer < context_.dims().layer_count(); ++layer) {
      if (gathers) parameters_.wait(layer);
      const auto span = context_.recorder.compute({.layer = layer});
      context_.decoder.forward(layer, parameters_.weights());
    }
  }

  void backward(int micro) {
    context_.recorder.enter(Phase::backward, micro);
    const bool last = micro + 1 == context_.options.grad_accum;
    for (int layer = context_.dims().head_layer(); layer >= 0; --layer) {
      layer_gradients_.open(layer);
      {
        const auto span = context_.recorder.compute({.layer = layer});
        context_.decoder.backward(layer, parameters_.weights(), layer_gradients_.gradients());
        accumulated_.add(layer, layer_gradients_);
      }
      if (last) reductions_.add_final(layer, accumulated_.source(), ResidentState::Accumulate::replace);
    }
  }

  TrainContext& context_;
  DataParallelCommunicators dp_;
  std::optional<TracedCommunicator> clipping_;
  std::vector<Bucket> buckets_;
  std::vector<GroupLayout> layouts_;
  ResidentState state_;
  BucketedParameters parameters_;
  LayerGradients layer_gradients_;
  AccumulatedGradients accumulated_;
  GradientBuckets reductions_;
};

}  // namespace

ScenarioDefinition scenario_definition() {
  return {
      .name = "zero1",
      .options = {OptionFamily::buckets, OptionFamily::ordered_collectives, OptionFamily::parameter_gather},
      .make = [](TrainContext& context) -> std::unique_ptr<Scenario> {
        return std::make_unique<Zero1>(context);
      }};
}

}  // namespace shardbench
