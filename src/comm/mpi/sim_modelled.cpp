#include "src/comm/mpi/sim_modelled.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "src/comm/mpi/sim_fabric.hpp"
#include "src/comm/reduction.hpp"
#include "src/comm/schedule.hpp"
#include "src/errors.hpp"

namespace shardbench::mpi {
namespace {

namespace sg4 = simgrid::s4u;

constexpr std::size_t flows_per_courier = 64;

double now() { return sg4::Engine::get_clock(); }

/// Elements [range] of every buffer, combined in rank order in fp32 and rounded once, into `target`.
void reduce_into(std::span<Buffer* const> buffers, Range range, Reduction reduction, Buffer& target) {
  std::vector<float> sum(static_cast<std::size_t>(range.count));
  const auto with_values = [&](const Buffer& buffer, auto&& use) {
    std::byte* data = buffer.data() + range.begin * size_of(buffer.dtype());
    if (buffer.dtype() == DType::fp32) {
      use(reinterpret_cast<float*>(data));
    } else {
      use(reinterpret_cast<bodies::BFloat16*>(data));
    }
  };
  with_values(*buffers.front(), [&](auto* values) {
    for (std::int64_t i = 0; i < range.count; ++i) bodies::scaled_copy(i, sum.data(), values, 1.0F);
  });
  for (const Buffer* buffer : buffers.subspan(1))
    with_values(*buffer, [&](auto* values) { combine(reduction, sum.data(), values, range.count); });
  with_values(target, [&](auto* values) {
    finish(reduction, static_cast<int>(buffers.size()), values, sum.data(), range.count);
  });
}

void copy_range(const Buffer& to, const Buffer& from, Range range) {
  const std::int64_t width = size_of(to.dtype());
  std::memcpy(to.data() + range.begin * width, from.data() + range.begin * width,
              static_cast<std::size_t>(range.count * width));
}

/// A member's handle.
class ModelledPending final : public PendingCollective {
 public:
  struct Facts {
    Algorithm algorithm;
    Bytes sent;
  };
  ModelledPending(std::shared_ptr<ModelledOperation> operation, BufferRef buffer, Facts facts)
      : operation_(std::move(operation)), buffer_(std::move(buffer)), facts_(facts), issue_s_(now()) {}

  void wait() override {
    if (operation_) operation_->wait();
  }
  [[nodiscard]] Instant began() const override {
    return {operation_ ? std::max(issue_s_, operation_->available_s()) : issue_s_};
  }
  [[nodiscard]] Instant ended() const override { return {operation_ ? operation_->end_s() : issue_s_}; }
  [[nodiscard]] Algorithm algorithm() const override { return facts_.algorithm; }
  [[nodiscard]] std::optional<Bytes> sent() const override { return facts_.sent; }

 private:
  std::shared_ptr<ModelledOperation> operation_;  ///< null in a group of one
  BufferRef buffer_;
  Facts facts_;
  double issue_s_;
};

class ModelledCommunicator final : public Communicator {
 public:
  ModelledCommunicator(std::shared_ptr<ModelledGroup> group, int rank, int size, Algorithm algorithm)
      : group_(std::move(group)), rank_(rank), size_(size), algorithm_(algorithm) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  Pending start(Collective collective, BufferRef buffer, Reduction reduction) override {
    SHARDBENCH_ASSERT(collective == Collective::all_reduce || buffer->elements().count() % size_ == 0);
    if (size_ == 1)
      return std::make_unique<ModelledPending>(
          nullptr, std::move(buffer),
          ModelledPending::Facts{.algorithm = Algorithm::local, .sent = Bytes(0)});
    const Bytes sent = bytes_of(buffer->dtype(), ring_share(collective, buffer->elements(), size_, rank_));
    auto operation = group_->issue(issued_++, rank_, collective, reduction, *buffer);
    return std::make_unique<ModelledPending>(std::move(operation), std::move(buffer),
                                             ModelledPending::Facts{.algorithm = algorithm_, .sent = sent});
  }

