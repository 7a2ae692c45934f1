// Storage types, casts, accumulation, SwiGLU, AdamW and the norm's sum of squares.
#include <bit>
#include <limits>
#include <numeric>

#include "tests/unit/support.hpp"

namespace shardbench::test {
namespace {

using bodies::BFloat16;

std::uint16_t bf16_bits(float value) { return bodies::narrow<BFloat16>(value).bits; }

/// Round to nearest even by comparing distances to the two neighbours, for finite values that do not
/// overflow.
std::uint16_t nearest_bf16_bits(float value) {
  const auto lower = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
  const auto upper = static_cast<std::uint16_t>(lower + 1U);  // away from zero
  const auto distance = [value](std::uint16_t bits) {
    return std::abs(static_cast<double>(bodies::widen(BFloat16{bits})) - static_cast<double>(value));
  };
  if (distance(lower) == distance(upper)) return lower % 2 == 0 ? lower : upper;
  return distance(lower) < distance(upper) ? lower : upper;
}

TEST(BFloat16, RoundsToNearest) {
  std::mt19937 generator(1);
  for (int i = 0; i < 100'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(generator());
    const auto value = std::bit_cast<float>(bits);
    if (!std::isfinite(value) || std::abs(value) > 3e38F) continue;
    ASSERT_EQ(bf16_bits(value), nearest_bf16_bits(value)) << value;
  }
}

TEST(BFloat16, BreaksTiesToEven) {
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // halfway above an even one: down
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x3F818000U)), 0x3F82);  // halfway above an odd one: up
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x3F808001U)), 0x3F81);  // just past halfway
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0xBF808000U)), 0xBF80);
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0xBF818000U)), 0xBF82);
}

TEST(BFloat16, KeepsInfinitiesZerosAndNans) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(bf16_bits(infinity), 0x7F80);
  EXPECT_EQ(bf16_bits(-infinity), 0xFF80);
  EXPECT_EQ(bf16_bits(0.0F), 0x0000);
  EXPECT_EQ(bf16_bits(-0.0F), 0x8000);
  EXPECT_EQ(bf16_bits(std::numeric_limits<float>::max()), 0x7F80) << "past the largest bf16 is infinity";
  // A NaN whose payload lies in the bits that are dropped would become infinity by truncation.
  for (const std::uint32_t nan : {0x7F800001U, 0x7FFFFFFFU, 0xFFC00000U, 0xFF80FFFFU})
    EXPECT_TRUE(std::isnan(bodies::widen(bodies::narrow<BFloat16>(std::bit_cast<float>(nan)))))
        << std::hex << nan;
}

TEST(BFloat16, WideningAndNarrowingIsTheIdentity) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float value = bodies::widen(BFloat16{static_cast<std::uint16_t>(bits)});
    if (std::isnan(value)) continue;
    ASSERT_EQ(bf16_bits(value), bits);
  }
}

/// Destination and source storage.
class Casts : public testing::TestWithParam<std::tuple<DType, DType>> {
 protected:
  static constexpr std::int64_t count = 1003;
  const DType to_ = std::get<0>(GetParam());
  const DType from_ = std::get<1>(GetParam());
  const Floats before_ = random_floats(count, 1);
  Stored source_{from_, random_floats(count, 2)};
};
INSTANTIATE_TEST_SUITE_P(Storage, Casts,
                         testing::Combine(testing::Values(DType::bf16, DType::fp32),
                                          testing::Values(DType::bf16, DType::fp32)),
                         [](const auto& tested) {
                           return std::string(name_of(std::get<1>(tested.param))) + "_to_" +
                                  std::string(name_of(std::get<0>(tested.param)));
                         });

