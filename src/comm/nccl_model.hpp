// How long NCCL's collectives take, after its own cost model (NCCL 2.27, src/graph/tuning.cc, whose figures a
// platform's description repeats): for each algorithm and protocol a latency and a bus bandwidth, of which
// the fastest is chosen. Pure functions.
//
// With N ranks on m nodes, and hops that cost a_i inside a node and a_n between nodes:
//   ring   base + (N-m) a_i + (m-1) a_n for all-gather and reduce-scatter, for all-reduce twice the hops
//   tree   base + 2 ((N/m - 1) a_i + log2(m) a_n); all-reduce on several nodes only
//   PAT    base + log2(m) a_n / 3.5 + 2.8 us N; all-gather and reduce-scatter with one rank a node only
// Not modelled: NVLS, CollNet, the tuner's correction factors for medium sizes.
#pragma once

#include <array>
#include <string>

#include "src/comm/communicator.hpp"

namespace shardbench {

enum class NcclProtocol { ll, ll128, simple };
constexpr std::size_t nccl_protocols = 3;
enum class NcclAlgorithm { ring, tree, pat };
std::string_view name_of(NcclProtocol protocol);
std::string_view name_of(NcclAlgorithm algorithm);

/// A machine as NCCL's tuner sees it. Seconds and bytes/s; arrays go by protocol.
struct NcclTable {
  using PerProtocol = std::array<double, nccl_protocols>;

  std::string version;  ///< of NCCL, where the figures are from
  int channels = 1;
  PerProtocol ring_base_s{};
  PerProtocol tree_base_s{};
  double pat_base_s = 0.0;
  PerProtocol ring_hop_in_node_s{};
  PerProtocol tree_hop_in_node_s{};
  PerProtocol ring_hop_between_nodes_s{};
  PerProtocol tree_hop_between_nodes_s{};
  double ll_multi_node_hop_factor = 1.0;     ///< on hops inside a node, when there are several nodes
  std::array<double, 3> ll_max_bandwidth{};  ///< by nodes: 1, 2, more
  double ll128_fraction = 1.0;
  double ll128_channel_bandwidth = 0.0;
  double tree_fraction = 1.0;
  double pat_fraction = 1.0;
  double pat_log_divisor = 1.0;
  double pat_rank_s = 0.0;
};

/// A group of ranks: N on m nodes, and the bandwidth at which a ring over them moves data (bus bandwidth as
/// nccl-tests defines it) when every transfer were all data.
struct NcclGroup {
  int ranks = 1;
  int nodes = 1;
  double bus_bandwidth = 0.0;
};

struct NcclChoice {
  NcclAlgorithm algorithm = NcclAlgorithm::ring;
  NcclProtocol protocol = NcclProtocol::simple;
  double latency_s = 0.0;
  /// Of the group's bus bandwidth: the share that this protocol and algorithm reach.
  double bandwidth_fraction = 1.0;
  /// The latency and the transfer.
  double seconds = 0.0;
};

/// The fastest way, as the tuner would choose it. `size` is S as nccl-tests defines it.
NcclChoice choose_nccl(const NcclTable& table, const NcclGroup& group, Collective collective, Bytes size);

}  // namespace shardbench
