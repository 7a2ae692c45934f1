// The layers' kernels against references in double that share no code with them.
#include <limits>
#include <numeric>

#include "tests/unit/attention_reference.hpp"
#include "tests/unit/support.hpp"

namespace shardbench::test {
namespace {

using kernels::AttentionShape;
using kernels::Kernels;
using kernels::Output;
using Tokens = std::vector<std::int32_t>;

constexpr double fp32_tolerance = 1e-5;

std::size_t at(std::int64_t row, std::int64_t column, std::int64_t columns) {
  return static_cast<std::size_t>(row * columns + column);
}

// --- linear

/// y[T, out] = x[T, in] W^T in double, plus what y held.
Doubles linear(const Doubles& x, const Doubles& w, std::int64_t in, std::int64_t out, Doubles y) {
  const std::int64_t tokens = std::ssize(x) / in;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) y[at(t, o, out)] += x[at(t, i, in)] * w[at(o, i, in)];
  return y;
}

Doubles transposed(const Doubles& values, std::int64_t columns) {
  const std::int64_t rows = std::ssize(values) / columns;
  Doubles result(values.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) result[at(c, r, rows)] = values[at(r, c, columns)];
  return result;
}

struct LinearCase {
  const char* name;
  std::int64_t tokens, in, out;
  int panels;  ///< at least
};
void PrintTo(const LinearCase& shape, std::ostream* out) { *out << shape.name; }

class Linear : public testing::TestWithParam<std::tuple<LinearCase, DType>> {
 protected:
  const LinearCase shape_ = std::get<0>(GetParam());
  const DType dtype_ = std::get<1>(GetParam());
  Stored weight_{dtype_, shape_.out, shape_.in, random_floats(shape_.out* shape_.in, 1)};
  const Floats x_ = random_floats(shape_.tokens * shape_.in, 2);
  const Floats dy_ = random_floats(shape_.tokens * shape_.out, 3);

  /// Runs `compute` on a result that holds `before`, with one and two threads, overwriting and accumulating.
  template <class Compute>
  void expect_result(const Floats& before, const Doubles& product, Compute compute) {
    for (const int threads : {1, 2})
      for (const Output output : {Output::overwrite, Output::accumulate}) {
        KernelSet kernels(threads, 1, shape_.in);
        Floats result = before;
        compute(*kernels, matrix(result, shape_.tokens), output);
        Doubles expected = product;
        if (output == Output::accumulate)
          for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(before[i]);
        expect_close(result, expected, fp32_tolerance, "result");
        EXPECT_GE(kernels.tiles(), shape_.panels) << "the case should span several panels";
      }
  }
};
// A panel is 50 MFLOP, or 2^20 widened elements: tokens and widths are chosen to need several, the last one
// short.
INSTANTIATE_TEST_SUITE_P(Shapes, Linear,
                         testing::Combine(testing::Values(LinearCase{"one", 1, 1, 1, 1},
                                                          LinearCase{"odd", 3, 5, 7, 1},
                                                          LinearCase{"work", 300, 300, 301, 2},
                                                          LinearCase{"wide", 1, 40'000, 75, 1}),
                                          testing::Values(DType::bf16, DType::fp32)),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param).name) + "_" +
                                  std::string(name_of(std::get<1>(tested.param)));
                         });

TEST_P(Linear, ForwardIsXTimesWTransposed) {
  const Doubles zero(dy_.size());
  expect_result(random_floats(shape_.tokens * shape_.out, 4),
                linear(widened(x_), widened(weight_.values()), shape_.in, shape_.out, zero),
                [&](Kernels& k, kernels::Matrix y, Output output) {
                  k.linear_forward(y, matrix(x_, shape_.tokens), weight_.view(), output);
                });
}

TEST_P(Linear, BackwardOfInputIsDyTimesW) {
  const Doubles w_transposed = transposed(widened(weight_.values()), shape_.in);
  expect_result(random_floats(shape_.tokens * shape_.in, 4),
                linear(widened(dy_), w_transposed, shape_.out, shape_.in, Doubles(x_.size())),
                [&](Kernels& k, kernels::Matrix dx, Output output) {
                  k.linear_backward_input(dx, matrix(dy_, shape_.tokens), weight_.view(), output);
                });
}