TEST_P(Casts, ScaledCopyScalesInFp32AndRoundsOnce) {
  const Floats copied = same_with_one_and_two_threads([&](kernels::Kernels& k) {
    Stored destination(to_, before_);
    k.scaled_copy(destination.view(), source_.view(), 1.0F / 3.0F);
    return destination.values();
  });
  const Floats source = source_.values();
  for (std::size_t i = 0; i < source.size(); ++i)
    ASSERT_EQ(copied[i], rounded_to(to_, source[i] * (1.0F / 3.0F)));
}

TEST_P(Casts, AccumulateAddsInFp32AndRoundsOnce) {
  const Floats sums = same_with_one_and_two_threads([&](kernels::Kernels& k) {
    Stored destination(to_, before_);
    k.accumulate(destination.view(), source_.view());
    return destination.values();
  });
  const Floats source = source_.values();
  for (std::size_t i = 0; i < source.size(); ++i)
    ASSERT_EQ(sums[i], rounded_to(to_, rounded_to(to_, before_[i]) + source[i]));
}

TEST_P(Casts, RefusesUnequalCounts) {
  KernelSet kernels(1);
  Stored shorter(to_, random_floats(count - 1, 3));
  EXPECT_ANY_THROW(kernels->scaled_copy(shorter.view(), source_.view(), 1.0F));
  EXPECT_ANY_THROW(kernels->accumulate(shorter.view(), source_.view()));
}

TEST(Reductions, RoundOnceAndKeepNans) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float third = 1.0F / 3.0F;
  const auto combined = [](auto body, float into, float from) {
    body(&into, &from);
    return into;
  };
  const auto multiply = [](float* a, const float* b) { bodies::multiply(0, a, b); };
  const auto minimum = [](float* a, const float* b) { bodies::minimum(0, a, b); };
  const auto maximum = [](float* a, const float* b) { bodies::maximum(0, a, b); };
  EXPECT_EQ(combined(multiply, -3.0F, third), -3.0F * third);
  EXPECT_EQ(combined(minimum, -3.0F, third), -3.0F);
  EXPECT_EQ(combined(minimum, 3.0F, third), third);
  EXPECT_EQ(combined(maximum, -3.0F, third), third);
  for (const auto body : {+minimum, +maximum}) {
    EXPECT_TRUE(std::isnan(combined(body, nan, 1.0F)));
    EXPECT_TRUE(std::isnan(combined(body, 1.0F, nan)));
  }
  BFloat16 product = bodies::narrow<BFloat16>(1.0078125F);
  bodies::multiply(0, &product, &product);  // 1 + 2^-6 + 2^-14 needs more digits than bf16 has
  EXPECT_EQ(bodies::widen(product), 1.015625F);
  const float seven = 7.0F;
  BFloat16 divided{};
  bodies::divided_copy(0, &divided, &seven, 3.0F);
  EXPECT_EQ(bodies::widen(divided), rounded_to(DType::bf16, 7.0F / 3.0F));
}

TEST(Elementwise, FillZeroClearsEveryByteAndNoMore) {
  KernelSet kernels(1);
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    Stored values(dtype, Floats(9, 1.0F));
    kernels::TypedView most = values.view();
    most.rows = 8;
    kernels->fill_zero(most);
    EXPECT_EQ(values.values(), (Floats{0, 0, 0, 0, 0, 0, 0, 0, 1}));
  }
}

TEST(Elementwise, MaximumKeepsTheLargerAndAnyNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  Floats values = {1.0F, -3.0F, -infinity, 2.0F, nan, 5.0F, -infinity};
  const Floats others = {2.0F, -4.0F, -7.0F, 2.0F, 1.0F, nan, -infinity};
  std::vector<BFloat16> narrow_values, narrow_others;
  for (const float value : values) narrow_values.push_back(bodies::narrow<BFloat16>(value));
  for (const float value : others) narrow_others.push_back(bodies::narrow<BFloat16>(value));
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    bodies::maximum(i, values.data(), others.data());
    bodies::maximum(i, narrow_values.data(), narrow_others.data());
  }
  const Floats expected = {2.0F, -3.0F, -7.0F, 2.0F, nan, nan, -infinity};
  for (std::size_t i = 0; i < values.size(); ++i)
    for (const float actual : {values[i], bodies::widen(narrow_values[i])})
      EXPECT_TRUE(actual == expected[i] || (std::isnan(actual) && std::isnan(expected[i])))
          << i << ": " << actual;
}

