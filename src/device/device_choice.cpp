#include "src/device/device_choice.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {

int choose_device(int local_rank, int visible) {
  if (visible == 0)
    throw RunError(
        "--backend nccl needs a CUDA device, and none is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES, "
        "or use --backend mpi");
  if (visible == 1) return 0;
  if (local_rank >= visible)
    throw RunError(
        fmt::format("local rank {} has no CUDA device among the {} visible ones; start at most {} ranks a "
                    "host, or show each rank one device of its own",
                    local_rank, visible, visible));
  return local_rank;
}

void check_devices_differ(const std::vector<DeviceSeat>& seats) {
  std::map<std::pair<std::string, std::string>, std::size_t> taken;
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const auto& [host, bus_id] = seats[rank];
    const auto [owner, is_free] = taken.try_emplace({host, bus_id}, rank);
    if (!is_free)
      throw RunError(
          fmt::format("ranks {} and {} would both compute on the CUDA device {} of {}; start as many ranks a "
                      "host as it has devices, and check CUDA_VISIBLE_DEVICES",
                      owner->second, rank, bus_id, host));
  }
}

}  // namespace shardbench