TEST_P(Linear, BackwardOfWeightAddsDyTransposedTimesX) {
  const Floats before = random_floats(shape_.out * shape_.in, 4);
  const Doubles expected = linear(transposed(widened(dy_), shape_.out), transposed(widened(x_), shape_.in),
                                  shape_.tokens, shape_.in, widened(before));
  for (const Floats& d_weight : with_one_and_two_threads([&](Kernels& k) {
         Floats result = before;
         k.linear_backward_weight(matrix(result, shape_.out), matrix(dy_, shape_.tokens),
                                  matrix(x_, shape_.tokens));
         return result;
       }))
    expect_close(d_weight, expected, fp32_tolerance, "d_weight");
}

TEST(LinearWithoutTerms, IsZeroOrWhatWasThere) {
  // What a tensor-parallel rank computes that holds no columns of w2, or no rows of w1.
  KernelSet kernels(1, 1, 8);
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    const Floats before(21, 2.5F);
    std::byte nothing{};
    const kernels::ConstMatrix empty(before.data(), 3, 0);
    Floats result = before;
    kernels->linear_forward(matrix(result, 3), empty, {&nothing, dtype, 7, 0}, Output::accumulate);
    kernels->linear_backward_input(matrix(result, 3), empty, {&nothing, dtype, 0, 7}, Output::accumulate);
    EXPECT_EQ(result, before);
    kernels->linear_forward(matrix(result, 3), empty, {&nothing, dtype, 7, 0}, Output::overwrite);
    EXPECT_EQ(result, Floats(21, 0.0F));
    result = before;
    kernels->linear_backward_input(matrix(result, 3), empty, {&nothing, dtype, 0, 7}, Output::overwrite);
    EXPECT_EQ(result, Floats(21, 0.0F));
  }
}

TEST(LinearPanels, WidenedWeightsFitTheScratch) {
  // 32 rows of 40,000 columns exceed 2^20 elements, so this must not be widened in one piece.
  KernelSet kernels(1, 1, 40'000);
  Stored weight(DType::bf16, 75, 40'000, Floats(75 * 40'000, 1.0F));
  Floats y(75);
  const Floats x(40'000, 1.0F);
  kernels->linear_forward(matrix(y, 1), matrix(x, 1), weight.view(), Output::overwrite);
  EXPECT_GE(kernels.tiles(), 3);
  EXPECT_EQ(y, Floats(75, 40'000.0F));
}

TEST(Scratch, TooLittleIsRefused) {
  const kernels::ScratchNeeds needs{.longest_sequence = 64, .widest_weight_row = 64, .threads = 1};
  Floats scratch(static_cast<std::size_t>(kernels::openmp_scratch_elements(needs)) - 1);
  EXPECT_ANY_THROW(kernels::make_openmp_kernels(needs, span_of(scratch), [] {}));
}

// --- embedding

TEST(Embedding, ForwardCopiesRows) {
  const Tokens tokens = {4, 0, 4, 2};
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    Stored table(dtype, 5, 3, random_floats(15, 1));
    const Floats values = table.values();
    const Floats y = same_with_one_and_two_threads([&](Kernels& k) {
      Floats result(12);
      k.embedding_forward(matrix(result, 4), table.view(), span_of(tokens));
      return result;
    });
    for (std::int64_t t = 0; t < 4; ++t)
      for (std::int64_t c = 0; c < 3; ++c)
        EXPECT_EQ(y[at(t, c, 3)], values[at(tokens[static_cast<std::size_t>(t)], c, 3)]);
  }
}

TEST(Embedding, BackwardAddsTheRowsOfRepeatedTokens) {
  const Tokens tokens = {4, 0, 4, 2, 4};
  const Floats before = random_floats(15, 1);
  const Floats dy = random_floats(15, 2);
  const Floats d_table = same_with_one_and_two_threads([&](Kernels& k) {
    Floats result = before;
    k.embedding_backward(matrix(result, 5), matrix(dy, 5), span_of(tokens));
    return result;
  });
  Doubles expected = widened(before);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t c = 0; c < 3; ++c)
      expected[at(tokens[static_cast<std::size_t>(t)], c, 3)] += static_cast<double>(dy[at(t, c, 3)]);
  expect_close(d_table, expected, 1e-6, "d_table");
}

TEST(Embedding, NegativeTokensReadZerosAndAddNothing) {
  const Tokens tokens = {-1, 3, -1, 0};
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    Stored table(dtype, 4, 3, random_floats(12, 1));
    const Floats values = table.values();
    const Floats y = same_with_one_and_two_threads([&](Kernels& k) {
      Floats result(12, std::numeric_limits<float>::quiet_NaN());
      k.embedding_forward(matrix(result, 4), table.view(), span_of(tokens));
      return result;
    });
    for (std::int64_t t = 0; t < 4; ++t)
      for (std::int64_t c = 0; c < 3; ++c) {
        const std::int32_t token = tokens[static_cast<std::size_t>(t)];
        EXPECT_EQ(y[at(t, c, 3)], token < 0 ? 0.0F : values[at(token, c, 3)]);
      }
  }
  const Floats before = random_floats(12, 1);
  const Floats dy = random_floats(12, 2);
  const Floats d_table = same_with_one_and_two_threads([&](Kernels& k) {
    Floats result = before;
    k.embedding_backward(matrix(result, 4), matrix(dy, 4), span_of(tokens));
    return result;
  });
  Floats expected = before;
  for (std::int64_t c = 0; c < 3; ++c) {
    expected[at(3, c, 3)] += dy[at(1, c, 3)];
    expected[at(0, c, 3)] += dy[at(3, c, 3)];
  }
  EXPECT_EQ(d_table, expected);
}