 private:
  std::shared_ptr<ModelledGroup> group_;
  int rank_;
  int size_;
  Algorithm algorithm_;
  std::size_t issued_ = 0;
};

}  // namespace

void ModelledOperation::wait() {
  if (done_) return;
  ++waiting_;
  ended_->acquire();
}

ModelledGroup::ModelledGroup(std::shared_ptr<Fabric> fabric, std::span<const int> members,
                             Algorithm algorithm)
    : fabric_(std::move(fabric)), members_(members.begin(), members.end()), algorithm_(algorithm) {
  if (members_.size() == 1) return;
  if (algorithm == Algorithm::coarse) {
    lay_one_ring();
  } else {
    lay_ring_per_nic();
  }
  std::sort(links_.begin(), links_.end());
  links_.erase(std::unique(links_.begin(), links_.end()), links_.end());
}

void ModelledGroup::begin() {
  const auto start = [](auto body) {
    sg4::Actor::create("stream", sg4::this_actor::get_host(), std::move(body))->daemonize();
  };
  const std::span<const Flow> flows = flows_;
  for (std::size_t first = 0; first < flows.size(); first += flows_per_courier)
    couriers_.push_back({.flows = flows.subspan(first, std::min(flows_per_courier, flows.size() - first))});
  for (const Courier& courier : couriers_)
    start([self = shared_from_this(), &courier] { self->deliver(courier); });
  if (members_.size() > 1) start([self = shared_from_this()] { self->run(); });
}

double ModelledGroup::add_flow(const Flow& flow) {
  double latency = 0.0;
  flow.from->route_to(flow.to, links_, &latency);  // appends
  flows_.push_back(flow);
  first_latency_s_ = std::max(first_latency_s_, latency);
  return latency;
}

void ModelledGroup::lay_one_ring() {
  double total = 0.0;
  double shortest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    sg4::Host* from = fabric_->host(members_[i]);
    sg4::Host* to = fabric_->host(members_[(i + 1) % members_.size()]);
    const double latency = add_flow({.from = from, .to = to});
    total += latency;
    shortest = std::min(shortest, latency);
  }
  ring_latency_s_ = total - shortest;
}

void ModelledGroup::lay_ring_per_nic() {
  const SimulatedMachine& machine = fabric_->machine().value();
  std::vector<std::vector<int>> nodes;  // members by node, both in group order
  std::map<int, std::size_t> index;
  for (const int member : members_) {
    const int node = fabric_->nodes()[static_cast<std::size_t>(member)];
    const auto [place, is_new] = index.try_emplace(node, nodes.size());
    if (is_new) nodes.emplace_back();
    nodes[place->second].push_back(member);
  }
  const std::size_t rings = std::min_element(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
                              return a.size() < b.size();
                            })->size();

  // Ring r begins a node one GPU earlier than the node before, namely at the GPU through whose NIC it left
  // that one: it stays on a rail, and each NIC of a node has one ring coming in and one going out.
  std::map<std::pair<int, int>, double> shares;
  for (std::size_t ring = 0; ring < rings; ++ring) {
    std::vector<int> order;
    order.reserve(members_.size());
    for (std::size_t k = 0; k < nodes.size(); ++k) {
      const std::size_t count = nodes[k].size();
      const std::size_t first = (ring + count - k % count) % count;
      for (std::size_t i = 0; i < count; ++i) order.push_back(nodes[k][(first + i) % count]);
    }
    for (std::size_t i = 0; i < order.size(); ++i)
      shares[{order[i], order[(i + 1) % order.size()]}] += 1.0 / static_cast<double>(rings);
  }

  std::map<int, double> in_node;  // of what each member sends
  std::map<int, double> between_nodes;
  for (const auto& [pair, share] : shares) {
    const auto [from, to] = pair;
    const auto node_of = [&](int rank) { return fabric_->nodes()[static_cast<std::size_t>(rank)]; };
    const bool inside = node_of(from) == node_of(to);
    add_flow({.from = fabric_->host(from),
              .to = fabric_->host(to),
              .share = share,
              .efficiency = inside ? machine.gpu_link_efficiency : machine.network_efficiency});
    (inside ? in_node : between_nodes)[from] += share;
  }
  double bandwidth = std::numeric_limits<double>::infinity();
  for (const auto& [rank, share] : in_node)
    bandwidth = std::min(bandwidth, machine.gpu_link_bandwidth * machine.gpu_link_efficiency / share);
  for (const auto& [rank, share] : between_nodes)
    bandwidth = std::min(bandwidth, machine.nic_bandwidth * machine.network_efficiency / share);
  nccl_ = {.ranks = static_cast<int>(members_.size()),
           .nodes = static_cast<int>(nodes.size()),
           .bus_bandwidth = bandwidth};
}

