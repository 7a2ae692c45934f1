#include "src/train/plan.hpp"

#include <nlohmann/json.hpp>

#include "src/comm/plan/plan_world.hpp"
#include "src/train/calibration.hpp"
#include "src/train/optimizer_step.hpp"
#include "src/train/rank_setup.hpp"

namespace shardbench {
namespace {

nlohmann::ordered_json event_json(const Event& event) {
  const CollectiveFacts& facts = event.facts;
  nlohmann::ordered_json json = {{"step", event.step},
                                 {"micro", event.micro},
                                 {"layer", event.subject.layer},
                                 {"bucket", event.subject.bucket},
                                 {"phase", name_of(event.phase)},
                                 {"kind", name_of(event.kind)},
                                 {"stream", name_of(event.stream)},
                                 {"axis", name_of(facts.axis)}};
  json["algorithm"] = event.is_collective ? name_of(facts.algorithm) : "none";
  json["dtype"] = event.is_collective ? name_of(facts.dtype) : "none";
  json["group_size"] = event.is_collective ? facts.group_size : 0;
  json["elements"] = event.is_collective ? facts.size.count() : 0;
  json["bytes"] = event.is_collective ? bytes_of(facts.dtype, facts.size).count() : 0;
  json["sent_bytes"] = event.is_collective ? facts.sent_bytes : 0;
  return json;
}

}  // namespace

std::string plan_json(Options options, const ScenarioDefinition& definition) {
  const int ranks = options.ranks.value_or(1);
  resolve_mesh(options, ranks);
  resolve_batch(options, options.dp);
  if (!options.calibration_file.empty())
    options.calibration_text = read_calibration_file(options.calibration_file);
  Memory memory;
  const auto world = make_plan_world(ranks, options.plan_rank,
                                     {.progress = options.progress,
                                      .algorithm = options.algorithm,
                                      .ranks_per_node = options.ranks_per_node},
                                     memory);
  check_groups(options, *world);
  const auto backend = make_host_backend(options, *world, memory, Purpose::plan);
  RankSetup setup(options, definition, *world, memory, *backend, Purpose::plan);
  setup.recorder().clear();  // the memory that set-up took is in the totals below
  setup.step(0, false);

  nlohmann::ordered_json json;
  json["scenario"] = definition.name;
  json["ranks"] = ranks;
  json["rank"] = options.plan_rank;
  json["psi"] = parameter_count(options.dims).count();
  json["options"] = nlohmann::ordered_json::parse(options_json(options));
  json["events"] = nlohmann::ordered_json::array();
  for (const Event& event : setup.recorder().events()) json["events"].push_back(event_json(event));
  json["ledger"] = nlohmann::ordered_json::array();
  for (const LedgerRow& row : setup.ledger())
    json["ledger"].push_back({{"axis", name_of(row.axis)},
                              {"quantity", row.quantity},
                              {"expected", row.expected},
                              {"planned", row.measured},
                              {"padding", row.padding},
                              {"unit", row.unit}});
  const MemoryTracker& tracker = memory.tracker();
  auto& peaks = json["memory"]["peak_bytes"] = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    peaks[std::string(name_of(category))] = tracker.peak(category).count();
  }
  peaks["total_tracked"] = tracker.total_peak().count();
  json["memory"]["static_bytes"] =
      (setup.held().parameters + setup.held().gradients + setup.held().optimizer).count();
  return json.dump(1);
}

}  // namespace shardbench
