// Collectives as pure data: which range goes to whom in which step. No communication happens here.
//
// With n ranks, S elements in n blocks and B bytes/s, latency alpha a message:
//   direct    n-1 pairwise rounds; S(n-1)/n elements sent; sums in fp32 and rounds once
//   ring      (n-1) alpha + (n-1)/n S/B for all-gather and reduce-scatter, twice that for all-reduce
//             (Patarasuk & Yuan, JPDC 2009)
//   doubling  ceil(log2 n) alpha + (n-1)/n S/B for any n: Bruck's circulant graph (Bruck et al., IEEE TPDS
//             1997), reduce-scatter being its mirror image (Träff, EuroMPI 2023)
//   hierarchical  n = m nodes of g ranks, all-gather: a ring between the nodes among ranks of one local
//             index, (m-1) alpha_nic + (m-1)/m S/(g B_nic), then a ring in each node of sets of m blocks,
//             (g-1) alpha_node + (g-1)/g S/B_node; reduce-scatter is the mirror image, the node first.
//             S(n-1)/n elements sent, of which only (m-1) S/n leave the node
#pragma once

#include <vector>

#include "src/comm/communicator.hpp"

namespace shardbench {

/// Elements [begin, begin + count) of the collective's buffer.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  bool operator==(const Range&) const = default;
};

struct Transfer {
  int peer = 0;
  Range range;
};

enum class OnReceive {
  store,
  add,          ///< into the buffer, rounding to its dtype each time
  add_in_fp32,  ///< into the chain's fp32 accumulator, which is rounded into the buffer once, after the last
                ///< such step
};

/// Messages that may all be in flight at once; the next step starts when they are done and added.
struct Step {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  OnReceive on_receive = OnReceive::store;
};

/// Steps in sequence. Chains of one schedule are independent (segments of the same pattern), so that one
/// chain's additions overlap another's transfers.
struct Chain {
  std::vector<Step> steps;
  /// This rank's share of the result: complete after the last adding step, and what add_in_fp32 sums into.
  /// Empty without a reduction.
  Range own;
};

struct Schedule {
  std::vector<Chain> chains;

  [[nodiscard]] Elements sent() const;
  /// Steps one after another, with as many chains at once as run at once.
  [[nodiscard]] std::int64_t consecutive_steps() const;
  /// Elements of the largest receive that must be added, i.e. the staging space that one running chain needs.
  [[nodiscard]] Elements staging() const;
  /// fp32 values of the largest accumulator; 0 without add_in_fp32.
  [[nodiscard]] Elements accumulator() const;
};

/// Where block b of n begins; blocks differ by at most one element where n does not divide.
Range block_range(Elements size, int n, int block);

struct ScheduleRequest {
  Collective collective = Collective::all_gather;
  Algorithm algorithm = Algorithm::direct;  ///< direct, ring, doubling or hierarchical
  DType dtype = DType::fp32;
  Elements size;  ///< of the whole buffer
  int ranks = 1;
  int rank = 0;
  /// Ranks of each node, consecutive in the group; divides `ranks`. Only hierarchical asks.
  int node_size = 1;
};

/// The schedule of one rank; all ranks' schedules match message for message.
Schedule make_schedule(const ScheduleRequest& request);

/// How often a ring moves (ranks-1)/ranks of a collective: once, for an all-reduce twice.
constexpr int ring_passes(Collective collective) { return collective == Collective::all_reduce ? 2 : 1; }

/// What `rank` sends for a ring over `ranks` of a collective of `size` elements: all blocks but one, for an
/// all-reduce twice. A reduce-scatter keeps its own block; an all-gather has no use for passing on its
/// successor's.
Elements ring_share(Collective collective, Elements size, int ranks, int rank);

/// What `automatic` stands for: direct up to 8 ranks (fewest roundings), then
/// doubling while a block is small (latency), else ring.
Algorithm resolve(Algorithm algorithm, const ScheduleRequest& request);

/// How many chains run at once.
constexpr std::size_t concurrent_chains = 4;

/// The work space that a schedule needs while it runs: staging for each running chain, then its accumulators.
struct ScheduleScratch {
  BufferRef staging;      ///< in the collective's dtype; concurrent_chains pieces (or fewer chains)
  BufferRef accumulator;  ///< fp32, likewise
};
ScheduleScratch allocate_scratch(const Schedule& schedule, DType dtype, Memory& memory, Backing backing);

}  // namespace shardbench
