// A block of a GPU's threads on the host, with the instructions that kernels/cuda/fragments.hpp asks for.
//
// Each thread is a fiber. It runs until it meets its warp in an instruction or its block in a barrier. The
// formulas of who holds what are PTX ISA's, written down here a second time. What goes wrong on a GPU only
// sometimes goes wrong here every time: shared memory begins as NaNs, copies arrive as late or as early as
// they may, and one warp runs as far as it can before the next one starts, so that whoever forgets a barrier
// reads what is not there yet or not there any more.
#pragma once

#include <gtest/gtest.h>
#include <ucontext.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "kernels/bodies/portable.hpp"

namespace shardbench::test {

/// Which warp runs first, and when copies to shared memory arrive: when they are waited for, or at once.
enum class Schedule { first_warp_late_copies, last_warp_early_copies };

class EmulatedBlock {
 public:
  static constexpr int warp_size = 32;
  using Word = std::uint32_t;

  class Thread {
   public:
    Thread(EmulatedBlock& block, int index) : block_(block), index_(index) {}

    [[nodiscard]] static Word shared() { return first_address; }
    [[nodiscard]] int thread() const { return index_; }
    [[nodiscard]] int lane() const { return index_ % warp_size; }
    [[nodiscard]] int warp() const { return index_ / warp_size; }

    void copy(Word to, const void* from, int bytes) { start({to, from, bytes, 16}); }
    void copy_value(Word to, const void* from, int bytes) { start({to, from, bytes, 4}); }
    void commit() { committed_ = copies_.size(); }
    void wait() {
      for (std::size_t i = 0; i < committed_; ++i) block_.finish(copies_[i]);
      copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(committed_));
      committed_ = 0;
    }
    void sync() { meet(Meeting::barrier); }

