#include "src/train/optimizer_step.hpp"

#include <numeric>

#include "src/comm/nodes.hpp"

namespace shardbench {
namespace {

/// Sums the squares of all ranks, in fp32.
void add_up_squares(TrainContext& context, ResidentState& state, TracedCommunicator& world) {
  const BufferRef value =
      context.memory.allocate(Category::reduce_buffers, DType::fp32, Elements(1), context.message);
  if (state.computes()) {
    context.kernels.narrow(value->floats(), state.clipping().squares.span());
  } else if (value->holds_values()) {
    context.kernels.fill_zero(view(*value, 0, 1));
  }
  InFlight reduction = world.start(Collective::all_reduce, value, {});
  reduction.wait();
  if (state.computes()) context.kernels.widen(state.clipping().of_all.span(), value->floats());
}

void clip(TrainContext& context, ResidentState& state, std::optional<TracedCommunicator>& world) {
  if (world) add_up_squares(context, state, *world);
  if (!state.computes()) return;
  ResidentState::Clipping& c = state.clipping();
  context.kernels.clip_factor(c.factor.span(), (world ? c.of_all : c.squares).span(), context.options.clip);
}

std::shared_ptr<Communicator> all_ranks(TrainContext& context) {
  std::vector<int> members(static_cast<std::size_t>(context.world.size()));
  std::iota(members.begin(), members.end(), 0);
  return context.backend.communicator(members);
}

}  // namespace

void clip_and_update(TrainContext& context, ResidentState& state, std::optional<TracedCommunicator>& world) {
  {
    const auto span = context.recorder.compute({});
    state.square_gradients();
  }
  if (context.options.clip > 0.0) clip(context, state, world);
  const auto span = context.recorder.compute({});
  state.update();
}

std::optional<TracedCommunicator> make_clipping_communicator(TrainContext& context) {
  if (context.options.clip == 0.0) return std::nullopt;
  return TracedCommunicator(all_ranks(context), Axis::world, context.recorder);
}

void check_groups(const Options& options, const World& world) {
  if (options.algorithm != Algorithm::hierarchical) return;
  std::vector<std::vector<int>> groups = groups_of_mesh(options.dp, options.tp);
  if (options.clip > 0.0) {
    std::vector<int> everyone(static_cast<std::size_t>(world.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    groups.push_back(std::move(everyone));
  }
  check_hierarchy(groups, world.nodes());
}

DataParallelCommunicators make_data_parallel_communicators(TrainContext& context) {
  const std::vector<int> group = context.mesh.dp_group();
  const std::shared_ptr<Communicator> first = context.backend.communicator(group);
  const std::shared_ptr<Communicator> second =
      context.options.communicators == 2 ? context.backend.communicator(group) : first;
  return {.gather = TracedCommunicator(first, Axis::dp, context.recorder),
          .reduce = TracedCommunicator(second, Axis::dp, context.recorder)};
}

}  // namespace shardbench
