// The whole model: loss and gradients against a decoder written again in double, and what it keeps in memory.
#include "src/model/decoder.hpp"

#include "tests/unit/support.hpp"

namespace shardbench::test {
namespace {

// --- the model once more, token by token, sharing no code with src/ or kernels/

/// All weights, by declaration index.
using Weights = std::vector<Doubles>;

Doubles product(const Doubles& weight, const Doubles& x) {  // [out, in] times [in]
  Doubles y(weight.size() / x.size());
  for (std::size_t o = 0; o < y.size(); ++o)
    for (std::size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
  return y;
}

Doubles sum(Doubles a, const Doubles& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Doubles rms_norm(const Doubles& x, const Doubles& weight) {
  const double rms = std::sqrt(dot(x, x) / static_cast<double>(x.size()) + 1e-5);
  Doubles y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / rms * weight[i];
  return y;
}

Doubles rotated(Doubles x, std::size_t head_size, std::size_t position) {
  for (std::size_t i = 0; i < x.size(); i += 2) {
    const double angle =
        static_cast<double>(position) *
        std::pow(10000.0, -static_cast<double>(i % head_size) / static_cast<double>(head_size));
    const double even = x[i];
    x[i] = even * std::cos(angle) - x[i + 1] * std::sin(angle);
    x[i + 1] = even * std::sin(angle) + x[i + 1] * std::cos(angle);
  }
  return x;
}

class ReferenceModel {
 public:
  ReferenceModel(const ModelDims& dims, const Weights& weights) : d_(dims), w_(weights) {}

  /// Mean loss over all tokens of the batch.
  [[nodiscard]] double loss(const Batch& batch) const {
    double total = 0.0;
    const auto seq = static_cast<std::size_t>(d_.seq);
    for (std::size_t first = 0; first < batch.inputs.size(); first += seq) {
      std::vector<Doubles> stream;
      for (std::size_t p = 0; p < seq; ++p) stream.push_back(embedding(batch.inputs[first + p]));
      for (std::int64_t block = 0; block < d_.layers; ++block)
        stream = run_block(stream, 1 + 9 * static_cast<std::size_t>(block));
      for (std::size_t p = 0; p < seq; ++p) total += token_loss(stream[p], batch.targets[first + p]);
    }
    return total / static_cast<double>(batch.inputs.size());
  }

 private:
  [[nodiscard]] Doubles embedding(std::int32_t token) const {
    const auto first = w_[0].begin() + token * d_.hidden;
    return {first, first + d_.hidden};
  }

  [[nodiscard]] double token_loss(const Doubles& x, std::int32_t target) const {
    const std::size_t norm = 1 + 9 * static_cast<std::size_t>(d_.layers);
    const Doubles& head = d_.head == Head::tied ? w_[0] : w_[norm + 1];
    const Doubles logits = product(head, rms_norm(x, w_[norm]));
    double total = 0.0;
    for (const double z : logits) total += std::exp(z);
    return std::log(total) - logits[static_cast<std::size_t>(target)];
  }

  /// Weights t ... t+8: norm1 wq wk wv wo norm2 w1 w3 w2.
  [[nodiscard]] std::vector<Doubles> run_block(const std::vector<Doubles>& in, std::size_t t) const {
    std::vector<Doubles> q, k, v, out;
    const auto head_size = static_cast<std::size_t>(d_.hidden / d_.heads);
    for (std::size_t p = 0; p < in.size(); ++p) {
      const Doubles x = rms_norm(in[p], w_[t]);
      q.push_back(rotated(product(w_[t + 1], x), head_size, p));
      k.push_back(rotated(product(w_[t + 2], x), head_size, p));
      v.push_back(product(w_[t + 3], x));
      const Doubles middle = sum(in[p], product(w_[t + 4], attend(q[p], k, v, head_size)));
      const Doubles y = rms_norm(middle, w_[t + 5]);
      Doubles gated = product(w_[t + 6], y);
      const Doubles up = product(w_[t + 7], y);
      for (std::size_t i = 0; i < gated.size(); ++i) gated[i] *= up[i] / (1.0 + std::exp(-gated[i]));
      out.push_back(sum(middle, product(w_[t + 8], gated)));
    }
    return out;
  }

  /// One query over the keys and values so far.
  [[nodiscard]] Doubles attend(const Doubles& q, const std::vector<Doubles>& keys,
                               const std::vector<Doubles>& values, std::size_t head_size) const {
    Doubles out(q.size());
    for (std::size_t c = 0; c < q.size(); c += head_size) {
      const std::size_t kv_head = c / head_size / static_cast<std::size_t>(d_.heads / d_.kv_heads);
      double total = 0.0;
      for (std::size_t j = 0; j < keys.size(); ++j) {
        double score = 0.0;
        for (std::size_t i = 0; i < head_size; ++i) score += q[c + i] * keys[j][kv_head * head_size + i];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(head_size)));
        total += weight;
        for (std::size_t i = 0; i < head_size; ++i) out[c + i] += weight * values[j][kv_head * head_size + i];
      }
      for (std::size_t i = 0; i < head_size; ++i) out[c + i] /= total;
    }
    return out;
  }

  const ModelDims d_;
  const Weights& w_;
};

// --- the decoder under test

struct ModelCase {
  const char* name;
  ModelDims dims;
  DType dtype;
};
void PrintTo(const ModelCase& c, std::ostream* out) { *out << c.name; }

constexpr std::int64_t micro_batch = 2;
constexpr std::uint64_t seed = 11;

/// A decoder with weights large enough that every path of the gradient matters.
class DecoderUnderTest {
 public:
  explicit DecoderUnderTest(const ModelCase& c)
      : tensors_(declare_tensors(c.dims)),
        weight_table_(tensors_.size()),
        gradient_table_(tensors_.size()),
        kernels_(2, c.dims.seq, std::max(c.dims.hidden, c.dims.ffn)),
        decoder_({.dims = c.dims, .micro_batch = micro_batch, .seed = seed, .backing = Backing::memory},
                 memory_,
                 make_real_math(c.dims, local_dims(c.dims, 1, 0), micro_batch,
                                allocate_rope_tables(c.dims, memory_, Backing::memory), *kernels_)) {
    weights_.reserve(tensors_.size());
    gradients_.reserve(tensors_.size());
    for (const TensorInfo& t : tensors_) {
      const std::int64_t count = t.elements().count();
      Floats values = random_floats(count, static_cast<unsigned>(t.index), t.is_norm() ? 0.5F : 0.6F);
      if (t.is_norm())
        for (float& value : values) value += 1.0F;
      weights_.emplace_back(c.dtype, t.rows, t.columns, values);
      weight_table_.set(t.index, weights_.back().view());
      gradients_.emplace_back(static_cast<std::size_t>(count), 0.0F);
      gradient_table_.set(t.index, {gradients_.back().data(), t.rows, t.columns});
    }
  }

