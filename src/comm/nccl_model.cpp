#include "src/comm/nccl_model.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "src/comm/schedule.hpp"
#include "src/errors.hpp"

namespace shardbench {
namespace {

// Of what LL sends, half is flags; its tree does worse.
constexpr double ll_fraction = 0.5;
constexpr double tree_ll_fraction = 1.0 / 3.8;

/// floor(log2 n), as the tuner counts rounds.
int log2_of(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }

class Tuner {
 public:
  Tuner(const NcclTable& table, const NcclGroup& group, Collective collective, Bytes size)
      : table_(table), group_(group), collective_(collective), size_(static_cast<double>(size.count())) {}

  [[nodiscard]] NcclChoice fastest() const {
    NcclChoice best{.seconds = std::numeric_limits<double>::infinity()};
    const auto consider = [&](NcclChoice choice) {
      const double n = group_.ranks;
      const double moved = ring_passes(collective_) * size_ * (n - 1.0) / n;
      choice.seconds = choice.latency_s + moved / (choice.bandwidth_fraction * group_.bus_bandwidth);
      if (choice.seconds < best.seconds) best = choice;
    };
    for (const NcclProtocol protocol : {NcclProtocol::ll, NcclProtocol::ll128, NcclProtocol::simple}) {
      consider(ring(protocol));
      if (collective_ == Collective::all_reduce && group_.nodes > 1) consider(tree(protocol));
    }
    if (collective_ != Collective::all_reduce && group_.nodes == group_.ranks) consider(pat());
    return best;
  }

 private:
  [[nodiscard]] NcclChoice ring(NcclProtocol protocol) const {
    const auto p = static_cast<std::size_t>(protocol);
    double in_node = table_.ring_hop_in_node_s[p];
    if (protocol == NcclProtocol::ll && group_.nodes > 1) in_node *= table_.ll_multi_node_hop_factor;
    const double hops =
        (group_.ranks - group_.nodes) * in_node + (group_.nodes - 1) * table_.ring_hop_between_nodes_s[p];
    double fraction = 1.0;
    if (protocol == NcclProtocol::ll) fraction = std::min(ll_fraction, ll_cap());
    if (protocol == NcclProtocol::ll128)
      fraction = std::min(table_.ll128_fraction,
                          table_.channels * table_.ll128_channel_bandwidth / group_.bus_bandwidth);
    return {.algorithm = NcclAlgorithm::ring,
            .protocol = protocol,
            .latency_s = table_.ring_base_s[p] + ring_passes(collective_) * hops,
            .bandwidth_fraction = fraction};
  }

  [[nodiscard]] NcclChoice tree(NcclProtocol protocol) const {
    const auto p = static_cast<std::size_t>(protocol);
    double in_node = table_.tree_hop_in_node_s[p];
    if (protocol == NcclProtocol::ll) in_node *= table_.ll_multi_node_hop_factor;
    const int neighbours = group_.ranks / group_.nodes - 1;  // in a node
    const double depth = neighbours * in_node + log2_of(group_.nodes) * table_.tree_hop_between_nodes_s[p];
    double fraction = table_.tree_fraction;
    if (protocol == NcclProtocol::ll) fraction = std::min(tree_ll_fraction, ll_cap());
    if (protocol == NcclProtocol::ll128) fraction *= table_.ll128_fraction;
    return {.algorithm = NcclAlgorithm::tree,
            .protocol = protocol,
            .latency_s = table_.tree_base_s[p] + 2.0 * depth,
            .bandwidth_fraction = fraction};
  }

  [[nodiscard]] NcclChoice pat() const {
    const auto p = static_cast<std::size_t>(NcclProtocol::simple);
    return {.algorithm = NcclAlgorithm::pat,
            .protocol = NcclProtocol::simple,
            .latency_s = table_.pat_base_s +
                         log2_of(group_.nodes) * table_.ring_hop_between_nodes_s[p] / table_.pat_log_divisor +
                         group_.ranks * table_.pat_rank_s,
            .bandwidth_fraction = table_.pat_fraction};
  }

  [[nodiscard]] double ll_cap() const {
    const auto scale = static_cast<std::size_t>(std::min(group_.nodes, 3) - 1);
    return table_.ll_max_bandwidth[scale] / group_.bus_bandwidth;
  }

  const NcclTable& table_;
  const NcclGroup& group_;
  Collective collective_;
  double size_;
};

}  // namespace

NcclChoice choose_nccl(const NcclTable& table, const NcclGroup& group, Collective collective, Bytes size) {
  SHARDBENCH_ASSERT(group.ranks > 1 && group.nodes >= 1 && group.nodes <= group.ranks);
  SHARDBENCH_ASSERT(group.bus_bandwidth > 0.0);
  return Tuner(table, group, collective, size).fastest();
}

std::string_view name_of(NcclProtocol protocol) {
  constexpr std::array<std::string_view, nccl_protocols> names = {"LL", "LL128", "Simple"};
  return names[static_cast<std::size_t>(protocol)];
}

std::string_view name_of(NcclAlgorithm algorithm) {
  constexpr std::array<std::string_view, 3> names = {"ring", "tree", "PAT"};
  return names[static_cast<std::size_t>(algorithm)];
}

}  // namespace shardbench