std::shared_ptr<ModelledOperation> ModelledGroup::issue(std::size_t index, int group_rank,
                                                        Collective collective, Reduction reduction,
                                                        Buffer& buffer) {
  const std::size_t position = index - first_index_;
  if (position == queue_.size())
    queue_.push_back(
        std::make_shared<ModelledOperation>(collective, reduction, buffer.dtype(), buffer.elements()));
  std::shared_ptr<ModelledOperation> operation = queue_.at(position);
  if (operation->collective_ != collective || operation->dtype_ != buffer.dtype() ||
      operation->size_ != buffer.elements())
    throw InternalError(
        fmt::format("members of a group issue different collectives: {} of {} elements here, {} of {} "
                    "elsewhere",
                    name_of(collective), buffer.elements().count(), name_of(operation->collective_),
                    operation->size_.count()));
  if (buffer.holds_values()) {
    operation->buffers_.resize(members_.size());
    operation->buffers_[static_cast<std::size_t>(group_rank)] = &buffer;
  }
  // Each member issues in order, so of two collectives the earlier is complete first.
  if (++operation->arrived_ == static_cast<int>(members_.size())) all_arrived_->release();
  return operation;
}

void ModelledGroup::run() {
  for (;;) {
    all_arrived_->acquire();
    const std::shared_ptr<ModelledOperation> operation = queue_.front();
    operation->available_s_ = last_end_s_;
    for (const int member : members_) fabric_->add_load(member, 1);
    carry_out(*operation);
    for (const int member : members_) fabric_->add_load(member, -1);
    combine(*operation);
    last_end_s_ = operation->end_s_ = now();
    operation->done_ = true;
    queue_.pop_front();
    ++first_index_;
    for (int i = 0; i < operation->waiting_; ++i) operation->ended_->release();
  }
}

void ModelledGroup::carry_out(const ModelledOperation& operation) {
  const Cost cost = cost_of(operation);
  if (const double beyond = cost.latency_s - first_latency_s_; beyond > 0.0)
    sg4::this_actor::sleep_for(beyond);
  const auto n = static_cast<double>(members_.size());
  const double sent = ring_passes(operation.collective_) *
                      static_cast<double>(bytes_of(operation.dtype_, operation.size_).count()) * (n - 1.0) /
                      n;
  transfer(sent / cost.bandwidth_fraction);
}

void ModelledGroup::transfer(double bytes_of_ring) {
  auto& transferring = fabric_->transferring();
  sharing_ = Sharing::alone;
  for (ModelledGroup* other : transferring)
    if (shares_links_with(*other)) {
      sharing_ = Sharing::shared;
      other->disturb();
    }
  transferring.push_back(this);
  const auto known = seconds_alone_.find(bytes_of_ring);
  if (sharing_ == Sharing::alone && known != seconds_alone_.end()) {
    transfer_alone(bytes_of_ring, known->second);
  } else {
    const double begin = now();
    send_flows(bytes_of_ring);
    if (sharing_ == Sharing::alone) seconds_alone_[bytes_of_ring] = now() - begin;
  }
  std::erase(transferring, this);
}

