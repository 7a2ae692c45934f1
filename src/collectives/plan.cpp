#include "src/collectives/plan.hpp"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/collectives/bench.hpp"
#include "src/collectives/sizes.hpp"
#include "src/comm/plan/plan_world.hpp"

namespace shardbench {
namespace {

using Json = nlohmann::ordered_json;

/// As many collectives at a time as in a run, so that the peak of memory is a run's.
Json line_json(const Measurement& measured, const SizedCollective& sizes, int repetitions,
               Communicator& communicator, Memory& memory) {
  const BufferRef buffer =
      memory.allocate(Category::workspace, measured.dtype, sizes.buffer, Backing::aliased);
  std::deque<Pending> pending;
  for (int i = 0; i < std::min(repetitions, collectives_in_flight); ++i)
    pending.push_back(communicator.start(measured.collective, buffer, measured.reduction));
  const PendingCollective& first = *pending.front();
  return {{"collective", name_of(measured.collective)},
          {"algorithm", name_of(first.algorithm())},
          {"dtype", name_of(measured.dtype)},
          {"op", measured.collective == Collective::all_gather ? "none" : nccl_name(measured.reduction)},
          {"size_bytes", sizes.size.count()},
          {"count", sizes.count.count()},
          {"sent_bytes", first.sent() ? first.sent()->count() : -1}};
}

}  // namespace

std::string collectives_plan_json(const CollectivesOptions& options) {
  const int ranks = options.ranks.value_or(1);
  Memory memory;
  const auto world = make_plan_world(ranks, 0,
                                     {.progress = options.progress,
                                      .algorithm = options.algorithm,
                                      .ranks_per_node = options.ranks_per_node},
                                     memory);
  check_request(options, *world);
  const auto communicator = world->communicator(everyone(*world));
  const int repetitions = options.warmup + options.iterations + options.checks;

  Json json = {{"scenario", "collectives"}, {"ranks", ranks}, {"psi", 0}};
  json["options"] = Json::parse(options_json(options));
  json["repetitions"] = repetitions;
  json["lines"] = Json::array();
  for (const Collective collective : options.collectives)
    for (const Measurement& measured : measurements_of(collective, options))
      for (std::optional<Bytes> size = options.min_bytes; size; size = options.size_after(*size))
        json["lines"].push_back(line_json(measured, sized(collective, measured.dtype, *size, ranks),
                                          repetitions, *communicator, memory));
  json["memory"]["peak_bytes"]["total_tracked"] = memory.tracker().total_peak().count();
  return json.dump(1);
}

}  // namespace shardbench
