#include "src/comm/mpi/sim_fabric.hpp"

#include <cstdint>
#include <string>
#include <utility>

#include "src/comm/mpi/sim_modelled.hpp"

namespace shardbench::mpi {
namespace {

namespace sg4 = simgrid::s4u;

constexpr const char* description_property = "shardbench";  // set by platform_loader.cpp
constexpr double no_work_left = 1e-12;

}  // namespace

Fabric::Fabric(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {
  if (const char* text = sg4::Engine::get_instance()->get_netzone_root()->get_property(description_property))
    try {
      machine_ = parse_machine(text);
    } catch (const UsageError& error) {  // for all ranks, once they can hear of it
      problem_ = error.what();
    }
}

Fabric::~Fabric() = default;

std::shared_ptr<Fabric> Fabric::join(MPI_Comm world) {
  int rank = 0;
  int size = 0;
  SHARDBENCH_MPI(MPI_Comm_rank(world, &rank));
  SHARDBENCH_MPI(MPI_Comm_size(world, &size));
  // Rank 0's object serves all: they share the address space, so a pointer is a message.
  std::shared_ptr<Fabric> own;
  if (rank == 0) own.reset(new Fabric(size));
  auto address = reinterpret_cast<std::uintptr_t>(own.get());
  SHARDBENCH_MPI(MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, world));
  auto fabric = reinterpret_cast<Fabric*>(address)->shared_from_this();
  fabric->at(rank).host = sg4::this_actor::get_host();
  SHARDBENCH_MPI(MPI_Barrier(world));
  if (rank == 0) fabric->settle();
  SHARDBENCH_MPI(MPI_Barrier(world));
  return fabric;
}

void Fabric::settle() {
  std::map<std::string, int> first;
  for (int rank = 0; rank < size(); ++rank)
    nodes_.push_back(machine_ ? rank / machine_->ranks_per_node
                              : first.try_emplace(host(rank)->get_name(), rank).first->second);
}

void Fabric::post(int from, int to, std::span<const std::byte> letter) {
  Rank& receiver = at(to);
  receiver.letters[from].emplace_back(letter.begin(), letter.end());
  if (receiver.awaited == from) {
    receiver.awaited = -1;
    receiver.letter_came->release();
  }
}

std::vector<std::byte> Fabric::collect(int rank, int from) {
  Rank& own = at(rank);
  auto& letters = own.letters[from];
  while (letters.empty()) {
    own.awaited = from;
    own.letter_came->acquire();
  }
  std::vector<std::byte> letter = std::move(letters.front());
  letters.pop_front();
  return letter;
}

std::shared_ptr<Fabric::Parcel> Fabric::meet(const Address& address, bool as_sender) {
  // First, because other actors run while one is made; from here on this one is alone.
  while (idle_mailboxes_.empty())
    idle_mailboxes_.push_back(sg4::Mailbox::by_name("shardbench-" + std::to_string(mailboxes_++)));
  auto& queue = waiting_[address];
  if (!queue.empty() && queue.front()->from_sender != as_sender) {
    auto parcel = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) waiting_.erase(address);
    // The other end has asked to enter the mailbox before, and this one does so next. The simulator serves
    // one instant's requests in order: whoever is given the mailbox from here on comes after both.
    idle_mailboxes_.push_back(parcel->mailbox);
    return parcel;
  }
  auto parcel = std::make_shared<Parcel>();
  parcel->from_sender = as_sender;
  parcel->mailbox = idle_mailboxes_.back();
  idle_mailboxes_.pop_back();
  queue.push_back(parcel);
  return parcel;
}

int Fabric::group_number(int sequence, int first_member) {
  return group_numbers_.try_emplace({sequence, first_member}, static_cast<int>(group_numbers_.size()))
      .first->second;
}

std::shared_ptr<ModelledGroup> Fabric::modelled_group(int sequence, std::span<const int> members,
                                                      Algorithm algorithm) {
  std::weak_ptr<ModelledGroup>& known = groups_[group_number(sequence, members.front())];
  std::shared_ptr<ModelledGroup> group = known.lock();
  if (!group) {
    known = group = std::make_shared<ModelledGroup>(shared_from_this(), members, algorithm);
    group->begin();  // only now: another member that looks for it meanwhile shall find it
  }
  return group;
}

void Fabric::add_load(int rank, int change) {
  Rank& own = at(rank);
  const bool had_load = own.load > 0;
  own.load += change;
  if ((own.load > 0) != had_load && own.computing) {
    own.computing = false;
    own.load_changed->release();
  }
}

void Fabric::compute(int rank, double seconds, double contention) {
  if (contention == 0.0) {
    sg4::this_actor::sleep_for(seconds);
    return;
  }
  Rank& own = at(rank);
  double work = seconds;
  while (work > no_work_left) {
    const double pace = own.load > 0 ? 1.0 + contention : 1.0;
    const double begin = sg4::Engine::get_clock();
    own.computing = true;
    own.load_changed->acquire_timeout(work * pace);
    own.computing = false;
    work -= (sg4::Engine::get_clock() - begin) / pace;
  }
}

}  // namespace shardbench::mpi