void ModelledGroup::transfer_alone(double bytes_of_ring, double seconds) {
  const double begin = now();
  sharing_ = Sharing::looked_up;
  if (disturbed_->acquire_timeout(seconds)) return;  // true: the time has passed
  // Messages of what is left: alone, they would take exactly the time that is left.
  const double left_s = seconds - (now() - begin);
  if (left_s > first_latency_s_) {
    send_flows(bytes_of_ring * (left_s - first_latency_s_) / (seconds - first_latency_s_));
  } else if (left_s > 0.0) {
    sg4::this_actor::sleep_for(left_s);
  }
}

void ModelledGroup::disturb() {
  if (std::exchange(sharing_, Sharing::shared) == Sharing::looked_up) disturbed_->release();
}

bool ModelledGroup::shares_links_with(const ModelledGroup& other) const {
  auto a = links_.begin();
  auto b = other.links_.begin();
  while (a != links_.end() && b != other.links_.end()) {
    if (*a == *b) return true;
    *a < *b ? ++a : ++b;
  }
  return false;
}

void ModelledGroup::send_flows(double bytes_of_ring) {
  bytes_of_ring_ = bytes_of_ring;
  delivering_ = couriers_.size();
  for (const Courier& courier : couriers_) courier.go->release();
  delivered_->acquire();
}

void ModelledGroup::deliver(const Courier& courier) {
  std::vector<sg4::CommPtr> messages;
  for (;;) {
    courier.go->acquire();
    for (const Flow& flow : courier.flows) {
      const double bytes = bytes_of_ring_ * flow.share / flow.efficiency;
      messages.push_back(sg4::Comm::sendto_async(
          flow.from, flow.to, std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(bytes)))));
    }
    sg4::Comm::wait_all(messages);
    messages.clear();
    if (--delivering_ == 0) delivered_->release();
  }
}

ModelledGroup::Cost ModelledGroup::cost_of(const ModelledOperation& operation) const {
  if (algorithm_ == Algorithm::coarse)
    return {.latency_s = ring_passes(operation.collective_) * ring_latency_s_};
  const NcclChoice choice = choose_nccl(fabric_->machine()->nccl, nccl_, operation.collective_,
                                        bytes_of(operation.dtype_, operation.size_));
  return {.latency_s = choice.latency_s, .bandwidth_fraction = choice.bandwidth_fraction};
}

/// What the collective would have computed, where there is something to compute with.
void ModelledGroup::combine(const ModelledOperation& operation) const {
  const std::vector<Buffer*>& buffers = operation.buffers_;
  if (buffers.empty()) return;
  const auto n = static_cast<int>(buffers.size());
  if (operation.collective_ == Collective::all_reduce) {
    const Range all{.begin = 0, .count = operation.size_.count()};
    reduce_into(buffers, all, operation.reduction_, *buffers.front());
    for (std::size_t i = 1; i < buffers.size(); ++i) copy_range(*buffers[i], *buffers.front(), all);
    return;
  }
  for (int owner = 0; owner < n; ++owner) {
    const Range block = block_range(operation.size_, n, owner);
    Buffer& own = *buffers[static_cast<std::size_t>(owner)];
    if (operation.collective_ == Collective::reduce_scatter) {
      reduce_into(buffers, block, operation.reduction_, own);
    } else {
      for (Buffer* buffer : buffers)
        if (buffer != &own) copy_range(*buffer, own, block);
    }
  }
}

std::unique_ptr<Communicator> make_modelled_communicator(std::shared_ptr<ModelledGroup> group, int rank,
                                                         int size, Algorithm algorithm) {
  return std::make_unique<ModelledCommunicator>(std::move(group), rank, size, algorithm);
}

}  // namespace shardbench::mpi
