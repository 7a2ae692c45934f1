#include "src/comm/schedule.hpp"

#include <algorithm>
#include <array>

#include "src/errors.hpp"

namespace shardbench {
namespace {

// Blocks are cut into segments of this size, each a chain of its own. Large enough to amortise a message,
// small enough that adding one segment (about 0.1 ms) hides behind the transfer of the next.
constexpr std::int64_t segment_bytes = std::int64_t{1} << 20;

// Up to here n-1 pairwise rounds cost little more latency than a ring's, and bf16 sums are rounded once.
constexpr int direct_ranks = 8;

// Below this block size latency decides: at 10 us a hop and 10 GB/s, 32 KiB travel in a third of a hop's
// latency.
constexpr std::int64_t small_block_bytes = std::int64_t{32} << 10;

/// The pattern of one schedule: block boundaries, and the segment of each block that a chain handles.
class Pattern {
 public:
  Pattern(const ScheduleRequest& request, std::int64_t segments) : request_(request), segments_(segments) {}

  [[nodiscard]] int rank(int offset) const {
    return ((request_.rank + offset) % request_.ranks + request_.ranks) % request_.ranks;
  }

  [[nodiscard]] Range segment(int block_offset, std::int64_t segment) const {
    return segment_of(rank(block_offset), segment);
  }

  /// The same of the block that belongs to `owner`.
  [[nodiscard]] Range segment_of(int owner, std::int64_t segment) const {
    const Range block = block_range(request_.size, request_.ranks, owner);
    const std::int64_t begin = block.count * segment / segments_;
    const std::int64_t end = block.count * (segment + 1) / segments_;
    return {block.begin + begin, end - begin};
  }

  /// `count` consecutive blocks from this rank's block + `first` on, around the end of the buffer if need be.
  [[nodiscard]] std::vector<Range> circular(int first, int count) const {
    std::vector<Range> ranges;
    for (int i = 0; i < count; ++i) {
      const Range block = segment(first + i, 0);
      if (!ranges.empty() && ranges.back().begin + ranges.back().count == block.begin) {
        ranges.back().count += block.count;
      } else {
        ranges.push_back(block);
      }
    }
    return ranges;
  }

 private:
  const ScheduleRequest& request_;
  std::int64_t segments_;
};

void add_transfer(std::vector<Transfer>& transfers, int peer, Range range) {
  if (range.count > 0) transfers.push_back({peer, range});  // both sides know the size, so neither posts it
}

Step exchange(int to, Range send, int from, Range receive, OnReceive on_receive) {
  Step step{.sends = {}, .receives = {}, .on_receive = on_receive};
  add_transfer(step.sends, to, send);
  add_transfer(step.receives, from, receive);
  return step;
}

OnReceive direct_addition(DType dtype) {
  return dtype == DType::fp32 ? OnReceive::add : OnReceive::add_in_fp32;
}

void direct_reduce_scatter(Chain& chain, const Pattern& p, const ScheduleRequest& r, std::int64_t segment) {
  for (int i = 1; i < r.ranks; ++i)
    chain.steps.push_back(exchange(p.rank(i), p.segment(i, segment), p.rank(-i), p.segment(0, segment),
                                   direct_addition(r.dtype)));
}

void direct_all_gather(Chain& chain, const Pattern& p, const ScheduleRequest& r, std::int64_t segment) {
  for (int i = 1; i < r.ranks; ++i)
    chain.steps.push_back(
        exchange(p.rank(i), p.segment(0, segment), p.rank(-i), p.segment(-i, segment), OnReceive::store));
}

void ring_reduce_scatter(Chain& chain, const Pattern& p, const ScheduleRequest& r, std::int64_t segment) {
  for (int s = 0; s < r.ranks - 1; ++s)
    chain.steps.push_back(exchange(p.rank(1), p.segment(-s - 1, segment), p.rank(-1),
                                   p.segment(-s - 2, segment), OnReceive::add));
}

void ring_all_gather(Chain& chain, const Pattern& p, const ScheduleRequest& r, std::int64_t segment) {
  for (int s = 0; s < r.ranks - 1; ++s)
    chain.steps.push_back(exchange(p.rank(1), p.segment(-s, segment), p.rank(-1), p.segment(-s - 1, segment),
                                   OnReceive::store));
}

/// Round `distance` of Bruck's all-gather: this rank, holding `distance` blocks from its own on, doubles
/// them.
Step doubling_step(const Pattern& p, int distance, int ranks, Collective collective) {
  const int count = std::min(distance, ranks - distance);
  Step step;
  const int lower = p.rank(-distance);
  const int upper = p.rank(distance);
  if (collective == Collective::all_gather) {
    for (const Range& range : p.circular(0, count)) add_transfer(step.sends, lower, range);
    for (const Range& range : p.circular(distance, count)) add_transfer(step.receives, upper, range);
  } else {  // the mirror image: what was received is now sent, and what was sent is added into
    for (const Range& range : p.circular(distance, count)) add_transfer(step.sends, upper, range);
    for (const Range& range : p.circular(0, count)) add_transfer(step.receives, lower, range);
    step.on_receive = OnReceive::add;
  }
  return step;
}

void doubling_all_gather(Chain& chain, const Pattern& p, const ScheduleRequest& r) {
  for (int distance = 1; distance < r.ranks; distance *= 2)
    chain.steps.push_back(doubling_step(p, distance, r.ranks, Collective::all_gather));
}

void doubling_reduce_scatter(Chain& chain, const Pattern& p, const ScheduleRequest& r) {
  int distance = 1;
  while (distance < r.ranks) distance *= 2;
  while ((distance /= 2) >= 1)
    chain.steps.push_back(doubling_step(p, distance, r.ranks, Collective::reduce_scatter));
}

/// Nodes of `size` ranks each; this rank's node and its index there. Neighbours are taken around the ring.
class Nodes {
 public:
  explicit Nodes(const ScheduleRequest& r)
      : size_(r.node_size), count_(r.ranks / r.node_size), node_(r.rank / size_), local_(r.rank % size_) {}

  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] int count() const { return count_; }
  /// The rank of this rank's local index, `offset` nodes on.
  [[nodiscard]] int across(int offset) const { return around(node_ + offset, count_) * size_ + local_; }
  /// The rank of this rank's node, `offset` local indices on.
  [[nodiscard]] int within(int offset) const { return node_ * size_ + around(local_ + offset, size_); }
  /// The ranks, one a node, whose local index is `offset` on from this rank's.
  [[nodiscard]] std::vector<int> rail(int offset) const {
    std::vector<int> ranks;
    ranks.reserve(static_cast<std::size_t>(count_));
    for (int node = 0; node < count_; ++node) ranks.push_back(node * size_ + around(local_ + offset, size_));
    return ranks;
  }