    void load_matrices(Word (&r)[4], Word row) { meet(Meeting::load, {.r = r, .address = row}); }
    void load_transposed(Word (&r)[4], Word row) { meet(Meeting::load_transposed, {.r = r, .address = row}); }
    void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
      meet(Meeting::multiply_add, {.c = c, .a = a, .b = {b0, b1}});
    }
    float shuffle_xor(float value, int mask) {
      float result = 0.0F;
      meet(Meeting::shuffle, {.value = value, .result = &result, .mask = mask});
      return result;
    }
    void load_pair(float (&pair)[2], Word from) {
      EXPECT_EQ(from % 8, 0U) << "misaligned";
      std::memcpy(pair, block_.at(from), 8);
    }
    static void load_four(float (&values)[4], const float* from) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(from) % 16, 0U) << "misaligned";
      std::memcpy(values, from, 16);
    }
    static void store_four(float* to, const float (&values)[4]) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(to) % 16, 0U) << "misaligned";
      std::memcpy(to, values, 16);
    }
    [[nodiscard]] static Word narrow_pair(float low, float high) {
      return bodies::narrow<bodies::BFloat16>(low).bits |
             static_cast<Word>(bodies::narrow<bodies::BFloat16>(high).bits) << 16U;
    }
    [[nodiscard]] static float exp2(float x) { return std::exp2(x); }

   private:
    friend EmulatedBlock;
    enum class Meeting { none, barrier, load, load_transposed, multiply_add, shuffle, end };
    struct Copy {
      Word to;
      const void* from;
      int bytes;
      int size;
    };
    struct Operands {
      Word* r = nullptr;
      Word address = 0;
      float* c = nullptr;
      const Word* a = nullptr;
      std::array<Word, 2> b = {};
      float value = 0.0F;
      float* result = nullptr;
      int mask = 0;
    };

    void start(const Copy& copy) {
      if (block_.schedule_ == Schedule::last_warp_early_copies) {
        block_.finish(copy);
      } else {
        copies_.push_back(copy);
      }
    }

    void meet(Meeting meeting) { meet(meeting, Operands()); }
    void meet(Meeting meeting, const Operands& operands) {
      meeting_ = meeting;
      operands_ = operands;
      swapcontext(&context_, &block_.scheduler_);
    }

    EmulatedBlock& block_;
    int index_;
    std::vector<Copy> copies_;
    std::size_t committed_ = 0;
    Meeting meeting_ = Meeting::none;
    Operands operands_;
    ucontext_t context_ = {};
    std::unique_ptr<std::byte[]> stack_;
  };

  EmulatedBlock(int threads, int shared_bytes)
      : shared_(static_cast<std::size_t>(shared_bytes), std::byte{0xFF}) {  // as bf16 and as fp32 NaNs
    for (int index = 0; index < threads; ++index) threads_.push_back(std::make_unique<Thread>(*this, index));
  }

  /// Runs `body` in every thread.
  void run(Schedule schedule, std::function<void(Thread&)> body) {
    schedule_ = schedule;
    body_ = std::move(body);
    for (const auto& thread : threads_) prepare(*thread);
    const int warps = static_cast<int>(threads_.size()) / warp_size;
    while (threads_[0]->meeting_ != Thread::Meeting::end) {
      for (int i = 0; i < warps; ++i)
        advance(schedule == Schedule::first_warp_late_copies ? i : warps - 1 - i);
      for (const auto& thread : threads_)
        ASSERT_EQ(thread->meeting_, threads_[0]->meeting_) << "not all threads reach the barrier";
    }
  }

 private:
  using Lanes = std::span<const std::unique_ptr<Thread>>;
  // Not 0, so that an offset taken for an address shows.
  static constexpr Word first_address = 1024;
  static constexpr std::size_t stack_bytes = std::size_t{256} << 10U;

  static void enter(unsigned int high, unsigned int low) {
    auto* thread = reinterpret_cast<Thread*>(static_cast<std::uintptr_t>(high) << 32U | low);
    thread->block_.body_(*thread);
    thread->meet(Thread::Meeting::end);
  }

  void prepare(Thread& thread) {
    thread.meeting_ = Thread::Meeting::none;
    thread.stack_ = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
    getcontext(&thread.context_);
    thread.context_.uc_stack.ss_sp = thread.stack_.get();
    thread.context_.uc_stack.ss_size = stack_bytes;
    const auto address = reinterpret_cast<std::uintptr_t>(&thread);
    makecontext(&thread.context_, reinterpret_cast<void (*)()>(&enter), 2,
                static_cast<unsigned int>(address >> 32U), static_cast<unsigned int>(address));
  }

  /// Runs a warp until it is at a barrier or at its end.
  void advance(int warp) {
    const Lanes lanes = Lanes(threads_).subspan(static_cast<std::size_t>(warp * warp_size), warp_size);
    while (true) {
      for (const auto& lane : lanes) swapcontext(&scheduler_, &lane->context_);
      const auto meeting = lanes[0]->meeting_;
      for (const auto& lane : lanes) ASSERT_EQ(lane->meeting_, meeting) << "lanes have parted ways";
      switch (meeting) {
        case Thread::Meeting::load:
        case Thread::Meeting::load_transposed:
          load(lanes, meeting);
          break;
        case Thread::Meeting::multiply_add:
          multiply_add(lanes);
          break;
        case Thread::Meeting::shuffle:
          for (const auto& lane : lanes)
            *lane->operands_.result =
                lanes[static_cast<std::size_t>(lane->lane() ^ lane->operands_.mask)]->operands_.value;
          break;
        default:
          return;
      }
    }
  }

  [[nodiscard]] std::byte* at(Word address) {
    EXPECT_LT(address - first_address, shared_.size()) << "outside of shared memory";
    return shared_.data() + (address - first_address) % shared_.size();
  }

  void finish(const Thread::Copy& copy) {
    EXPECT_EQ(copy.to % static_cast<Word>(copy.size), 0U) << "misaligned";
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(copy.from) % static_cast<std::uintptr_t>(copy.size), 0U)
        << "misaligned";
    std::byte* to = at(copy.to);
    std::memset(to, 0, static_cast<std::size_t>(copy.size));
    std::memcpy(to, copy.from, static_cast<std::size_t>(copy.bytes));
  }

  /// ldmatrix.x4: lanes 8i to 8i+7 name the 8 rows of matrix i, of 8 bf16 each. Lane l gets the values 2 (l
  /// mod 4) and the next of row l / 4; transposed, those of column l / 4.
  void load(Lanes lanes, Thread::Meeting meeting) {
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      std::array<std::array<std::uint16_t, 8>, 8> rows{};
      std::set<Word> banks;
      for (std::size_t i = 0; i < 8; ++i) {
        const Word address = lanes[8 * matrix + i]->operands_.address;
        EXPECT_EQ(address % 16, 0U) << "misaligned";
        banks.insert(address % 128);
        std::memcpy(rows[i].data(), at(address), 16);
      }
      EXPECT_EQ(banks.size(), 8U) << "rows of a matrix share banks";
      for (std::size_t lane = 0; lane < warp_size; ++lane) {
        const std::size_t line = lane / 4;
        const std::size_t first = 2 * (lane % 4);
        const bool is_transposed = meeting == Thread::Meeting::load_transposed;
        const Word low = is_transposed ? rows[first][line] : rows[line][first];
        const Word high = is_transposed ? rows[first + 1][line] : rows[line][first + 1];
        lanes[lane]->operands_.r[matrix] = low | high << 16U;
      }
    }
  }

  /// mma.m16n8k16. With g = l / 4 and t = l mod 4, lane l holds of A: i = 0 to 7 at row g + 8 (i / 2 mod 2),
  /// column 2t + i mod 2 + 8 (i / 4); of B: i = 0 to 3 at row 2t + i mod 2 + 8 (i / 2), column g; of C: i = 0
  /// to 3 at row g + 8 (i / 2), column 2t + i mod 2.
  static void multiply_add(Lanes lanes) {
    const auto value = [](Word pair, std::size_t i) {
      return std::bit_cast<float>(i % 2 == 0 ? pair << 16U : pair & 0xFFFF0000U);
    };
    std::array<std::array<float, 16>, 16> a{};
    std::array<std::array<float, 8>, 16> b{};
    for (std::size_t lane = 0; lane < warp_size; ++lane) {
      const std::size_t g = lane / 4;
      const std::size_t t = lane % 4;
      const auto& operands = lanes[lane]->operands_;
      for (std::size_t i = 0; i < 8; ++i)
        a[g + 8 * (i / 2 % 2)][2 * t + i % 2 + 8 * (i / 4)] = value(operands.a[i / 2], i);
      for (std::size_t i = 0; i < 4; ++i) b[2 * t + i % 2 + 8 * (i / 2)][g] = value(operands.b[i / 2], i);
    }
    for (std::size_t lane = 0; lane < warp_size; ++lane)
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t row = lane / 4 + 8 * (i / 2);
        const std::size_t column = 2 * (lane % 4) + i % 2;
        float sum = lanes[lane]->operands_.c[i];
        for (std::size_t k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
        lanes[lane]->operands_.c[i] = sum;
      }
  }

  std::vector<std::byte> shared_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::function<void(Thread&)> body_;
  Schedule schedule_ = Schedule::first_warp_late_copies;
  ucontext_t scheduler_ = {};
};

}  // namespace shardbench::test
