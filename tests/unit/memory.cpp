// Tracked memory: levels, peaks, buffers that count while they live, and what stands behind them.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "src/device/buffer.hpp"
#include "src/errors.hpp"
#include "tests/unit/host_values.hpp"

namespace shardbench {
namespace {

TEST(MemoryTracker, KeepsLevelsAndPeaksByCategoryAndInTotal) {
  MemoryTracker tracker;
  tracker.add(Category::parameters, Bytes(100));
  tracker.add(Category::activations, Bytes(50));
  tracker.add(Category::parameters, Bytes(-60));
  tracker.add(Category::workspace, Bytes(70));
  EXPECT_EQ(tracker.current(Category::parameters), Bytes(40));
  EXPECT_EQ(tracker.peak(Category::parameters), Bytes(100));
  EXPECT_EQ(tracker.current(Category::activations), Bytes(50));
  EXPECT_EQ(tracker.total(), Bytes(160));
  EXPECT_EQ(tracker.total_peak(), Bytes(160)) << "of the sum, not the sum of the categories' peaks";
  EXPECT_EQ(tracker.current(Category::gradients), Bytes(0));
}

TEST(MemoryTracker, ForgetsPeaksOnRestartButNotLevels) {
  MemoryTracker tracker;
  tracker.add(Category::activations, Bytes(100));
  tracker.add(Category::activations, Bytes(-70));
  tracker.restart_peaks();
  EXPECT_EQ(tracker.peak(Category::activations), Bytes(30));
  EXPECT_EQ(tracker.total_peak(), Bytes(30));
  tracker.add(Category::activations, Bytes(5));
  EXPECT_EQ(tracker.peak(Category::activations), Bytes(35));
  EXPECT_EQ(tracker.total_peak(), Bytes(35));
}

TEST(MemoryTracker, TellsItsObserverTheLevelAfterEachChange) {
  MemoryTracker tracker;
  std::vector<std::pair<Category, std::int64_t>> heard;
  tracker.observe([&](Category category, Bytes level) { heard.emplace_back(category, level.count()); });
  tracker.add(Category::gradients, Bytes(8));
  tracker.add(Category::gradients, Bytes(0));  // no change, nothing to say
  tracker.add(Category::optimizer, Bytes(4));
  tracker.add(Category::gradients, Bytes(-8));
  tracker.observe({});
  tracker.add(Category::gradients, Bytes(1));
  EXPECT_EQ(heard, (std::vector<std::pair<Category, std::int64_t>>{
                       {Category::gradients, 8}, {Category::optimizer, 4}, {Category::gradients, 0}}));
}

class Buffers : public testing::TestWithParam<Backing> {};
INSTANTIATE_TEST_SUITE_P(Backings, Buffers, testing::Values(Backing::memory, Backing::aliased, Backing::none),
                         [](const auto& tested) {
                           return tested.param == Backing::memory    ? "memory"
                                  : tested.param == Backing::aliased ? "aliased"
                                                                     : "none";
                         });

TEST_P(Buffers, CountWhileTheyLive) {
  Memory memory;
  const MemoryTracker& tracker = memory.tracker();
  {
    const BufferRef small = memory.allocate(Category::parameters, DType::bf16, Elements(10), GetParam());
    BufferRef shared = memory.allocate(Category::parameters, DType::fp32, Elements(10), GetParam());
    const BufferRef pin = shared;
    EXPECT_EQ(tracker.current(Category::parameters), Bytes(60));
    shared.reset();
    EXPECT_EQ(tracker.current(Category::parameters), Bytes(60)) << "still pinned";
    EXPECT_EQ(small->bytes(), Bytes(20));
    EXPECT_EQ(pin->elements(), Elements(10));
    EXPECT_EQ(pin->dtype(), DType::fp32);
  }
  EXPECT_EQ(tracker.total(), Bytes(0));
  EXPECT_EQ(tracker.peak(Category::parameters), Bytes(60));
}

TEST_P(Buffers, OfZeroElementsHaveAnAddressUnlessOnPaper) {
  Memory memory;
  const BufferRef empty = memory.allocate(Category::gradients, DType::fp32, Elements(0), GetParam());
  EXPECT_EQ(empty->bytes(), Bytes(0));
  EXPECT_EQ(empty->data() == nullptr, GetParam() == Backing::none);
}

TEST_P(Buffers, HoldValuesOnlyInRealMemory) {
  Memory memory;
  const BufferRef buffer = memory.allocate(Category::gradients, DType::fp32, Elements(4), GetParam());
  EXPECT_EQ(buffer->holds_values(), GetParam() == Backing::memory);
  if (GetParam() == Backing::memory) {
    EXPECT_EQ(buffer->floats().size(), 4);
  } else {
    EXPECT_THROW(static_cast<void>(buffer->floats()), InternalError);
  }
}

TEST_P(Buffers, OutliveTheMemoryThatMadeThem) {
  BufferRef buffer;
  {
    Memory memory;
    buffer = memory.allocate(Category::gradients, DType::fp32, Elements(1000), GetParam());
  }
  if (buffer->data() != nullptr) std::memset(buffer->data(), 1, 4000);
  buffer.reset();
}

TEST_P(Buffers, HavePartsThatAreNotCountedAgain) {
  Memory memory;
  const MemoryTracker& tracker = memory.tracker();
  BufferRef whole = memory.allocate(Category::parameters, DType::bf16, Elements(10), GetParam());
  BufferRef part = memory.part(whole, 3, Elements(4), Backing::aliased);
  EXPECT_EQ(tracker.total(), Bytes(20));
  EXPECT_EQ(part->elements(), Elements(4));
  EXPECT_EQ(part->dtype(), DType::bf16);
  EXPECT_EQ(part->holds_values(), whole->holds_values());
  if (whole->holds_values()) {
    whole.reset();
    EXPECT_EQ(tracker.total(), Bytes(20)) << "the part keeps the whole";
  }
  part.reset();
  whole.reset();
  EXPECT_EQ(tracker.total(), Bytes(0));
  EXPECT_EQ(tracker.peak(Category::parameters), Bytes(20));
}

TEST_P(Buffers, HavePartsThatEndWithin) {
  Memory memory;
  const BufferRef whole = memory.allocate(Category::parameters, DType::fp32, Elements(10), GetParam());
  EXPECT_EQ(memory.part(whole, 10, Elements(0), Backing::none)->elements(), Elements(0));
  EXPECT_EQ(memory.part(whole, 0, Elements(10), Backing::none)->bytes(), Bytes(40));
  EXPECT_THROW(static_cast<void>(memory.part(whole, 7, Elements(4), Backing::none)), InternalError);
  EXPECT_THROW(static_cast<void>(memory.part(whole, -1, Elements(4), Backing::none)), InternalError);
  EXPECT_THROW(static_cast<void>(memory.part(whole, 4, Elements(-1), Backing::none)), InternalError);
}

TEST(PartsOfRealBuffers, ShareTheirValues) {
  Memory memory;
  const BufferRef whole = memory.allocate(Category::workspace, DType::fp32, Elements(8));
  for (std::size_t i = 0; i < 8; ++i) test::values_in(*whole)[i] = static_cast<float>(i);
  const BufferRef part = memory.part(whole, 2, Elements(5), Backing::none);
  ASSERT_EQ(part->floats().size(), 5);
  EXPECT_EQ(test::values_in(*part)[0], 2.0F);
  const BufferRef inner = memory.part(part, 1, Elements(2), Backing::aliased);
  test::values_in(*inner)[1] = 40.0F;
  EXPECT_EQ(test::values_in(*whole)[4], 40.0F);
}

TEST(PartsOfRealBuffers, OutliveTheWholeAndTheMemory) {
  BufferRef part;
  {
    Memory memory;
    BufferRef whole = memory.allocate(Category::workspace, DType::fp32, Elements(1000));
    test::values_in(*whole)[999] = 5.0F;
    part = memory.part(whole, 990, Elements(10), Backing::none);
    whole.reset();
    // A block that went back for reuse would now be written over.
    const BufferRef other = memory.allocate(Category::workspace, DType::fp32, Elements(1000));
    test::values_in(*other)[999] = 6.0F;
  }
  EXPECT_EQ(test::values_in(*part)[9], 5.0F);
}

TEST(PartsOfBuffersWithoutValues, AreBackedByTheStandIn) {
  Memory memory;
  for (const Backing backing : {Backing::aliased, Backing::none}) {
    const BufferRef whole = memory.allocate(Category::parameters, DType::fp32, Elements(10), backing);
    const BufferRef message = memory.part(whole, 4, Elements(6), Backing::aliased);
    EXPECT_NE(message->data(), nullptr) << "a message needs an address";
    EXPECT_FALSE(message->holds_values());
    EXPECT_EQ(memory.part(whole, 4, Elements(6), Backing::none)->data(), nullptr);
    const BufferRef real = memory.part(whole, 4, Elements(6), Backing::memory);
    EXPECT_TRUE(real->holds_values()) << "timed compute with real messages";
    EXPECT_EQ(memory.tracker().total(), Bytes(40));
  }
}

TEST(RealBuffers, AreApartAndAligned) {
  Memory memory;
  const BufferRef a = memory.allocate(Category::gradients, DType::bf16, Elements(3));
  const BufferRef b = memory.allocate(Category::gradients, DType::bf16, Elements(3));
  EXPECT_NE(a->data(), b->data());
  for (const BufferRef& buffer : {a, b}) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0U);
  EXPECT_THROW(static_cast<void>(a->floats()), InternalError) << "bf16 is no span of floats";
}

TEST(RealBuffers, TooLargeForTheMachineNameCategoryAndSize) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's allocator ends the process instead";
#endif
  Memory memory;
  try {
    static_cast<void>(memory.allocate(Category::optimizer, DType::fp32, Elements(std::int64_t{1} << 60)));
    FAIL() << "4 EiB were granted";
  } catch (const RunError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("optimizer"), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(std::int64_t{1} << 62)), std::string::npos) << message;
  }
  EXPECT_EQ(memory.tracker().total(), Bytes(0));
}