TEST(Elementwise, AddAddsIntoItsFirstArgument) {
  const Floats x = random_floats(77, 1);
  const Floats y = same_with_one_and_two_threads([&](kernels::Kernels& k) {
    Floats sum = random_floats(77, 2);
    k.add(matrix(sum, 7), matrix(x, 7));
    return sum;
  });
  const Floats before = random_floats(77, 2);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], before[i] + x[i]);
}

Doubles swiglu(const Doubles& gate, const Doubles& up) {
  Doubles gated(gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) gated[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  return gated;
}

TEST(SwiGlu, ForwardMatchesItsFormula) {
  Floats gate = random_floats(300, 1, 6.0F);
  gate[0] = 100.0F;
  gate[1] = -100.0F;  // exp overflows in fp32; silu is 0
  const Floats up = random_floats(300, 2);
  const Floats gated = same_with_one_and_two_threads([&](kernels::Kernels& k) {
    Floats result(gate.size());
    k.swiglu_forward(matrix(result, 3), matrix(gate, 3), matrix(up, 3));
    return result;
  });
  expect_close(gated, swiglu(widened(gate), widened(up)), 1e-6, "gated");
}

TEST(SwiGlu, BackwardMatchesFiniteDifferences) {
  const Floats gate = random_floats(60, 1, 6.0F);
  const Floats up = random_floats(60, 2);
  const Floats d_gated = random_floats(60, 3);
  const auto [d_gate, d_up] = same_with_one_and_two_threads([&](kernels::Kernels& k) {
    std::pair<Floats, Floats> result(Floats(60, 9.0F), Floats(60, 9.0F));  // overwritten
    k.swiglu_backward(matrix(result.first, 3), matrix(result.second, 3), matrix(d_gated, 3), matrix(gate, 3),
                      matrix(up, 3));
    return result;
  });
  const Doubles g = widened(gate);
  const Doubles u = widened(up);
  const Doubles upstream = widened(d_gated);
  expect_close(d_gate, numeric_gradient([&](const Doubles& x) { return dot(upstream, swiglu(x, u)); }, g),
               1e-6, "d_gate");
  expect_close(d_up, numeric_gradient([&](const Doubles& x) { return dot(upstream, swiglu(g, x)); }, u), 1e-6,
               "d_up");
}

TEST(SwiGlu, BackwardIsRoundedWhereItIsStoredInBf16) {
  const Floats gate = random_floats(60, 1, 6.0F);
  const Floats up = random_floats(60, 2);
  const Floats d_gated = random_floats(60, 3);
  for (std::int64_t i = 0; i < std::ssize(gate); ++i) {
    const auto at = static_cast<std::size_t>(i);
    Floats exact_gate(60);
    Floats exact_up(60);
    std::vector<bodies::BFloat16> d_gate(60);
    std::vector<bodies::BFloat16> d_up(60);
    bodies::swiglu_backward(i, exact_gate.data(), exact_up.data(), d_gated.data(), gate.data(), up.data());
    bodies::swiglu_backward(i, d_gate.data(), d_up.data(), d_gated.data(), gate.data(), up.data());
    EXPECT_EQ(bodies::widen(d_gate[at]), rounded_to(DType::bf16, exact_gate[at]));
    EXPECT_EQ(bodies::widen(d_up[at]), rounded_to(DType::bf16, exact_up[at]));
  }
}

double squares_of(kernels::Kernels& kernels, const kernels::TypedView& values) {
  double total = 0.0;
  kernels.add_squares({&total, 1}, values);
  return total;
}

TEST(SumOfSquares, SumsInDoubleTheSameForAnyThreadCount) {
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    for (const std::int64_t count : {0, 1, 4096, 3 * 4096 + 17}) {
      Stored values(dtype, random_floats(count, 5));
      const double sum =
          same_with_one_and_two_threads([&](kernels::Kernels& k) { return squares_of(k, values.view()); });
      const Doubles exact = widened(values.values());
      EXPECT_NEAR(sum, dot(exact, exact), 1e-13 * static_cast<double>(count + 1));
    }
  }
}

