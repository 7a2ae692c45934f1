// mesh2d: data parallel x tensor parallel. Each tensor is cut over tp first, and ZeRO-3 (zero3.hpp) then
// shards the local part over dp, so that data-parallel bytes fall by tp.
//
//   tp, inside each layer (src/model/decoder.cpp): wq wk wv w1 w3 are column-parallel, wo and w2
//   row-parallel;
//     embedding, head and loss are cut along the vocabulary. Activations are all-reduced, or with
//     --sequence-parallel reduce-scattered and all-gathered
//   dp, around each layer: zero3's all-gathers and reduce-scatters
//   norm weights are replicated over tp. Without sequence parallelism every tp rank computes their whole
//     gradient; with it each has that of its own tokens, and the last micro-batch ends with one all_reduce
//     each
//
// Static bytes per rank: 16 (Psi_matrices / tp + Psi_norms) / dp. Megatron-LM's layout, torchtitan's order.
#include "src/scenarios/zero3.hpp"

namespace shardbench {
namespace {

class Mesh2d final : public Zero3 {
 public:
  explicit Mesh2d(TrainContext& context) : Zero3(context) {
    if (context.mesh.tp > 1 && context.options.sequence_parallel == SequenceParallel::on)
      tp_.emplace(context.backend.communicator(context.mesh.tp_group()), Axis::tp, context.recorder);
  }

  [[nodiscard]] ExpectedLedger expected() const override {
    Elements norms;  // that rest on this rank
    for (const Slice& slice : owned())
      if (context().tensors[static_cast<std::size_t>(slice.tensor)].is_norm()) norms += Elements(slice.count);
    return expected_mesh2d(Zero3::expected(), context().options, norms, context().mesh.tp);
  }

 protected:
  /// Sums the norm weights' gradients over the tensor-parallel ranks, each of which saw its own tokens.
  void finish_gradients() override {
    if (!tp_) return;
    std::vector<Sum> sums;
    for (auto tensor = context().tensors.rbegin(); tensor != context().tensors.rend(); ++tensor)
      if (tensor->is_norm()) sums.push_back(start_sum(*tensor));
    for (Sum& sum : sums) finish(sum);
  }

 private:
  struct Sum {
    std::optional<std::size_t> owned;  ///< range of the resting gradients; none where this rank has no row
    BufferRef message;
    InFlight collective;
  };

  Sum start_sum(const TensorInfo& tensor) {
    const Residence& rests = state().residence();
    Sum sum;
    for (std::size_t i = 0; i < rests.owned.size(); ++i)
      if (rests.owned[i].tensor == tensor.index) sum.owned = i;
    const std::int64_t count = sum.owned ? rests.owned[*sum.owned].count : 0;
    sum.message = context().memory.allocate(Category::reduce_buffers, context().options.param_dtype,
                                            Elements(count), context().message);
    if (sum.owned)
      copy_values(context(), *sum.message, 0, state().gradients(), rests.gradients.owned_at[*sum.owned],
                  count);
    context().copies.settle();
    sum.collective = tp_->start(Collective::all_reduce, sum.message, {.layer = tensor.layer});
    return sum;
  }

  void finish(Sum& sum) {
    sum.collective.wait();
    if (sum.owned)
      state().accumulate_gradient(state().residence().gradients.owned_at[*sum.owned],
                                  sum.message->elements().count(), *sum.message, 0,
                                  ResidentState::Accumulate::replace);
    context().copies.settle();
  }

  std::optional<TracedCommunicator> tp_;
};

}  // namespace

ScenarioDefinition scenario_definition() {
  return {.name = "mesh2d",
          .options = {OptionFamily::gather_groups, OptionFamily::ordered_collectives, OptionFamily::mesh},
          .make = [](TrainContext& context) -> std::unique_ptr<Scenario> {
            return std::make_unique<Mesh2d>(context);
          }};
}

}  // namespace shardbench