  void train_micro_batch(std::int64_t first_sequence) {
    decoder_.load_batch(0, first_sequence);
    for (int layer = 0; layer < decoder_.dims().layer_count(); ++layer)
      decoder_.forward(layer, weight_table_);
    for (int layer = decoder_.dims().head_layer(); layer >= 0; --layer)
      decoder_.backward(layer, weight_table_, gradient_table_);
  }

  [[nodiscard]] Weights weights() const {
    Weights result;
    for (const Stored& weight : weights_) result.push_back(widened(weight.values()));
    return result;
  }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
  [[nodiscard]] const Floats& gradient(int tensor) const {
    return gradients_[static_cast<std::size_t>(tensor)];
  }
  [[nodiscard]] double mean_loss() const {
    return decoder_.loss_sum() / static_cast<double>(decoder_.tokens());
  }
  Decoder& decoder() { return decoder_; }
  [[nodiscard]] const WeightTable& weight_table() const { return weight_table_; }
  [[nodiscard]] const GradientTable& gradient_table() const { return gradient_table_; }
  MemoryTracker& tracker() { return memory_.tracker(); }

 private:
  std::vector<TensorInfo> tensors_;
  WeightTable weight_table_;
  GradientTable gradient_table_;
  std::vector<Stored> weights_;
  std::vector<Floats> gradients_;
  Memory memory_;
  KernelSet kernels_;
  Decoder decoder_;
};

/// Indices spread over a tensor: its ends and some in between.
std::vector<std::size_t> sample(std::size_t elements) {
  constexpr std::size_t wanted = 9;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < wanted; ++i) indices.push_back(i * (elements - 1) / (wanted - 1));
  return indices;
}

class WholeModel : public testing::TestWithParam<ModelCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, WholeModel,
    testing::Values(ModelCase{"one_block", {1, 12, 3, 1, 7, 11, 5, Head::own}, DType::fp32},
                    ModelCase{"grouped_untied", {2, 16, 4, 2, 9, 13, 6, Head::own}, DType::fp32},
                    ModelCase{"grouped_tied", {2, 16, 4, 2, 9, 13, 6, Head::tied}, DType::fp32},
                    ModelCase{"bf16_weights", {2, 12, 6, 3, 10, 11, 7, Head::tied}, DType::bf16}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(WholeModel, LossAndGradientsMatchTheReference) {
  DecoderUnderTest tested(GetParam());
  tested.train_micro_batch(4);

  Weights weights = tested.weights();
  const ReferenceModel reference(GetParam().dims, weights);
  Batch batch;
  fill_batch(batch, GetParam().dims, seed, 0, 4, micro_batch);
  EXPECT_NEAR(tested.mean_loss(), reference.loss(batch), 1e-5);

  constexpr double step = 1e-5;
  for (const TensorInfo& t : tested.tensors()) {
    Doubles& values = weights[static_cast<std::size_t>(t.index)];
    Floats actual;
    Doubles expected;
    for (const std::size_t i : sample(values.size())) {
      const double centre = values[i];
      values[i] = centre + step;
      const double above = reference.loss(batch);
      values[i] = centre - step;
      expected.push_back((above - reference.loss(batch)) / (2.0 * step));
      values[i] = centre;
      actual.push_back(tested.gradient(t.index)[i]);
    }
    // A tensor's sampled gradients may all be small beside the model's, which are of order 0.1.
    expect_close(actual, expected, 2e-5, t.name, 1e-2);
  }
}

TEST_P(WholeModel, GradientsOfMicroBatchesAdd) {
  DecoderUnderTest both(GetParam());
  both.train_micro_batch(0);
  both.train_micro_batch(2);
  DecoderUnderTest first(GetParam());
  first.train_micro_batch(0);
  DecoderUnderTest second(GetParam());
  second.train_micro_batch(2);
  for (const TensorInfo& t : both.tensors()) {
    Doubles expected = widened(first.gradient(t.index));
    const Floats& other = second.gradient(t.index);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(other[i]);
    expect_close(both.gradient(t.index), expected, 1e-5, t.name);
  }
}

TEST_P(WholeModel, KeepsWhatTheFormulaSays) {
  const ModelDims& d = GetParam().dims;
  DecoderUnderTest tested(GetParam());
  const MemoryTracker& tracker = tested.tracker();
  Decoder& decoder = tested.decoder();
  decoder.load_batch(0, 0);
  const std::int64_t tokens = d.seq * micro_batch;
  const Bytes stream(4 * tokens * d.hidden);

  // s b (12h + 4h kv/heads + 6 ffn), doubled for fp32, and 4 heads s b for the log-sum-exp. A block's input
  // counts as its own: it is the output of the layer below.
  const Bytes block(2 * tokens * (12 * d.hidden + 4 * d.hidden * d.kv_heads / d.heads + 6 * d.ffn) +
                    4 * d.heads * tokens);
  const Bytes head(4 * tokens * (d.hidden + d.vocab + 1));
  decoder.forward(0, tested.weight_table());
  EXPECT_EQ(tracker.current(Category::activations), stream);
  for (int layer = 1; layer <= d.layers; ++layer) {
    decoder.forward(layer, tested.weight_table());
    EXPECT_EQ(tracker.current(Category::activations), layer * block + stream);
  }
  decoder.forward(decoder.dims().head_layer(), tested.weight_table());
  EXPECT_EQ(tracker.current(Category::activations), d.layers * block + stream + head);

  decoder.backward(decoder.dims().head_layer(), tested.weight_table(), tested.gradient_table());
  for (std::int64_t layer = d.layers; layer >= 1; --layer) {
    EXPECT_EQ(tracker.current(Category::activations), layer * block) << "before backward of layer " << layer;
    decoder.backward(static_cast<int>(layer), tested.weight_table(), tested.gradient_table());
  }
  decoder.backward(0, tested.weight_table(), tested.gradient_table());
  EXPECT_EQ(tracker.current(Category::activations), Bytes(0));
}

TEST_P(WholeModel, FreesEverythingAfterBackward) {
  DecoderUnderTest tested(GetParam());
  const Bytes before = tested.tracker().total();
  for (const std::int64_t first : {0, 2}) {
    tested.train_micro_batch(first);
    EXPECT_EQ(tested.tracker().total(), before);
  }
  EXPECT_GT(tested.tracker().total_peak(), before);
}

TEST(Decoder, RefusesALayerWhoseWeightsAreNotGathered) {
  DecoderUnderTest tested({"", {1, 12, 3, 1, 7, 11, 5, Head::own}, DType::fp32});
  const WeightTable nothing(tested.tensors().size());
  tested.decoder().load_batch(0, 0);
  EXPECT_ANY_THROW(tested.decoder().forward(0, nothing));
}

TEST(Decoder, TimedMathAccountsForTheSameMemoryWithoutAllocating) {
  const ModelDims dims{3, 12, 3, 1, 7, 11, 5, Head::own};
  const auto peaks = [&](Backing backing, std::unique_ptr<LayerMath> math, Memory& memory) {
    const std::vector<TensorInfo> tensors = declare_tensors(dims);
    WeightTable weights(tensors.size());
    for (const TensorInfo& t : tensors) weights.set(t.index, {nullptr, DType::bf16, t.rows, t.columns});
    const GradientTable gradients(tensors.size());
    Decoder decoder({.dims = dims, .micro_batch = micro_batch, .seed = seed, .backing = backing}, memory,
                    std::move(math));
    decoder.load_batch(0, 0);
    for (int layer = 0; layer < dims.layer_count(); ++layer) decoder.forward(layer, weights);
    EXPECT_TRUE(std::isnan(decoder.loss_sum()));
    for (int layer = dims.head_layer(); layer >= 0; --layer) decoder.backward(layer, weights, gradients);
    return std::pair(memory.tracker().peak(Category::activations),
                     memory.tracker().peak(Category::workspace));
  };
  std::vector<double> passed;
  Memory paper;
  // The pieces of a layer add up to the whole of it, which passes at once where nothing interrupts it.
  const auto seconds = [](int layer, Direction direction) {
    return direction == Direction::forward ? 1.0 + layer : 100.0 + layer;
  };
  const auto planned =
      peaks(Backing::none, make_timed_math(dims, seconds, [&](double s) { passed.push_back(s); }), paper);
  const std::vector<double> expected = {1, 2, 3, 4, 5, 104, 103, 102, 101, 100};
  ASSERT_EQ(passed.size(), expected.size());
  for (std::size_t i = 0; i < passed.size(); ++i) EXPECT_NEAR(passed[i], expected[i], 1e-9);

  DecoderUnderTest real({"", dims, DType::fp32});
  const Bytes tables = real.tracker().current(Category::workspace);
  real.train_micro_batch(0);
  EXPECT_EQ(planned.first, real.tracker().peak(Category::activations));
  EXPECT_EQ(planned.second + tables, real.tracker().peak(Category::workspace));
}

}  // namespace
}  // namespace shardbench::test