TEST(SumOfSquares, DoesNotOverflowFp32) {
  Stored large(DType::fp32, Floats(8, 1e30F));
  KernelSet kernels(1);
  EXPECT_NEAR(squares_of(*kernels, large.view()) / 8e60, 1.0, 1e-6);
}

TEST(Sums, AddToWhatIsThere) {
  const Floats values = random_floats(1003, 5);
  double total = 2.0;
  Stored stored(DType::fp32, values);
  KernelSet kernels(1);
  kernels->add_sum({&total, 1}, span_of(values));
  const Doubles exact = widened(values);
  const double sum = std::accumulate(exact.begin(), exact.end(), 0.0);
  EXPECT_DOUBLE_EQ(total, 2.0 + sum);
  kernels->add_squares({&total, 1}, stored.view());
  EXPECT_NEAR(total, 2.0 + sum + dot(exact, exact), 1e-10);
}

TEST(ClipFactor, ShrinksLongGradientsAndLeavesOthersAlone) {
  const auto factor_of = [](double squares, double bound) {
    float factor = -1.0F;
    KernelSet kernels(1);
    kernels->clip_factor({&factor, 1}, {&squares, 1}, bound);
    return factor;
  };
  EXPECT_FLOAT_EQ(factor_of(16.0, 1.0), static_cast<float>(1.0 / (4.0 + 1e-6)));
  EXPECT_EQ(factor_of(0.25, 1.0), 1.0F);
  EXPECT_EQ(factor_of(0.0, 1.0), 1.0F);
  EXPECT_EQ(factor_of(std::numeric_limits<double>::quiet_NaN(), 1.0), 1.0F);
  EXPECT_EQ(factor_of(std::numeric_limits<double>::infinity(), 1.0), 0.0F);
}

TEST(Scalars, TravelInFp32) {
  double wide = 1.0 + 0x1p-30;
  float travelling = 0.0F;
  KernelSet kernels(1);
  kernels->narrow({&travelling, 1}, {&wide, 1});
  EXPECT_EQ(travelling, 1.0F);
  travelling = 3.0F;
  kernels->widen({&wide, 1}, {&travelling, 1});
  EXPECT_EQ(wide, 3.0);
}

/// AdamW as the contract states it, in double: decay first, then the update with bias-corrected moments.
class AdamWReference {
 public:
  AdamWReference(const Floats& initial, double weight_decay)
      : weights_(widened(initial)), m_(initial.size()), v_(initial.size()), weight_decay_(weight_decay) {}

  void step(const Floats& gradient, double factor) {
    ++steps_;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const double g = factor * static_cast<double>(gradient[i]);
      m_[i] = 0.9 * m_[i] + 0.1 * g;
      v_[i] = 0.95 * v_[i] + 0.05 * g * g;
      weights_[i] *= 1.0 - learning_rate * weight_decay_;
      weights_[i] -= learning_rate * (m_[i] / (1.0 - std::pow(0.9, steps_))) /
                     (std::sqrt(v_[i] / (1.0 - std::pow(0.95, steps_))) + 1e-8);
    }
  }
  [[nodiscard]] const Doubles& weights() const { return weights_; }
  [[nodiscard]] const Doubles& moment1() const { return m_; }
  [[nodiscard]] const Doubles& moment2() const { return v_; }

  static constexpr double learning_rate = 3e-2;  // a hundred times the real one, so that errors show

 private:
  Doubles weights_, m_, v_;
  double weight_decay_;
  int steps_ = 0;
};