TEST(Embedding, MayHaveNoRows) {
  // Of a vocabulary smaller than the tensor-parallel group, some ranks hold nothing.
  const Tokens tokens = {-1, -1};
  KernelSet kernels(1);
  Floats y(6, 1.0F);
  kernels->embedding_forward(matrix(y, 2), {nullptr, DType::bf16, 0, 3}, span_of(tokens));
  EXPECT_EQ(y, Floats(6, 0.0F));
  kernels->embedding_backward({nullptr, 0, 3}, matrix(std::as_const(y), 2), span_of(tokens));
}

// --- RMSNorm

constexpr double epsilon = 1e-2;  // larger than the model's, so that leaving it out shows

Doubles rms_norm(const Doubles& x, const Doubles& weight) {
  const std::int64_t width = std::ssize(weight);
  Doubles y(x.size());
  for (std::int64_t row = 0; row < std::ssize(x) / width; ++row) {
    double squares = 0.0;
    for (std::int64_t c = 0; c < width; ++c) squares += x[at(row, c, width)] * x[at(row, c, width)];
    const double rms = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (std::int64_t c = 0; c < width; ++c)
      y[at(row, c, width)] = x[at(row, c, width)] / rms * weight[static_cast<std::size_t>(c)];
  }
  return y;
}

