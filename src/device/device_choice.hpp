// Which GPU a rank takes.
#pragma once

#include <string>
#include <vector>

namespace shardbench {

/// The device among `visible` for the rank that is `local_rank`-th on its host: its own number where all
/// devices are visible, the only one where a launcher shows each rank one of its own. Throws RunError where
/// there is none for it.
int choose_device(int local_rank, int visible);

/// Where a rank computes.
struct DeviceSeat {
  std::string host;
  std::string bus_id;  ///< of its GPU
};

/// `seats` by rank. Throws RunError that names two ranks which would share a GPU: NCCL would hang or fail
/// late.
void check_devices_differ(const std::vector<DeviceSeat>& seats);

}  // namespace shardbench