bodies::AdamW adamw_constants(int step, float weight_decay) {
  return {.learning_rate = static_cast<float>(AdamWReference::learning_rate),
          .beta1 = 0.9F,
          .beta2 = 0.95F,
          .epsilon = 1e-8F,
          .weight_decay = weight_decay,
          .inverse_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(0.9, step))),
          .inverse_correction2 = static_cast<float>(1.0 / (1.0 - std::pow(0.95, step)))};
}

struct AdamWState {
  Floats master, moment1, moment2, parameter;
  bool operator==(const AdamWState&) const = default;
};

/// Parameter and gradient storage, weight decay.
class AdamW : public testing::TestWithParam<std::tuple<DType, DType, float>> {};
INSTANTIATE_TEST_SUITE_P(Storage, AdamW,
                         testing::Combine(testing::Values(DType::bf16, DType::fp32),
                                          testing::Values(DType::bf16, DType::fp32),
                                          testing::Values(0.0F, 0.1F)));

TEST_P(AdamW, FollowsADoubleReferenceOverSeveralSteps) {
  const auto [parameter_dtype, gradient_dtype, weight_decay] = GetParam();
  constexpr std::int64_t count = 101;
  constexpr float factor = 0.25F;
  const Floats initial = random_floats(count, 1);
  const auto gradient_of = [&, dtype = gradient_dtype](int step) {
    return Stored(dtype, random_floats(count, 100U + static_cast<unsigned>(step)));
  };

  const AdamWState state =
      same_with_one_and_two_threads([&, dtype = parameter_dtype, decay = weight_decay](kernels::Kernels& k) {
        AdamWState s{initial, Floats(count), Floats(count), {}};
        Stored copy(dtype, initial);
        for (int step = 1; step <= 6; ++step) {
          Stored gradient = gradient_of(step);
          // fp32 parameters are the master themselves.
          const kernels::TypedView parameter =
              dtype == DType::fp32
                  ? kernels::TypedView{reinterpret_cast<std::byte*>(s.master.data()), dtype, count}
                  : copy.view();
          k.adamw(span_of(s.master), span_of(s.moment1), span_of(s.moment2), parameter, gradient.view(),
                  {&factor, 1}, adamw_constants(step, decay));
        }
        s.parameter = dtype == DType::fp32 ? s.master : copy.values();
        return s;
      });

  AdamWReference reference(initial, static_cast<double>(weight_decay));
  for (int step = 1; step <= 6; ++step)
    reference.step(gradient_of(step).values(), static_cast<double>(factor));
  expect_close(state.master, reference.weights(), 1e-6, "master");
  expect_close(state.moment1, reference.moment1(), 1e-6, "first moment");
  expect_close(state.moment2, reference.moment2(), 1e-6, "second moment");
  for (std::size_t i = 0; i < state.master.size(); ++i)
    ASSERT_EQ(state.parameter[i], rounded_to(parameter_dtype, state.master[i]));
}

TEST(AdamWFirstStep, MovesByTheLearningRate) {
  // With bias correction the first step is lr * sign(g), whatever the gradient's size.
  Floats master = {1.0F, 1.0F, 1.0F};
  Floats m(3);
  Floats v(3);
  Stored gradient(DType::fp32, {1e-3F, -5.0F, 0.0F});
  KernelSet kernels(1);
  const float factor = 1.0F;
  kernels->adamw(span_of(master), span_of(m), span_of(v),
                 {reinterpret_cast<std::byte*>(master.data()), DType::fp32, 3}, gradient.view(), {&factor, 1},
                 adamw_constants(1, 0.0F));
  expect_close(master, {0.97, 1.03, 1.0}, 1e-6, "master");
}

}  // namespace
}  // namespace shardbench::test
