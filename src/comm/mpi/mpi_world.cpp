#include "src/comm/mpi/mpi_world.hpp"

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "src/comm/imitated_compute.hpp"
#include "src/comm/mpi/mpi_platform.hpp"
#include "src/comm/nodes.hpp"
#include "src/comm/scheduled_communicator.hpp"

namespace shardbench {
namespace {

using mpi::CommHandle;
using mpi::duplicate;
using mpi::Platform;

// A progress thread asleep this long between rounds costs a few per cent of a core and hides 96-100 % of a
// 200 Mbit/s link's transfers behind compute.
constexpr double progress_thread_sleep = 50e-6;

// Launchers forward what a rank prints, but may drop what they have not read when the job is aborted.
constexpr double last_words_s = 0.1;

/// MPI_Init and MPI_Finalize. During an exception MPI is left to the abort that follows.
class MpiSession {
 public:
  explicit MpiSession(const WorldSettings& settings) : exceptions_(std::uncaught_exceptions()) {
    mpi::prepare_environment();
    const int needed = settings.progress == Progress::thread ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
    int provided = 0;
    SHARDBENCH_MPI(MPI_Init_thread(nullptr, nullptr, needed, &provided));
    if (provided < needed && !mpi::reports_no_thread_level())
      throw RunError(fmt::format(
          "MPI provides thread level {}, but --progress {} needs {}; use another progress mode or "
          "an MPI library with threads",
          provided, settings.progress == Progress::thread ? "thread" : "none or poll", needed));
    SHARDBENCH_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  ~MpiSession() {
    if (std::uncaught_exceptions() == exceptions_) MPI_Finalize();
  }

 private:
  int exceptions_;
};

/// All requests in flight of this rank, for a pause that may block on any of them.
class OutstandingRequests {
 public:
  void add(std::vector<MPI_Request>* requests) {
    const std::scoped_lock lock(mutex_);
    sets_.insert(requests);
  }
  void remove(std::vector<MPI_Request>* requests) {
    const std::scoped_lock lock(mutex_);
    sets_.erase(requests);
  }
  /// Valid while no other thread works on the requests.
  [[nodiscard]] std::vector<MPI_Request*> list() const {
    std::vector<MPI_Request*> all;
    for (auto* set : sets_)
      for (MPI_Request& request : *set) all.push_back(&request);
    return all;
  }

 private:
  std::mutex mutex_;  // a progress thread starts operations, the main thread destroys them
  std::set<std::vector<MPI_Request>*> sets_;
};

/// What everything that sends messages needs.
struct Post {
  Platform& platform;
  OutstandingRequests& outstanding;
  Activity& activity;
};

class MpiMessageSet final : public MessageSet {
 public:
  MpiMessageSet(MPI_Comm comm, const Post& post)
      : comm_(comm), platform_(post.platform), outstanding_(post.outstanding), activity_(post.activity) {
    outstanding_.add(&requests_);
  }
  MpiMessageSet(const MpiMessageSet&) = delete;
  MpiMessageSet& operator=(const MpiMessageSet&) = delete;
  ~MpiMessageSet() override { outstanding_.remove(&requests_); }

  void send(int peer, int tag, std::span<const std::byte> message) override {
    platform_.post_send(message, peer, tag, comm_, &requests_.emplace_back(MPI_REQUEST_NULL));
  }
  void receive(int peer, int tag, std::span<std::byte> message) override {
    platform_.post_receive(message, peer, tag, comm_, &requests_.emplace_back(MPI_REQUEST_NULL));
  }
  bool test() override {
    if (requests_.empty()) return true;
    int done = 0;
    SHARDBENCH_MPI(
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE));
    // SMPI may finish the last request and still answer "not yet".
    const bool finished = done != 0 || std::all_of(requests_.begin(), requests_.end(),
                                                   [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
    if (finished) {
      requests_.clear();
      activity_.progressed();
    }
    return finished;
  }

 private:
  MPI_Comm comm_;
  Platform& platform_;
  OutstandingRequests& outstanding_;
  Activity& activity_;
  std::vector<MPI_Request> requests_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(CommHandle comm, const Post& post)
      : comm_(std::move(comm)), post_(post), rank_(comm_.rank()), size_(comm_.size()) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  std::unique_ptr<MessageSet> message_set() override {
    return std::make_unique<MpiMessageSet>(comm_.get(), post_);
  }

 private:
  CommHandle comm_;
  Post post_;
  int rank_;
  int size_;
};

class MpiWorld final : public World {
 public:
  MpiWorld(const WorldSettings& settings, Memory& memory, Activity& activity)
      : settings_(settings),
        memory_(memory),
        activity_(activity),
        session_(settings),
        platform_(mpi::make_platform(MPI_COMM_WORLD, memory)),
        engine_({.now = [this] { return now(); },
                 .pause =
                     [this](int attempt) {
                       // With a progress thread the list may change under us; that thread makes the progress.
                       const auto outstanding =
                           platform_->simulated() ? outstanding_.list() : std::vector<MPI_Request*>{};
                       platform_->pause(attempt, outstanding);
                     }}),
        control_(platform_->control(activity)),
        nodes_(settings.ranks_per_node ? equal_nodes(control_->size(), *settings.ranks_per_node)
                                       : platform_->nodes()),
        // Simulated ranks and streams have one clock, which begins with the simulation.
        start_(platform_->simulated() ? 0.0 : platform_->now()) {
    if (settings.progress == Progress::thread && !platform_->simulated())
      progress_thread_ = std::jthread([this](const std::stop_token& stop) {
        try {
          while (!stop.stop_requested()) {
            engine_.advance();
            platform_->sleep(progress_thread_sleep);
          }
        } catch (...) {
          engine_.fail(std::current_exception());
        }
      });
  }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  ~MpiWorld() override = default;