class RmsNorm : public testing::TestWithParam<DType> {
 protected:
  static constexpr std::int64_t rows = 5;
  static constexpr std::int64_t width = 9;
  const Floats x_ = random_floats(rows * width, 1);
  Stored weight_{GetParam(), width, 1, random_floats(width, 2)};
};
INSTANTIATE_TEST_SUITE_P(Storage, RmsNorm, testing::Values(DType::bf16, DType::fp32),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(RmsNorm, ForwardMatchesItsFormula) {
  const Floats y = same_with_one_and_two_threads([&](Kernels& k) {
    Floats result(x_.size());
    k.rms_norm_forward(matrix(result, rows), matrix(x_, rows), weight_.view(), static_cast<float>(epsilon));
    return result;
  });
  expect_close(y, rms_norm(widened(x_), widened(weight_.values())), 1e-6, "y");
}

TEST_P(RmsNorm, BackwardMatchesFiniteDifferencesAndAdds) {
  const Floats dy = random_floats(rows * width, 3);
  const Floats dx_before = random_floats(rows * width, 4);
  const Floats d_weight_before = random_floats(width, 5);
  const auto [dx, d_weight] = same_with_one_and_two_threads([&](Kernels& k) {
    std::pair<Floats, Floats> result(dx_before, d_weight_before);
    Floats inverse_rms(rows);
    k.rms_norm_backward(matrix(result.first, rows), span_of(result.second), span_of(inverse_rms),
                        matrix(dy, rows), matrix(x_, rows), weight_.view(), static_cast<float>(epsilon));
    return result;
  });
  const Doubles x = widened(x_);
  const Doubles w = widened(weight_.values());
  const auto added = [](Doubles gradient, const Floats& before) {
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += static_cast<double>(before[i]);
    return gradient;
  };
  const auto loss = [&](const Doubles& input, const Doubles& weight) {
    return dot(widened(dy), rms_norm(input, weight));
  };
  expect_close(dx, added(numeric_gradient([&](const Doubles& v) { return loss(v, w); }, x), dx_before),
               fp32_tolerance, "dx");
  expect_close(d_weight,
               added(numeric_gradient([&](const Doubles& v) { return loss(x, v); }, w), d_weight_before),
               fp32_tolerance, "d_weight");
}

// --- RoPE

class Rope : public testing::Test {
 protected:
  static constexpr std::int64_t length = 7;
  static constexpr std::int64_t sequences = 2;
  static constexpr std::int64_t heads = 3;
  static constexpr std::int64_t head_size = 6;
  static constexpr std::int64_t width = heads * head_size;
  static constexpr std::int64_t rows = sequences * length;

  static Floats turned(Kernels& k, Floats x, bodies::Rotation rotation) {
    Floats cosines(length * head_size / 2);
    Floats sines(length * head_size / 2);
    k.rope_table(matrix(cosines, length), matrix(sines, length), head_size, 10000.0);
    k.rope(matrix(x, rows), matrix(std::as_const(cosines), length), matrix(std::as_const(sines), length),
           rotation);
    return x;
  }

  const Floats x_ = random_floats(rows * width, 1);
};

TEST_F(Rope, TurnsNeighbouringPairsByPositionTimesFrequency) {
  const Floats y =
      same_with_one_and_two_threads([&](Kernels& k) { return turned(k, x_, bodies::Rotation::forward); });
  Doubles expected(x_.size());
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t pair = 0; pair < head_size / 2; ++pair) {
        const auto position = static_cast<double>(row % length);
        const double angle =
            position * std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(head_size));
        const std::size_t even = at(row, head * head_size + 2 * pair, width);
        const auto a = static_cast<double>(x_[even]);
        const auto b = static_cast<double>(x_[even + 1]);
        expected[even] = a * std::cos(angle) - b * std::sin(angle);
        expected[even + 1] = a * std::sin(angle) + b * std::cos(angle);
      }
  expect_close(y, expected, 1e-6, "turned");
}

TEST_F(Rope, InverseUndoesForward) {
  KernelSet kernels(2);
  const Floats there = turned(*kernels, x_, bodies::Rotation::forward);
  expect_close(turned(*kernels, there, bodies::Rotation::inverse), widened(x_), 1e-6, "back");
}

// --- cross-entropy

/// Each row's loss.
Doubles token_losses(const Doubles& logits, const Tokens& targets) {
  const std::int64_t vocabulary = std::ssize(logits) / std::ssize(targets);
  Doubles losses;
  for (std::int64_t row = 0; row < std::ssize(targets); ++row) {
    const auto first = logits.begin() + row * vocabulary;
    const double largest = *std::max_element(first, first + vocabulary);
    const double total = std::accumulate(first, first + vocabulary, 0.0,
                                         [&](double sum, double z) { return sum + std::exp(z - largest); });
    losses.push_back(largest + std::log(total) - *(first + targets[static_cast<std::size_t>(row)]));
  }
  return losses;
}

struct LossAndGradient {
  Floats losses, gradient;
  bool operator==(const LossAndGradient&) const = default;
};

