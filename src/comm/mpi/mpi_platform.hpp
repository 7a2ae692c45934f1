// Where a real MPI library and a simulated one differ. Two files implement this, one of which is linked:
// mpi_platform_real.cpp and mpi_platform_simulated.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/comm/mpi/mpi_api.hpp"
#include "src/comm/progress.hpp"
#include "src/comm/scheduled_communicator.hpp"
#include "src/comm/world.hpp"

namespace shardbench::mpi {

class Platform {
 public:
  Platform() = default;
  Platform(const Platform&) = delete;
  Platform& operator=(const Platform&) = delete;
  virtual ~Platform() = default;

  [[nodiscard]] virtual double now() const = 0;
  /// Passes time on the clock without touching messages.
  virtual void sleep(double seconds) = 0;
  /// Called when a wait found nothing new for the `attempt`-th time: yields the core politely, or (simulated,
  /// where nothing else can run meanwhile) blocks until one of `outstanding` completes.
  virtual void pause(int attempt, std::span<MPI_Request* const> outstanding) = 0;

  virtual void post_send(std::span<const std::byte> message, int peer, int tag, MPI_Comm comm,
                         MPI_Request* out) = 0;
  virtual void post_receive(std::span<std::byte> message, int peer, int tag, MPI_Comm comm,
                            MPI_Request* out) = 0;

  /// Throws UsageError when this platform cannot do what `settings` ask for.
  virtual void check_supported(const WorldSettings& settings) const = 0;

  /// Messages for set-up and traces.
  virtual std::unique_ptr<ControlChannel> control(Activity& activity) = 0;
  /// A communicator that proceeds by itself (Progress::stream); only where check_supported allows it.
  virtual std::unique_ptr<Communicator> streamed_communicator(std::span<const int> members,
                                                              ScheduleChoice choice, Memory& memory) = 0;
  /// Passes `seconds` of compute while streams proceed, (1 + contention) times as slowly where they do.
  virtual void compute_beside_streams(double seconds, double contention) = 0;

  [[nodiscard]] virtual Placement placement() const = 0;
  /// Of each rank of the world: some number that the ranks of one node have in common.
  [[nodiscard]] virtual const std::vector<int>& nodes() const = 0;
  [[nodiscard]] virtual bool simulated() const = 0;
  /// See World.
  [[nodiscard]] virtual const Hardware* hardware() const = 0;
  [[nodiscard]] virtual std::string wait_policy() const = 0;
  /// Of the machine, as JSON, where it is simulated; else empty.
  [[nodiscard]] virtual std::string description() const = 0;
};

/// Whether MPI_Init_thread's answer means nothing (SMPI always says single, and is).
bool reports_no_thread_level();
/// Which of the two files this is.
bool is_simulation();
/// Whether a launcher started this process together with others.
bool started_by_launcher();
/// Sets what the MPI library reads before MPI_Init.
void prepare_environment();
/// Collective over `world`. May give `memory` an arena that it shares with other ranks.
std::unique_ptr<Platform> make_platform(MPI_Comm world, Memory& memory);
/// The library's own non-blocking collectives; only where check_supported allows `native`.
std::unique_ptr<Communicator> make_native_communicator(CommHandle comm, ProgressEngine& engine);

}  // namespace shardbench::mpi