 private:
  static int around(int position, int length) { return (position % length + length) % length; }

  int size_;
  int count_;
  int node_;
  int local_;
};

Step exchange_between_nodes(const Nodes& nodes, Range send, Range receive, OnReceive on_receive) {
  return exchange(nodes.across(1), send, nodes.across(-1), receive, on_receive);
}

/// Passes the blocks of one rail on to the next rank of the node, and takes those of another.
Step exchange_in_node(const Pattern& p, const Nodes& nodes, std::int64_t segment, int send_rail,
                      int receive_rail, OnReceive on_receive) {
  Step step{.sends = {}, .receives = {}, .on_receive = on_receive};
  for (const int owner : nodes.rail(send_rail))
    add_transfer(step.sends, nodes.within(1), p.segment_of(owner, segment));
  for (const int owner : nodes.rail(receive_rail))
    add_transfer(step.receives, nodes.within(-1), p.segment_of(owner, segment));
  return step;
}

void hierarchical_all_gather(Chain& chain, const Pattern& p, const ScheduleRequest& r, std::int64_t segment) {
  const Nodes nodes(r);
  for (int s = 0; s < nodes.count() - 1; ++s)
    chain.steps.push_back(exchange_between_nodes(nodes, p.segment_of(nodes.across(-s), segment),
                                                 p.segment_of(nodes.across(-s - 1), segment),
                                                 OnReceive::store));
  for (int s = 0; s < nodes.size() - 1; ++s)
    chain.steps.push_back(exchange_in_node(p, nodes, segment, -s, -s - 1, OnReceive::store));
}

void hierarchical_reduce_scatter(Chain& chain, const Pattern& p, const ScheduleRequest& r,
                                 std::int64_t segment) {
  const Nodes nodes(r);
  for (int s = 0; s < nodes.size() - 1; ++s)
    chain.steps.push_back(exchange_in_node(p, nodes, segment, -s - 1, -s - 2, OnReceive::add));
  for (int s = 0; s < nodes.count() - 1; ++s)
    chain.steps.push_back(exchange_between_nodes(nodes, p.segment_of(nodes.across(-s - 1), segment),
                                                 p.segment_of(nodes.across(-s - 2), segment),
                                                 OnReceive::add));
}

std::int64_t segment_count(const ScheduleRequest& r) {
  if (r.algorithm == Algorithm::doubling)
    return 1;  // its messages are runs of blocks, which segments would tear
  const std::int64_t block = ceil_div(r.size.count(), r.ranks) * size_of(r.dtype);
  return std::max<std::int64_t>(1, ceil_div(block, segment_bytes));
}

}  // namespace

Range block_range(Elements size, int n, int block) {
  // In this order of operations the product stays below 2^63 for every buffer that fits an address space.
  const std::int64_t base = size.count() / n;
  const std::int64_t extra = size.count() % n;
  const std::int64_t begin = block * base + std::min<std::int64_t>(block, extra);
  return {begin, base + (block < extra ? 1 : 0)};
}

