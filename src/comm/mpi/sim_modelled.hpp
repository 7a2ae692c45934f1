// Collectives that a simulation models as a whole, not message by message: `nccl` and `coarse`.
//
// A collective begins when every member has issued it and the one before it has ended, so that a late rank
// delays all. Then each member's share travels as one message per link that it uses, and what a ring of N
// ranks waits for beyond that, its latencies, passes as time. It ends for all members at once: the slowest
// link sets a ring's pace.
//
// What a transfer takes that has its links to itself is looked up where it has been simulated before; only
// transfers that share links are simulated each time.
//
//   coarse   one ring in rank order: S(n-1)/n to the next rank, and (n-1) hops' latencies
//   nccl     g rings of S/g over nodes of g ranks, each leaving and entering nodes through a NIC of its own;
//            latency and efficiency after src/comm/nccl_model.hpp
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <simgrid/s4u.hpp>
#include <span>
#include <vector>

#include "src/comm/communicator.hpp"
#include "src/comm/nccl_model.hpp"

namespace shardbench::mpi {

class Fabric;

/// One collective of a group, shared by its members' handles.
class ModelledOperation {
 public:
  ModelledOperation(Collective collective, Reduction reduction, DType dtype, Elements size)
      : collective_(collective), reduction_(reduction), dtype_(dtype), size_(size) {}

  /// Blocks the calling actor until it has ended.
  void wait();
  [[nodiscard]] double available_s() const { return available_s_; }
  [[nodiscard]] double end_s() const { return end_s_; }

 private:
  friend class ModelledGroup;
  Collective collective_;
  Reduction reduction_;
  DType dtype_;
  Elements size_;
  std::vector<Buffer*> buffers_;  ///< by group rank; empty where contents mean nothing. The handles own them
  int arrived_ = 0;
  int waiting_ = 0;
  bool done_ = false;
  double available_s_ = 0.0;  ///< when the group's collective before it ended
  double end_s_ = 0.0;
  simgrid::s4u::SemaphorePtr ended_ = simgrid::s4u::Semaphore::create(0);
};

class ModelledGroup : public std::enable_shared_from_this<ModelledGroup> {
 public:
  ModelledGroup(std::shared_ptr<Fabric> fabric, std::span<const int> members, Algorithm algorithm);

  /// Starts the actor that plays the group's stream, which lives until the simulation ends. Other ranks run
  /// meanwhile.
  void begin();

  /// The `index`-th collective of the group, which this member issues.
  std::shared_ptr<ModelledOperation> issue(std::size_t index, int group_rank, Collective collective,
                                           Reduction reduction, Buffer& buffer);

 private:
  /// What a member sends to one other in a ring (or several): this share of what a whole ring would send.
  struct Flow {
    simgrid::s4u::Host* from = nullptr;
    simgrid::s4u::Host* to = nullptr;
    double share = 1.0;
    double efficiency = 1.0;  ///< of the links
  };
  /// What a transfer has had of its links so far.
  enum class Sharing {
    looked_up,  ///< all; it is not simulated, but waits for its known time to pass
    alone,      ///< all; it is simulated, and its time can be looked up from now on
    shared,
  };
  struct Cost {
    double latency_s = 0.0;
    double bandwidth_fraction = 1.0;
  };

  /// An actor that sends some of the flows. (What an actor has under way the simulator keeps in a list,
  /// through which it goes for each message that ends.)
  struct Courier {
    std::span<const Flow> flows;
    simgrid::s4u::SemaphorePtr go = simgrid::s4u::Semaphore::create(0);
  };

  /// Returns its route's latency.
  double add_flow(const Flow& flow);
  void lay_one_ring();
  void lay_ring_per_nic();
  void run();
  void carry_out(const ModelledOperation& operation);
  void transfer(double bytes_of_ring);
  void transfer_alone(double bytes_of_ring, double seconds);
  void send_flows(double bytes_of_ring);
  void deliver(const Courier& courier);
  /// Somebody else comes to use links that this group's present transfer has had to itself.
  void disturb();
  [[nodiscard]] bool shares_links_with(const ModelledGroup& other) const;
  [[nodiscard]] Cost cost_of(const ModelledOperation& operation) const;
  void combine(const ModelledOperation& operation) const;

  std::shared_ptr<Fabric> fabric_;
  std::vector<int> members_;
  Algorithm algorithm_;
  std::vector<Flow> flows_;
  std::vector<simgrid::s4u::Link*> links_;  ///< of all flows, sorted
  std::map<double, double> seconds_alone_;  ///< by bytes_of_ring
  Sharing sharing_ = Sharing::alone;        ///< of the present transfer
  simgrid::s4u::SemaphorePtr disturbed_ = simgrid::s4u::Semaphore::create(0);
  std::vector<Courier> couriers_;
  double bytes_of_ring_ = 0.0;  ///< what a flow with all of a ring carries in the present collective
  std::size_t delivering_ = 0;  ///< couriers on their way
  simgrid::s4u::SemaphorePtr delivered_ = simgrid::s4u::Semaphore::create(0);
  NcclGroup nccl_;
  double ring_latency_s_ = 0.0;   ///< of a ring's n-1 hops, as the platform's links have it
  double first_latency_s_ = 0.0;  ///< the largest of one flow's route, which its message takes itself
  std::deque<std::shared_ptr<ModelledOperation>> queue_;
  std::size_t first_index_ = 0;  ///< of the queue's front
  double last_end_s_ = 0.0;
  simgrid::s4u::SemaphorePtr all_arrived_ = simgrid::s4u::Semaphore::create(0);
};

/// This rank's end of a group.
std::unique_ptr<Communicator> make_modelled_communicator(std::shared_ptr<ModelledGroup> group, int rank,
                                                         int size, Algorithm algorithm);

}  // namespace shardbench::mpi
