// Which GPU a rank takes, and that no two share one.
#include "src/device/device_choice.hpp"

#include <gtest/gtest.h>

#include "src/errors.hpp"

namespace shardbench {
namespace {

/// What choosing throws; empty where it does not.
template <class Choose>
std::string failure_of(Choose choose) {
  try {
    choose();
  } catch (const RunError& error) {
    return error.what();
  }
  return {};
}

TEST(DeviceChoice, TheOnlyVisibleDeviceIsTheRanksOwn) {
  EXPECT_EQ(choose_device(0, 1), 0);
  EXPECT_EQ(choose_device(3, 1), 0) << "a launcher that binds devices shows each rank one";
}

TEST(DeviceChoice, AmongManyTheLocalRankCounts) {
  EXPECT_EQ(choose_device(0, 4), 0);
  EXPECT_EQ(choose_device(3, 4), 3);
}

TEST(DeviceChoice, MoreRanksThanDevicesAreRefusedWithBothNumbers) {
  const std::string text = failure_of([] { choose_device(4, 4); });
  EXPECT_NE(text.find("local rank 4"), std::string::npos) << text;
  EXPECT_NE(text.find("4 visible"), std::string::npos) << text;
}

TEST(DeviceChoice, WithoutADeviceTheBackendIsNamed) {
  const std::string text = failure_of([] { choose_device(0, 0); });
  EXPECT_NE(text.find("--backend nccl"), std::string::npos) << text;
  EXPECT_NE(text.find("--backend mpi"), std::string::npos) << text;
}

TEST(DeviceChoice, TwoRanksOnOneDeviceAreNamed) {
  // What (local 3, visible 1) comes to where nobody bound the devices.
  const std::string text = failure_of([] {
    check_devices_differ(
        {{"a", "0000:1B:00.0"}, {"b", "0000:1B:00.0"}, {"a", "0000:2C:00.0"}, {"b", "0000:1B:00.0"}});
  });
  EXPECT_NE(text.find("ranks 1 and 3"), std::string::npos) << text;
  EXPECT_NE(text.find("0000:1B:00.0 of b"), std::string::npos) << text;
}

TEST(DeviceChoice, DevicesOfDifferentHostsAreDifferent) {
  EXPECT_EQ(failure_of([] { check_devices_differ({{"a", "0000:1B:00.0"}, {"b", "0000:1B:00.0"}}); }), "");
  EXPECT_EQ(failure_of([] { check_devices_differ({}); }), "");
}

}  // namespace
}  // namespace shardbench
