#include "src/comm/mpi/mpi_control.hpp"

#include <utility>

namespace shardbench::mpi {
namespace {

class MpiControlChannel final : public ControlChannel {
 public:
  MpiControlChannel(CommHandle comm, Platform& platform, Activity& activity)
      : comm_(std::move(comm)),
        platform_(platform),
        activity_(activity),
        rank_(comm_.rank()),
        size_(comm_.size()) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void send(int to, std::span<const std::byte> message) override {
    // The length goes first: a receiver cannot probe politely everywhere (a simulator has no MPI_Mprobe).
    std::int64_t length = std::ssize(message);
    transfer([&](MPI_Request* r) {
      platform_.post_send(std::as_bytes(std::span(&length, 1)), to, length_tag, comm_.get(), r);
    });
    if (length > 0)
      transfer([&](MPI_Request* r) { platform_.post_send(message, to, payload_tag, comm_.get(), r); });
  }

  std::vector<std::byte> receive(int from) override {
    std::int64_t length = 0;
    transfer([&](MPI_Request* r) {
      platform_.post_receive(std::as_writable_bytes(std::span(&length, 1)), from, length_tag, comm_.get(), r);
    });
    std::vector<std::byte> message(static_cast<std::size_t>(length));
    if (length > 0)
      transfer([&](MPI_Request* r) { platform_.post_receive(message, from, payload_tag, comm_.get(), r); });
    return message;
  }

 private:
  static constexpr int length_tag = 1;
  static constexpr int payload_tag = 2;

  template <class Post>
  void transfer(Post post) {
    MPI_Request request = MPI_REQUEST_NULL;
    post(&request);
    MPI_Request* const outstanding = &request;
    for (int attempt = 0;; ++attempt) {
      int done = 0;
      SHARDBENCH_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done != 0 || request == MPI_REQUEST_NULL) break;  // (SMPI may finish it and still answer "not yet")
      platform_.pause(attempt, std::span(&outstanding, 1));
    }
    activity_.progressed();
  }

  CommHandle comm_;
  Platform& platform_;
  Activity& activity_;
  int rank_;
  int size_;
};

}  // namespace

std::unique_ptr<ControlChannel> make_mpi_control(MPI_Comm world, Platform& platform, Activity& activity) {
  return std::make_unique<MpiControlChannel>(duplicate(world), platform, activity);
}

}  // namespace shardbench::mpi
