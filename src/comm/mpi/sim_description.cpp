#include "src/comm/mpi/sim_description.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/errors.hpp"

namespace shardbench::mpi {
namespace {

constexpr double micro = 1e-6;

/// A table of the description; its keys are looked up by name.
class Section {
 public:
  Section(const nlohmann::json& all, const std::string& name)
      : name_(name), table_(all.value(name, nlohmann::json())) {}

  template <class T>
  [[nodiscard]] T get(const std::string& key) const {
    try {
      return table_.at(key).get<T>();
    } catch (const nlohmann::json::exception& error) {
      throw UsageError(fmt::format("the platform's description lacks {}.{} ({}); see docs/simulation.md",
                                   name_, key, error.what()));
    }
  }
  [[nodiscard]] double positive(const std::string& key) const {
    const auto value = get<double>(key);
    if (!(value > 0.0))
      throw UsageError(fmt::format("the platform's {}.{} is {}; it must be above 0", name_, key, value));
    return value;
  }
  [[nodiscard]] NcclTable::PerProtocol microseconds(const std::string& key,
                                                    const std::string& algorithm) const {
    const auto by_algorithm = get<nlohmann::json>(key);
    NcclTable::PerProtocol seconds{};
    try {
      seconds = by_algorithm.at(algorithm).get<NcclTable::PerProtocol>();
    } catch (const nlohmann::json::exception& error) {
      throw UsageError(
          fmt::format("the platform's {}.{}.{} must be three times, for LL, LL128 and Simple ({})", name_,
                      key, algorithm, error.what()));
    }
    for (double& s : seconds) s *= micro;
    return seconds;
  }

 private:
  std::string name_;
  nlohmann::json table_;
};

NcclTable parse_nccl(const Section& nccl) {
  return {.version = nccl.get<std::string>("version"),
          .channels = nccl.get<int>("channels"),
          .ring_base_s = nccl.microseconds("base_us", "ring"),
          .tree_base_s = nccl.microseconds("base_us", "tree"),
          .pat_base_s = micro * nccl.get<nlohmann::json>("base_us").value("pat", 0.0),
          .ring_hop_in_node_s = nccl.microseconds("gpu_link_hop_us", "ring"),
          .tree_hop_in_node_s = nccl.microseconds("gpu_link_hop_us", "tree"),
          .ring_hop_between_nodes_s = nccl.microseconds("network_hop_us", "ring"),
          .tree_hop_between_nodes_s = nccl.microseconds("network_hop_us", "tree"),
          .ll_multi_node_hop_factor = nccl.positive("ll_multi_node_hop_factor"),
          .ll_max_bandwidth = nccl.get<std::array<double, 3>>("ll_max_bandwidth"),
          .ll128_fraction = nccl.positive("ll128_fraction"),
          .ll128_channel_bandwidth = nccl.positive("ll128_channel_bandwidth"),
          .tree_fraction = nccl.positive("tree_fraction"),
          .pat_fraction = nccl.positive("pat_fraction"),
          .pat_log_divisor = nccl.positive("pat_log_divisor"),
          .pat_rank_s = micro * nccl.get<double>("pat_rank_us")};
}

}  // namespace

SimulatedMachine parse_machine(const std::string& json) {
  const auto all = nlohmann::json::parse(json, nullptr, false);
  if (!all.is_object())
    throw UsageError("the platform's description is not a JSON object; see docs/simulation.md");
  const Section node(all, "node");
  const Section gpu(all, "gpu");
  const Section nccl(all, "nccl");
  return {.json = json,
          .ranks_per_node = node.get<int>("gpus"),
          .gpu_link_bandwidth = node.positive("gpu_link_bandwidth"),
          .nic_bandwidth = node.positive("nic_bandwidth"),
          .gpu_link_efficiency = nccl.positive("gpu_link_efficiency"),
          .network_efficiency = nccl.positive("network_efficiency"),
          .gpu = {.name = gpu.get<std::string>("name"),
                  .peak_flops = gpu.positive("peak_flops"),
                  .efficiency = gpu.positive("efficiency"),
                  .memory_bandwidth = gpu.positive("memory_bandwidth"),
                  .launch_s = gpu.get<double>("launch_s")},
          .nccl = parse_nccl(nccl)};
}

}  // namespace shardbench::mpi