LossAndGradient cross_entropy(const Floats& logits, const Tokens& targets, float scale) {
  return same_with_one_and_two_threads([&](Kernels& k) {
    LossAndGradient result{Floats(targets.size()), logits};
    k.cross_entropy(span_of(result.losses), matrix(result.gradient, std::ssize(targets)), span_of(targets),
                    scale);
    return result;
  });
}

TEST(CrossEntropy, LossAndGradientMatchTheirFormulas) {
  const Tokens targets = {0, 10, 3, 3, 7};
  const Floats logits = random_floats(5 * 11, 1, 4.0F);
  const auto [losses, gradient] = cross_entropy(logits, targets, 0.2F);
  expect_close(losses, token_losses(widened(logits), targets), 1e-6, "losses");
  const auto mean = [&](const Doubles& z) {
    const Doubles each = token_losses(z, targets);
    return std::accumulate(each.begin(), each.end(), 0.0) / 5.0;
  };
  expect_close(gradient, numeric_gradient(mean, widened(logits)), 1e-6, "gradient");
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  const Tokens targets = {0, 1};
  const Floats logits = {1e4F, 0.0F, -1e4F, 1e4F, 0.0F, -1e4F};
  const auto [losses, gradient] = cross_entropy(logits, targets, 1.0F);
  EXPECT_EQ(losses, (Floats{0.0F, 1e4F}));
  EXPECT_EQ(gradient, (Floats{0.0F, 0.0F, 0.0F, 1.0F, -1.0F, 0.0F}));
}

