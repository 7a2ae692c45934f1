#include "src/comm/plan/plan_world.hpp"

#include <algorithm>
#include <utility>

#include "src/comm/nodes.hpp"
#include "src/comm/schedule.hpp"
#include "src/comm/scheduled_communicator.hpp"
#include "src/errors.hpp"

namespace shardbench {
namespace {

class PlannedCollective final : public PendingCollective {
 public:
  PlannedCollective(BufferRef buffer, ScheduleScratch scratch, Algorithm algorithm, std::optional<Bytes> sent)
      : buffer_(std::move(buffer)), scratch_(std::move(scratch)), algorithm_(algorithm), sent_(sent) {}

  void wait() override {}
  [[nodiscard]] Instant began() const override { return {}; }
  [[nodiscard]] Instant ended() const override { return {}; }
  [[nodiscard]] Algorithm algorithm() const override { return algorithm_; }
  [[nodiscard]] std::optional<Bytes> sent() const override { return sent_; }

 private:
  BufferRef buffer_;
  ScheduleScratch scratch_;  // accounted for as long as the real collective holds it
  Algorithm algorithm_;
  std::optional<Bytes> sent_;
};

class PlanCommunicator final : public Communicator {
 public:
  PlanCommunicator(int rank, int size, ScheduleChoice choice, Memory& memory)
      : rank_(rank), size_(size), choice_(choice), memory_(memory) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  Pending start(Collective collective, BufferRef buffer, Reduction /*reduction*/) override {
    ScheduleRequest request{.collective = collective,
                            .algorithm = choice_.algorithm,
                            .dtype = buffer->dtype(),
                            .size = buffer->elements(),
                            .ranks = size_,
                            .rank = rank_,
                            .node_size = choice_.node_size};
    SHARDBENCH_ASSERT(collective == Collective::all_reduce || request.size.count() % size_ == 0);
    request.algorithm = resolve(choice_.algorithm, request);
    if (request.algorithm == Algorithm::native)
      return std::make_unique<PlannedCollective>(std::move(buffer), ScheduleScratch{}, Algorithm::native,
                                                 std::nullopt);
    if (is_modelled(request.algorithm))
      return std::make_unique<PlannedCollective>(
          std::move(buffer), ScheduleScratch{}, request.algorithm,
          bytes_of(request.dtype, ring_share(collective, request.size, size_, rank_)));
    const Schedule schedule = make_schedule(request);
    return std::make_unique<PlannedCollective>(
        std::move(buffer), allocate_scratch(schedule, request.dtype, memory_, Backing::none),
        request.algorithm, bytes_of(request.dtype, schedule.sent()));
  }

 private:
  int rank_;
  int size_;
  ScheduleChoice choice_;
  Memory& memory_;
};

/// Refuses to talk: a plan must not depend on what other ranks say.
class SilentChannel final : public ControlChannel {
 public:
  SilentChannel(int rank, int size) : rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void send(int /*to*/, std::span<const std::byte> /*message*/) override { refuse(); }
  std::vector<std::byte> receive(int /*from*/) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw InternalError("a planned rank has nobody to talk to"); }
  int rank_;
  int size_;
};

class PlanWorld final : public World {
 public:
  PlanWorld(int ranks, int rank, const WorldSettings& settings, Memory& memory)
      : algorithm_(settings.algorithm),
        memory_(memory),
        channel_(rank, ranks),
        nodes_(equal_nodes(ranks, settings.ranks_per_node.value_or(ranks))) {}

  [[nodiscard]] int rank() const override { return channel_.rank(); }
  [[nodiscard]] int size() const override { return channel_.size(); }
  [[nodiscard]] double now() const override { return 0.0; }
  void imitate_compute(double /*seconds*/) override {}
  void poll() override {}
  void check_settings() const override {}
  ControlChannel& control() override { return channel_; }

  std::unique_ptr<Communicator> communicator(std::span<const int> members) override {
    const auto position = std::find(members.begin(), members.end(), rank()) - members.begin();
    const std::vector<int> nodes = nodes_of(members, nodes_);
    return std::make_unique<PlanCommunicator>(
        static_cast<int>(position), static_cast<int>(members.size()),
        ScheduleChoice{.algorithm = algorithm_, .node_size = node_size_of(nodes).value_or(1)}, memory_);
  }

  [[nodiscard]] Placement placement() const override { return {}; }
  [[nodiscard]] const std::vector<int>& nodes() const override { return nodes_; }
  [[nodiscard]] bool simulated() const override { return false; }
  [[nodiscard]] const Hardware* hardware() const override { return nullptr; }
  [[nodiscard]] std::string library() const override { return "none (plan)"; }
  [[nodiscard]] std::string wait_policy() const override { return "none (plan)"; }
  std::unique_ptr<Vote> vote() override { throw InternalError("a planned rank has nobody to vote with"); }
  [[nodiscard]] Activity& activity() const override { return activity_; }
  void leave() override {}
  void abort(int exit_code) override {
    throw InternalError(fmt::format("a plan aborted with code {}", exit_code));
  }

 private:
  Algorithm algorithm_;
  Memory& memory_;
  mutable Activity activity_;
  SilentChannel channel_;
  std::vector<int> nodes_;
};

}  // namespace

std::unique_ptr<World> make_plan_world(int ranks, int rank, const WorldSettings& settings, Memory& memory) {
  return std::make_unique<PlanWorld>(ranks, rank, settings, memory);
}

}  // namespace shardbench
