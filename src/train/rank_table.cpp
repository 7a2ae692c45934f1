#include "src/train/rank_table.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "src/train/collector.hpp"

namespace shardbench {

void write_ranks(TraceFile* file, World& world, const RankSeat& seat) {
  const Placement p = world.placement();
  const nlohmann::json own = {{"host", p.host},
                              {"local_rank", p.local_rank},
                              {"machine_ranks", p.machine_ranks},
                              {"allowed_cpus", p.allowed_cpus},
                              {"machine_cpus", p.machine_cpus},
                              {"affinity", p.affinity},
                              {"pid", static_cast<int>(getpid())},
                              {"dp_index", seat.dp_index},
                              {"tp_index", seat.tp_index},
                              {"threads", seat.threads},
                              {"device", seat.device}};
  bool oversubscribed = false;
  Collector(world.control()).for_each_rank_json(own, [&](int rank, const nlohmann::json& json) {
    const int threads = json["threads"];
    oversubscribed = oversubscribed || (!world.simulated() && json["machine_ranks"].get<int>() * threads >
                                                                  json["machine_cpus"].get<int>());
    const RankRow row{.rank = rank,
                      .dp_index = json["dp_index"],
                      .tp_index = json["tp_index"],
                      .pid = json["pid"],
                      .threads = threads,
                      .device = json["device"],
                      .placement = {.host = json["host"],
                                    .local_rank = json["local_rank"],
                                    .allowed_cpus = json["allowed_cpus"],
                                    .affinity = json["affinity"]}};
    file->append(std::span<const RankRow>(&row, 1));
  });
  if (file != nullptr) file->set("oversubscribed", oversubscribed ? 1 : 0);
}

}  // namespace shardbench