TEST(CrossEntropy, ManyRowsGoInSeveralBlocks) {
  // Blocks hold 50e6 / 64 / vocabulary rows: 8 here, so that 20 rows take three.
  constexpr std::int64_t vocabulary = 90'000;
  Tokens targets(20);
  for (std::size_t row = 0; row < targets.size(); ++row)
    targets[row] = static_cast<std::int32_t>(row * 4'000);
  Floats logits(20 * vocabulary);
  Floats losses(20);
  KernelSet kernels(2);
  kernels->cross_entropy(span_of(losses), matrix(logits, 20), span_of(targets), 1.0F);
  EXPECT_EQ(kernels.tiles(), 3);
  expect_close(losses, Doubles(20, std::log(90'000.0)), 1e-3, "losses");  // 90,000 terms summed in fp32
}

// --- cross-entropy of rows whose columns are shared out

/// Carries the three parts out as ranks that hold columns [begin, end) of the rows each.
LossAndGradient shared_cross_entropy(const Floats& logits, std::int64_t rows,
                                     const std::vector<std::int64_t>& bounds, const Tokens& targets,
                                     float scale) {
  return same_with_one_and_two_threads([&](Kernels& k) {
    const std::int64_t columns = std::ssize(logits) / rows;
    const auto count = static_cast<std::size_t>(rows);
    Floats largest(count, -std::numeric_limits<float>::infinity());
    Floats total(count);
    Floats target_logit(count);
    std::vector<Floats> parts;
    std::vector<Tokens> own_targets;
    for (std::size_t p = 0; p + 1 < bounds.size(); ++p) {
      Floats& part = parts.emplace_back();
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t c = bounds[p]; c < bounds[p + 1]; ++c) part.push_back(logits[at(row, c, columns)]);
      Tokens& own = own_targets.emplace_back();
      for (const std::int32_t target : targets)
        own.push_back(target >= bounds[p] && target < bounds[p + 1]
                          ? target - static_cast<std::int32_t>(bounds[p])
                          : -1);
      Floats found(count);
      k.row_maximum(span_of(found), matrix(std::as_const(part), rows));
      for (std::size_t r = 0; r < count; ++r) largest[r] = std::max(largest[r], found[r]);
    }
    for (std::size_t p = 0; p < parts.size(); ++p) {
      Floats sums(count, 9.0F);
      Floats picked(count, 9.0F);
      k.row_exponentials(span_of(sums), span_of(picked), matrix(std::as_const(parts[p]), rows),
                         span_of(largest), span_of(own_targets[p]));
      for (std::size_t r = 0; r < count; ++r) {
        total[r] += sums[r];
        target_logit[r] += picked[r];
      }
    }
    LossAndGradient result{Floats(count), Floats(logits.size())};
    for (std::size_t p = 0; p < parts.size(); ++p) {
      Floats losses(count);
      k.cross_entropy_gradient(span_of(losses), matrix(parts[p], rows),
                               {span_of(largest), span_of(total), span_of(target_logit)},
                               span_of(own_targets[p]), scale);
      if (p > 0) {
        EXPECT_EQ(losses, result.losses) << "ranks disagree";
      }
      result.losses = losses;
      const std::int64_t width = bounds[p + 1] - bounds[p];
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t c = 0; c < width; ++c)
          result.gradient[at(row, bounds[p] + c, columns)] = parts[p][at(row, c, width)];
    }
    return result;
  });
}

TEST(SharedCrossEntropy, AgreesWithTheWhole) {
  const Tokens targets = {0, 10, 3, 4, 7};
  const Floats logits = random_floats(5 * 11, 1, 4.0F);
  const auto [losses, gradient] = cross_entropy(logits, targets, 0.2F);
  // One part, two, many, and with parts that hold no column.
  for (const std::vector<std::int64_t>& bounds : std::vector<std::vector<std::int64_t>>{
           {0, 11}, {0, 6, 11}, {0, 3, 6, 9, 11}, {0, 4, 4, 11}, {0, 0, 11}, {0, 11, 11}}) {
    const LossAndGradient shared = shared_cross_entropy(logits, 5, bounds, targets, 0.2F);
    expect_close(shared.losses, widened(losses), 1e-6, "losses");
    expect_close(shared.gradient, widened(gradient), 1e-6, "gradient");
  }
  EXPECT_TRUE(shared_cross_entropy(logits, 5, {0, 11}, targets, 0.2F) == cross_entropy(logits, targets, 0.2F))
      << "one part is the whole, to the last bit";
}

TEST(SharedCrossEntropy, LargeLogitsStayFinite) {
  const Tokens targets = {0, 1};
  const Floats logits = {1e4F, 0.0F, -1e4F, 1e4F, 0.0F, -1e4F};
  const auto [losses, gradient] = shared_cross_entropy(logits, 2, {0, 1, 3}, targets, 1.0F);
  EXPECT_EQ(losses, (Floats{0.0F, 1e4F}));
  EXPECT_EQ(gradient, (Floats{0.0F, 0.0F, 0.0F, 1.0F, -1.0F, 0.0F}));
}

TEST(SharedCrossEntropy, RowsWithoutColumnsHaveNoLargestLogit) {
  const Floats none;
  Floats largest(3);
  Floats total(3, 9.0F);
  Floats target_logit(3, 9.0F);
  KernelSet kernels(2);
  kernels->row_maximum(span_of(largest), {none.data(), 3, 0});
  EXPECT_EQ(largest, Floats(3, -std::numeric_limits<float>::infinity()));
  const Tokens elsewhere(3, -1);
  kernels->row_exponentials(span_of(total), span_of(target_logit), {none.data(), 3, 0}, span_of(largest),
                            span_of(elsewhere));
  EXPECT_EQ(total, Floats(3));
  EXPECT_EQ(target_logit, Floats(3));
}

// --- attention

class Attention : public testing::TestWithParam<AttentionShape> {
 protected:
  const AttentionShape shape_ = GetParam();
  const std::int64_t rows_ = shape_.sequences * shape_.length;
  const Floats q_ = random_floats(rows_ * shape_.heads * shape_.head_size, 1, 2.0F);
  const Floats k_ = random_floats(rows_ * shape_.kv_heads * shape_.head_size, 2, 2.0F);
  const Floats v_ = random_floats(rows_ * shape_.kv_heads * shape_.head_size, 3, 2.0F);
  const Floats d_out_ = random_floats(rows_ * shape_.heads * shape_.head_size, 4);
};
INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         testing::Values(AttentionShape{1, 1, 1, 1, 2}, AttentionShape{3, 1, 4, 2, 6},
                                         AttentionShape{2, 5, 4, 2, 4}, AttentionShape{2, 63, 4, 4, 8},
                                         AttentionShape{1, 64, 6, 2, 10}, AttentionShape{2, 65, 4, 1, 8},
                                         AttentionShape{1, 130, 6, 3, 4}),
                         [](const auto& tested) {
                           const AttentionShape& s = tested.param;
                           return "length" + std::to_string(s.length) + "_heads" + std::to_string(s.heads) +
                                  "_kv" + std::to_string(s.kv_heads) + "_batch" + std::to_string(s.sequences);
                         });

TEST_P(Attention, ForwardAndBackwardMatchADoubleReference) {
  const AttentionResult expected =
      AttentionReference(shape_, widened(q_), widened(k_), widened(v_)).run(widened(d_out_));
  for (const int threads : {1, 2}) {
    KernelSet kernels(threads, shape_.length, 8);
    const Floats garbage(q_.size(), std::numeric_limits<float>::quiet_NaN());  // outputs are overwritten
    Floats out = garbage;
    Floats log_sum_exp(static_cast<std::size_t>(shape_.sequences * shape_.heads * shape_.length));
    kernels->attention_forward(matrix(out, rows_), span_of(log_sum_exp), matrix(q_, rows_), matrix(k_, rows_),
                               matrix(v_, rows_), shape_);
    expect_close(out, expected.out, fp32_tolerance, "out");
    expect_close(log_sum_exp, expected.log_sum_exp, fp32_tolerance, "log_sum_exp");

    Floats dq = garbage;
    Floats dk(k_.size(), std::numeric_limits<float>::quiet_NaN());
    Floats dv = dk;
    kernels->attention_backward(matrix(dq, rows_), matrix(dk, rows_), matrix(dv, rows_),
                                matrix(d_out_, rows_), matrix(std::as_const(out), rows_),
                                span_of(log_sum_exp), matrix(q_, rows_), matrix(k_, rows_), matrix(v_, rows_),
                                shape_);
    expect_close(dv, expected.dv, fp32_tolerance, "dv");
    // At length 1 the softmax of one score is constant and both are zero.
    expect_close(dq, expected.dq, fp32_tolerance, "dq", 1.0);
    expect_close(dk, expected.dk, fp32_tolerance, "dk", 1.0);
  }
}

TEST(AttentionReference, AgreesWithFiniteDifferences) {
  const AttentionShape shape{2, 5, 4, 2, 4};
  const Doubles q = widened(random_floats(2 * 5 * 16, 1));
  const Doubles k = widened(random_floats(2 * 5 * 8, 2));
  const Doubles v = widened(random_floats(2 * 5 * 8, 3));
  const Doubles d_out = widened(random_floats(2 * 5 * 16, 4));
  const auto loss = [&](const Doubles& a, const Doubles& b, const Doubles& c) {
    return dot(d_out, AttentionReference(shape, a, b, c).run({}).out);
  };
  const auto expect_same = [](const Doubles& analytic, const Doubles& numeric) {
    for (std::size_t i = 0; i < analytic.size(); ++i) EXPECT_NEAR(analytic[i], numeric[i], 1e-8);
  };
  const AttentionResult result = AttentionReference(shape, q, k, v).run(d_out);
  expect_same(result.dq, numeric_gradient([&](const Doubles& x) { return loss(x, k, v); }, q));
  expect_same(result.dk, numeric_gradient([&](const Doubles& x) { return loss(q, x, v); }, k));
  expect_same(result.dv, numeric_gradient([&](const Doubles& x) { return loss(q, k, x); }, v));
}

TEST(Attention, StrongScoresStayFinite) {
  const AttentionShape shape{1, 3, 1, 1, 2};
  const Floats q(6, 200.0F);
  const Floats k = q;
  const Floats v = random_floats(6, 1);
  Floats out(6);
  Floats log_sum_exp(3);
  KernelSet kernels(1);
  kernels->attention_forward(matrix(out, 3), span_of(log_sum_exp), matrix(q, 3), matrix(k, 3), matrix(v, 3),
                             shape);
  for (const float value : out) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace shardbench::test