  void leave() override { barrier(*control_); }

  [[nodiscard]] int rank() const override { return control_->rank(); }
  [[nodiscard]] int size() const override { return control_->size(); }
  [[nodiscard]] double now() const override { return platform_->now() - start_; }

  void imitate_compute(double seconds) override {
    if (settings_.progress == Progress::stream) {
      platform_->compute_beside_streams(seconds, settings_.contention);
      return;
    }
    shardbench::imitate_compute(seconds, settings_.contention,
                                {.now = [this] { return now(); },
                                 .sleep = [this](double length) { platform_->sleep(length); },
                                 .poll = [this] { poll(); },
                                 .collective_under_way = [this] { return engine_.collective_under_way(); }});
  }

  void poll() override {
    activity_.progressed();
    if (settings_.progress == Progress::poll) engine_.advance();
  }

  void check_settings() const override { platform_->check_supported(settings_); }

  ControlChannel& control() override { return *control_; }

  std::unique_ptr<Communicator> communicator(std::span<const int> members) override {
    if (settings_.progress == Progress::stream) {
      const std::optional<int> node_size = node_size_of(nodes_of(members, nodes_));
      return platform_->streamed_communicator(
          members, {.algorithm = settings_.algorithm, .node_size = node_size.value_or(1)}, memory_);
    }
    const auto key = std::find(members.begin(), members.end(), rank()) - members.begin();
    MPI_Comm raw = MPI_COMM_NULL;
    SHARDBENCH_MPI(MPI_Comm_split(MPI_COMM_WORLD, members.front(), static_cast<int>(key), &raw));
    CommHandle comm(raw);
    if (settings_.algorithm == Algorithm::native && comm.size() > 1)
      return mpi::make_native_communicator(std::move(comm), engine_);
    ScheduleChoice choice{.algorithm = settings_.algorithm, .node_size = 1};
    if (settings_.algorithm == Algorithm::native) choice.algorithm = Algorithm::local;
    if (settings_.algorithm == Algorithm::hierarchical) {
      const std::optional<int> node_size = node_size_of(nodes_of(members, nodes_));
      SHARDBENCH_ASSERT(node_size.has_value());  // check_hierarchy has seen every group
      choice.node_size = *node_size;
    }
    return make_scheduled_communicator(std::make_unique<MpiTransport>(std::move(comm), post()), engine_,
                                       memory_, choice);
  }

  std::unique_ptr<Vote> vote() override {
    return make_vote(std::make_unique<MpiTransport>(duplicate(MPI_COMM_WORLD), post()), engine_);
  }
  [[nodiscard]] Activity& activity() const override { return activity_; }

  [[nodiscard]] Placement placement() const override { return platform_->placement(); }
  [[nodiscard]] const std::vector<int>& nodes() const override { return nodes_; }
  [[nodiscard]] bool simulated() const override { return platform_->simulated(); }
  [[nodiscard]] const Hardware* hardware() const override { return platform_->hardware(); }
  [[nodiscard]] std::string wait_policy() const override { return platform_->wait_policy(); }

  [[nodiscard]] std::string library() const override { return mpi_library_version(); }
  [[nodiscard]] std::string machine_description() const override { return platform_->description(); }

  void abort(int exit_code) override {
    if (!platform_->simulated()) platform_->sleep(last_words_s);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::abort();
  }

 private:
  Post post() { return {.platform = *platform_, .outstanding = outstanding_, .activity = activity_}; }

  WorldSettings settings_;
  Memory& memory_;
  Activity& activity_;
  MpiSession session_;
  std::unique_ptr<Platform> platform_;
  OutstandingRequests outstanding_;
  ProgressEngine engine_;
  std::unique_ptr<ControlChannel> control_;
  std::vector<int> nodes_;  ///< of every rank of the world
  double start_;
  std::jthread progress_thread_;  // last: it must stop before anything it uses goes
};

}  // namespace

std::string mpi_library_version() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  SHARDBENCH_MPI(MPI_Get_library_version(text.data(), &length));
  text.resize(static_cast<std::size_t>(length));
  text = text.substr(0, text.find('\n'));
  for (char& c : text)
    if (c == '\t') c = ' ';
  return text;
}

bool is_simulation() { return mpi::is_simulation(); }

bool started_by_launcher() { return mpi::started_by_launcher(); }

std::unique_ptr<World> make_mpi_world(const WorldSettings& settings, Memory& memory, Activity& activity) {
  return std::make_unique<MpiWorld>(settings, memory, activity);
}

}  // namespace shardbench