constexpr std::int64_t window = std::int64_t{4} << 20;  // of the arena, in bytes

TEST(AliasedBuffers, SpanTheirFullSizeOverOneWindowOfMemory) {
  Memory memory;
  const std::int64_t size = 5 * window / 2;  // the last window is used in part
  const BufferRef buffer =
      memory.allocate(Category::reduce_buffers, DType::fp32, Elements(size / 4), Backing::aliased);
  std::byte* data = buffer->data();
  data[0] = std::byte{42};
  EXPECT_EQ(data[window], std::byte{42});
  EXPECT_EQ(data[2 * window], std::byte{42});
  data[size - 1] = std::byte{7};
  EXPECT_EQ(data[(size - 1) % window], std::byte{7});
  data[1] = std::byte{1};
  EXPECT_EQ(data[window], std::byte{42}) << "neighbours stay apart";
}

TEST(AliasedBuffers, ShareTheArenaOfTheirRank) {
  Memory memory;
  const auto allocate = [&](std::int64_t bytes) {
    return memory.allocate(Category::reduce_buffers, DType::fp32, Elements(bytes / 4), Backing::aliased);
  };
  const BufferRef small = allocate(1000);
  const BufferRef large = allocate(3 * window);  // needs a longer arena; the first keeps its own
  const BufferRef again = allocate(2 * window);
  EXPECT_EQ(large->data(), again->data());
  small->data()[999] = std::byte{5};
  large->data()[3 * window - 1] = std::byte{6};
  EXPECT_EQ(small->data()[999], std::byte{5});
}

TEST(AliasedBuffers, MayExceedTheMachinesMemory) {
  Memory memory;
  const std::int64_t size = std::int64_t{1} << 36;  // 64 GiB
  const BufferRef buffer =
      memory.allocate(Category::parameters, DType::bf16, Elements(size / 2), Backing::aliased);
  buffer->data()[size - 1] = std::byte{3};
  EXPECT_EQ(memory.tracker().current(Category::parameters), Bytes(size));
}

TEST(AliasedBuffers, OfManyRanksFitOneProcess) {
  // A simulator holds all ranks: here 256, each reducing 70b's head (128,256 x 8,192) in fp32. Linux grants a
  // process 65,530 mappings by default.
  std::vector<BufferRef> buffers;
  std::vector<Memory> ranks(256);
  for (Memory& memory : ranks)
    buffers.push_back(
        memory.allocate(Category::reduce_buffers, DType::fp32, Elements(128'256 * 8'192), Backing::aliased));
  EXPECT_NE(buffers.back()->data(), nullptr);
}

}  // namespace
}  // namespace shardbench
