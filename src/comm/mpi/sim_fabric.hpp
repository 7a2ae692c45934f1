// What the ranks of a simulation share. SMPI runs them all in one process, one at a time, so nothing here is
// locked; time passes only where a rank or a stream blocks in the simulator.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <simgrid/s4u.hpp>
#include <span>
#include <tuple>
#include <vector>

#include "src/comm/mpi/mpi_api.hpp"
#include "src/comm/mpi/sim_description.hpp"
#include "src/device/buffer.hpp"

namespace shardbench::mpi {

class ModelledGroup;

class Fabric : public std::enable_shared_from_this<Fabric> {
 public:
  /// Collective over the world, once.
  static std::shared_ptr<Fabric> join(MPI_Comm world);

  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  ~Fabric();

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] simgrid::s4u::Host* host(int rank) const { return at(rank).host; }
  /// Of each rank: some number that the ranks of one node have in common.
  [[nodiscard]] const std::vector<int>& nodes() const { return nodes_; }
  /// Empty where the platform says nothing about itself (a plain SimGrid platform).
  [[nodiscard]] const std::optional<SimulatedMachine>& machine() const { return machine_; }
  /// What is wrong with its description of itself; empty where nothing is.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] const std::shared_ptr<PhantomArena>& arena() const { return arena_; }

  /// Letters outside the model: they take no time.
  void post(int from, int to, std::span<const std::byte> letter);
  std::vector<std::byte> collect(int rank, int from);

  /// One end of a message between streams. Whichever end is there first waits in the queue for the other.
  struct Parcel {
    simgrid::s4u::Mailbox* mailbox = nullptr;
    std::shared_ptr<std::vector<std::byte>> contents;  ///< null where contents mean nothing
    void* received = nullptr;                          ///< S4U wants to hand over a pointer
    bool from_sender = false;                          ///< which end is waiting
  };
  using Address = std::tuple<int, int, int, int>;  ///< group, from, to (world ranks), tag
  /// The parcel of the message to which this end belongs.
  std::shared_ptr<Parcel> meet(const Address& address, bool as_sender);

  /// A number that the members of one group, made by each as its `sequence`-th, have to themselves.
  int group_number(int sequence, int first_member);
  /// The group object itself, made by whichever member comes first.
  std::shared_ptr<ModelledGroup> modelled_group(int sequence, std::span<const int> members,
                                                Algorithm algorithm);

  /// The groups whose transfers are under way, in the order in which they began.
  [[nodiscard]] std::vector<ModelledGroup*>& transferring() { return transferring_; }

  /// A collective of this rank's begins (+1) or ends (-1) to use its links.
  void add_load(int rank, int change);
  /// Passes `seconds` of compute, (1 + contention) times as slowly while the rank has load.
  void compute(int rank, double seconds, double contention);

 private:
  struct Rank {
    simgrid::s4u::Host* host = nullptr;
    std::map<int, std::deque<std::vector<std::byte>>> letters;  ///< by sender
    int awaited = -1;                                           ///< the sender whose letter it waits for
    simgrid::s4u::SemaphorePtr letter_came = simgrid::s4u::Semaphore::create(0);
    int load = 0;
    bool computing = false;
    simgrid::s4u::SemaphorePtr load_changed = simgrid::s4u::Semaphore::create(0);
  };

  explicit Fabric(int ranks);
  void settle();  ///< once every rank's host is known
  [[nodiscard]] const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<Rank> ranks_;
  std::vector<int> nodes_;
  std::optional<SimulatedMachine> machine_;
  std::string problem_;
  std::shared_ptr<PhantomArena> arena_ = std::make_shared<PhantomArena>();
  std::map<Address, std::deque<std::shared_ptr<Parcel>>> waiting_;
  std::vector<simgrid::s4u::Mailbox*> idle_mailboxes_;  ///< the simulator never forgets one
  int mailboxes_ = 0;
  std::map<std::pair<int, int>, int> group_numbers_;
  std::map<int, std::weak_ptr<ModelledGroup>> groups_;
  std::vector<ModelledGroup*> transferring_;
};

}  // namespace shardbench::mpi