Elements Schedule::sent() const {
  Elements total;
  for (const Chain& chain : chains)
    for (const Step& step : chain.steps)
      for (const Transfer& send : step.sends) total += Elements(send.range.count);
  return total;
}

std::int64_t Schedule::consecutive_steps() const {
  std::int64_t longest = 0;
  for (const Chain& chain : chains) longest = std::max(longest, std::ssize(chain.steps));
  return longest * ceil_div(std::ssize(chains), static_cast<std::int64_t>(concurrent_chains));
}

Elements Schedule::staging() const {
  std::int64_t largest = 0;
  for (const Chain& chain : chains)
    for (const Step& step : chain.steps) {
      if (step.on_receive == OnReceive::store) continue;
      std::int64_t received = 0;
      for (const Transfer& receive : step.receives) received += receive.range.count;
      largest = std::max(largest, received);
    }
  return Elements(largest);
}

Elements Schedule::accumulator() const {
  std::int64_t largest = 0;
  for (const Chain& chain : chains)
    for (const Step& step : chain.steps)
      if (step.on_receive == OnReceive::add_in_fp32) largest = std::max(largest, chain.own.count);
  return Elements(largest);
}

Schedule make_schedule(const ScheduleRequest& r) {
  SHARDBENCH_ASSERT(r.ranks >= 1 && r.rank >= 0 && r.rank < r.ranks && r.size >= Elements(0));
  SHARDBENCH_ASSERT(r.algorithm != Algorithm::hierarchical ||
                    (r.node_size >= 1 && r.ranks % r.node_size == 0));
  const std::int64_t segments = segment_count(r);
  const Pattern pattern(r, segments);
  Schedule schedule;
  for (std::int64_t segment = 0; segment < segments; ++segment) {
    Chain chain;
    const bool reduces = r.collective != Collective::all_gather;
    const bool gathers = r.collective != Collective::reduce_scatter;
    if (reduces) chain.own = pattern.segment(0, segment);
    switch (r.algorithm) {
      case Algorithm::direct:
        if (reduces) direct_reduce_scatter(chain, pattern, r, segment);
        if (gathers) direct_all_gather(chain, pattern, r, segment);
        break;
      case Algorithm::ring:
        if (reduces) ring_reduce_scatter(chain, pattern, r, segment);
        if (gathers) ring_all_gather(chain, pattern, r, segment);
        break;
      case Algorithm::doubling:
        if (reduces) doubling_reduce_scatter(chain, pattern, r);
        if (gathers) doubling_all_gather(chain, pattern, r);
        break;
      case Algorithm::hierarchical:
        if (reduces) hierarchical_reduce_scatter(chain, pattern, r, segment);
        if (gathers) hierarchical_all_gather(chain, pattern, r, segment);
        break;
      default:
        SHARDBENCH_ASSERT(r.ranks == 1);  // automatic is resolved before, native is not ours
    }
    schedule.chains.push_back(std::move(chain));
  }
  return schedule;
}

Elements ring_share(Collective collective, Elements size, int ranks, int rank) {
  const Elements scattered = size - Elements(block_range(size, ranks, rank).count);
  const Elements gathered = size - Elements(block_range(size, ranks, (rank + 1) % ranks).count);
  if (collective == Collective::all_reduce) return scattered + gathered;
  return collective == Collective::all_gather ? gathered : scattered;
}

Algorithm resolve(Algorithm algorithm, const ScheduleRequest& r) {
  if (r.ranks == 1) return Algorithm::local;
  if (algorithm != Algorithm::automatic) return algorithm;
  if (r.ranks <= direct_ranks) return Algorithm::direct;
  const std::int64_t block = ceil_div(r.size.count(), r.ranks) * size_of(r.dtype);
  return block < small_block_bytes ? Algorithm::doubling : Algorithm::ring;
}

ScheduleScratch allocate_scratch(const Schedule& schedule, DType dtype, Memory& memory, Backing backing) {
  const auto running = static_cast<std::int64_t>(std::min(schedule.chains.size(), concurrent_chains));
  ScheduleScratch scratch;
  if (schedule.staging() > Elements(0))
    scratch.staging = memory.allocate(Category::workspace, dtype, running * schedule.staging(), backing);
  if (schedule.accumulator() > Elements(0))
    scratch.accumulator =
        memory.allocate(Category::workspace, DType::fp32, running * schedule.accumulator(), backing);
  return scratch;
}

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
  }
  return "";
}

std::string_view name_of(Reduction reduction) {
  constexpr std::array<std::string_view, 5> names = {"sum", "product", "minimum", "maximum", "average"};
  return names[static_cast<std::size_t>(reduction)];
}

std::string_view name_of(Algorithm algorithm) {
  constexpr std::array<std::string_view, 9> names = {"auto",   "direct", "ring",   "doubling", "hierarchical",
                                                     "native", "nccl",   "coarse", "local"};
  return names[static_cast<std::size_t>(algorithm)];
}

}  // namespace shardbench
