// ZeRO-3 (FSDP): parameters, gradients and optimizer state are sharded; a group's parameters exist unsharded
// only while its layer computes.
//
//   for each micro-batch
//     forward,  layer 0 ... L+1:   all_gather the group (and F ahead) -> compute -> free
//     backward, layer L+1 ... 0:   all_gather the group (and B ahead) -> compute -> free -> reduce_scatter
//   update the own shard; nothing is communicated (with --clip, one all_reduce of the norm)
//
// Static bytes per rank: 16 Psi / N. Elements sent per rank and step: 3 A Psi (N-1)/N, fewer where groups
// stay unsharded after forward. Prefetch can hide all but the all-gather that begins each pass and the last
// reduce-scatter. Schedule after PyTorch FSDP2 (fully_shard).
#pragma once

#include "src/scenario.hpp"
#include "src/train/gathered_parameters.hpp"
#include "src/train/gradient_reducer.hpp"
#include "src/train/optimizer_step.hpp"

namespace shardbench {

class Zero3 : public Scenario {
 public:
  explicit Zero3(TrainContext& context)
      : context_(context),
        dp_(make_data_parallel_communicators(context)),
        clipping_(make_clipping_communicator(context)),
        grouping_(make_grouping(context.dims(), context.options.wrap)),
        layouts_(make_group_layouts(context.options.layout, grouping_.groups, context.dims(), context.mesh)),
        state_(context, shard()),
        parameters_(context, dp_.gather, grouping_.groups, layouts_, state_),
        gradients_(context, dp_.reduce, grouping_.groups, layouts_, state_,
                   1.0 / static_cast<double>(context.options.grad_accum * dp_.reduce.size())) {}

  void forward_backward(int step) override {
    for (int micro = 0; micro < context_.options.grad_accum; ++micro) {
      context_.decoder.load_batch(step, first_sequence(context_, micro));
      forward(micro);
      backward(micro);
    }
    finish_gradients();
  }

  void optimizer_step() override {
    context_.recorder.enter(Phase::optimizer, 0);
    clip_and_update(context_, state_, clipping_);
  }

  ResidentState& state() override { return state_; }
  [[nodiscard]] Replication replication() const override { return Replication::sharded; }
  [[nodiscard]] ExpectedLedger expected() const override {
    return expected_zero3(context_.options, context_.tensors, grouping_, layouts_, context_.mesh);
  }

 protected:
  /// What is left to do with the shards' gradients once data-parallel ranks have added theirs.
  virtual void finish_gradients() {}

  [[nodiscard]] TrainContext& context() const { return context_; }
  [[nodiscard]] const std::vector<Slice>& owned() const { return state_.owned(); }

 private:
  void forward(int micro) {
    context_.recorder.enter(Phase::forward, micro);
    for (int layer = 0; layer < context_.dims().layer_count(); ++layer) {
      const int group = group_of(layer);
      gather_ahead(layer, Direction::forward, context_.options.prefetch.forward);
      parameters_.wait(group);
      {
        const auto span = context_.recorder.compute({.layer = layer});
        context_.decoder.forward(layer, parameters_.weights());
      }
      if (is_freed_after_forward(group)) parameters_.reshard(group);
    }
  }

  void backward(int micro) {
    context_.recorder.enter(Phase::backward, micro);
    for (int layer = context_.dims().head_layer(); layer >= 0; --layer) {
      const int group = group_of(layer);
      gather_ahead(layer, Direction::backward, context_.options.prefetch.backward);
      parameters_.wait(group);
      gradients_.open(group);
      {
        const auto span = context_.recorder.compute({.layer = layer});
        context_.decoder.backward(layer, parameters_.weights(), gradients_.gradients());
      }
      if (layer > first_layer_of(group))
        continue;  // the root group, after the head: it still serves the embedding
      parameters_.reshard(group);
      if (context_.options.rs_wait == ReduceScatterWait::next) gradients_.wait();
      gradients_.reduce_scatter(
          group, micro == 0 ? ResidentState::Accumulate::replace : ResidentState::Accumulate::add);
    }
    gradients_.wait();  // for all in flight; each adds its block to the resting gradients
  }

  /// Issues the all-gathers of this layer's group and of the `depth` layers that the pass reaches next, so
  /// that they travel while this one computes. Groups that are in flight or still unsharded are left alone.
  void gather_ahead(int layer, Direction direction, int depth) {
    for (int ahead = 0; ahead <= depth; ++ahead) {
      const int next = layer + (direction == Direction::forward ? ahead : -ahead);
      if (next < 0 || next > context_.dims().head_layer()) break;
      parameters_.gather(group_of(next));
    }
  }

  [[nodiscard]] int group_of(int layer) const {
    return grouping_.group_of_layer[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] int first_layer_of(int group) const {
    return grouping_.groups[static_cast<std::size_t>(group)].id;
  }

  [[nodiscard]] bool is_root(int group) const { return context_.options.wrap == Wrap::root && group == 0; }

  [[nodiscard]] bool is_freed_after_forward(int group) const {
    const ReshardAfterForward reshard = context_.options.reshard;
    const bool is_needed_at_once = group == group_of(context_.dims().head_layer());
    return !is_root(group) && reshard != ReshardAfterForward::none &&
           !(reshard == ReshardAfterForward::blocks && is_needed_at_once);
  }

  [[nodiscard]] Residence shard() const {
    const std::vector<Slice> own = resident_slices(layouts_, dp_.gather.rank());
    return {.owned = own, .parameters = hold_owned(own), .gradients = hold_owned(own)};
  }

  TrainContext& context_;
  DataParallelCommunicators dp_;
  std::optional<TracedCommunicator> clipping_;
  Grouping grouping_;
  std::vector<GroupLayout> layouts_;
  ResidentState state_;
  GatheredParameters parameters_;
  GradientReducer gradients_;
};

}  // namespace shardbench
