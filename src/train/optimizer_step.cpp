#include "src/train/optimizer_step.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/comm/nodes.hpp"

namespace shardbench {
namespace {

double global_squares(TrainContext& context, double local, TracedCommunicator& world) {
  const BufferRef value =
      context.memory.allocate(Category::reduce_buffers, DType::fp32, Elements(1), context.message);
  if (value->holds_values()) value->floats()[0] = static_cast<float>(local);
  InFlight reduction = world.start(Collective::all_reduce, value, {});
  reduction.wait();
  return value->holds_values() ? static_cast<double>(value->floats()[0]) : local;
}

std::shared_ptr<Communicator> all_ranks(TrainContext& context) {
  std::vector<int> members(static_cast<std::size_t>(context.world.size()));
  std::iota(members.begin(), members.end(), 0);
  return context.world.communicator(members);
}

}  // namespace

double clip_and_update(TrainContext& context, ResidentState& state,
                       std::optional<TracedCommunicator>& world) {
  double local = 0.0;
  {
    const auto span = context.recorder.compute({});
    local = state.gradient_squares();
  }
  double factor = 1.0;
  if (context.options.clip > 0.0) {
    const double squares = world ? global_squares(context, local, *world) : local;
    const double bound = context.options.clip / (std::sqrt(squares) + 1e-6);
    factor = bound < 1.0 ? bound : 1.0;
  }
  const auto span = context.recorder.compute({});
  state.update(factor);
  return local;
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
  const std::shared_ptr<Communicator> first = context.world.communicator(group);
  const std::shared_ptr<Communicator> second =
      context.options.communicators == 2 ? context.world.communicator(group) : first;
  return {.gather = TracedCommunicator(first, Axis::dp, context.recorder),
          .reduce = TracedCommunicator(second, Axis::dp, context.recorder)};
}

}  // namespace shardbench
