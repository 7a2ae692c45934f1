// The whole model: loss and gradients against a decoder written again in double, and what it keeps in memory;
// the same model shared out over tensor-parallel ranks.
#include "src/model/decoder.hpp"

#include <barrier>
#include <limits>
#include <thread>

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

/// How a decoder is run.
struct Sharing {
  Recompute recompute = Recompute::none;
  TensorParallelGroup* group = nullptr;
  SequenceParallel sequence_parallel = SequenceParallel::off;

  [[nodiscard]] int tp() const { return group == nullptr ? 1 : group->size(); }
  [[nodiscard]] int index() const { return group == nullptr ? 0 : group->rank(); }
};

/// A decoder with weights large enough that every path of the gradient matters, or a tensor-parallel rank's
/// part of it.
class DecoderUnderTest {
 public:
  explicit DecoderUnderTest(const ModelCase& c, const Sharing& sharing = {})
      : tensors_(tensor_parallel_part(declare_tensors(c.dims), sharing.tp(), sharing.index())),
        weight_table_(tensors_.size()),
        gradient_table_(tensors_.size()),
        kernels_(sharing.group == nullptr ? 2 : 1, c.dims.seq, std::max(c.dims.hidden, c.dims.ffn)),
        decoder_({.dims = c.dims,
                  .micro_batch = micro_batch,
                  .seed = seed,
                  .backing = Backing::memory,
                  .recompute = sharing.recompute,
                  .group = sharing.group,
                  .sequence_parallel = sharing.sequence_parallel},
                 memory_,
                 make_real_math(c.dims, local_dims(c.dims, sharing.tp(), sharing.index()), micro_batch,
                                allocate_rope_tables(c.dims, memory_, Backing::memory), *kernels_)) {
    const std::vector<TensorInfo> declared = declare_tensors(c.dims);
    weights_.reserve(tensors_.size());
    gradients_.reserve(tensors_.size());
    for (const TensorInfo& t : tensors_) {
      const std::int64_t count = t.elements().count();
      const Floats whole = random_floats(declared[static_cast<std::size_t>(t.index)].elements().count(),
                                         static_cast<unsigned>(t.index), t.is_norm() ? 0.5F : 0.6F);
      Floats values(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i)
        values[static_cast<std::size_t>(i)] = whole[static_cast<std::size_t>(t.declared_element(i))];
      if (t.is_norm())
        for (float& value : values) value += 1.0F;
      weights_.emplace_back(c.dtype, t.rows, t.columns, values);
      weight_table_.set(t.index, weights_.back().view());
      gradients_.emplace_back(static_cast<std::size_t>(count), 0.0F);
      gradient_table_.set(t.index, {gradients_.back().data(), t.rows, t.columns});
    }
  }

  void train_micro_batch(std::int64_t first_sequence) {
    decoder_.begin_step();
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

TEST_P(WholeModel, RecomputationChangesNoBit) {
  DecoderUnderTest keeping(GetParam());
  DecoderUnderTest recomputing(GetParam(), {.recompute = Recompute::full});
  for (DecoderUnderTest* tested : {&keeping, &recomputing}) {
    tested->train_micro_batch(0);
    tested->train_micro_batch(2);
  }
  EXPECT_EQ(keeping.mean_loss(), recomputing.mean_loss());
  for (const TensorInfo& t : keeping.tensors())
    EXPECT_EQ(keeping.gradient(t.index), recomputing.gradient(t.index)) << t.name;
}

TEST_P(WholeModel, RecomputationKeepsOnlyTheBlocksInputs) {
  const ModelDims& d = GetParam().dims;
  DecoderUnderTest tested(GetParam(), {.recompute = Recompute::full});
  const MemoryTracker& tracker = tested.tracker();
  Decoder& decoder = tested.decoder();
  decoder.load_batch(0, 0);
  const Bytes before = tracker.total();
  const std::int64_t tokens = d.seq * micro_batch;
  const Bytes stream(4 * tokens * d.hidden);
  for (int layer = 0; layer <= d.layers; ++layer) {
    decoder.forward(layer, tested.weight_table());
    EXPECT_EQ(tracker.current(Category::activations), (layer + 1) * stream);
  }
  decoder.forward(decoder.dims().head_layer(), tested.weight_table());
  decoder.backward(decoder.dims().head_layer(), tested.weight_table(), tested.gradient_table());
  for (std::int64_t layer = d.layers; layer >= 1; --layer) {
    EXPECT_EQ(tracker.current(Category::activations), layer * stream) << "before backward of layer " << layer;
    decoder.backward(static_cast<int>(layer), tested.weight_table(), tested.gradient_table());
  }
  decoder.backward(0, tested.weight_table(), tested.gradient_table());
  EXPECT_EQ(tracker.total(), before);
}

// --- tensor parallelism: ranks are threads, and collectives read the peers' buffers

/// What the ranks of one group share.
class Meeting {
 public:
  explicit Meeting(int size) : buffers_(static_cast<std::size_t>(size)), barrier_(size) {}

  [[nodiscard]] int size() const { return static_cast<int>(buffers_.size()); }

  /// Shows a buffer to the others, lets `read` look at everyone's, and `write` when all have looked.
  template <class Read, class Write>
  void exchange(int rank, std::span<float> own, Read read, Write write) {
    buffers_[static_cast<std::size_t>(rank)] = own;
    barrier_.arrive_and_wait();
    const auto seen = read(buffers_);
    barrier_.arrive_and_wait();
    write(seen);
  }

 private:
  std::vector<std::span<float>> buffers_;
  std::barrier<> barrier_;
};

class ThreadGroup final : public TensorParallelGroup {
 public:
  ThreadGroup(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  [[nodiscard]] int size() const override { return meeting_.size(); }
  [[nodiscard]] int rank() const override { return rank_; }

  void all_reduce(const BufferRef& values, int layer) override {
    all_reduce_exactly(values, Reduction::sum, layer);
  }
  void all_gather(const BufferRef& values, int /*layer*/) override {
    const std::span<float> own = values_in(*values);
    meeting_.exchange(
        rank_, own,
        [&](const auto& buffers) {
          Floats gathered;
          for (std::size_t r = 0; r < buffers.size(); ++r) {
            const auto block = block_of(buffers[r], r);
            gathered.insert(gathered.end(), block.begin(), block.end());
          }
          return gathered;
        },
        [&](const Floats& gathered) { std::copy(gathered.begin(), gathered.end(), own.begin()); });
    ++calls_;
  }
  void reduce_scatter(const BufferRef& values, int /*layer*/) override {
    const std::span<float> own = values_in(*values);
    meeting_.exchange(
        rank_, own, [&](const auto& buffers) { return combined(buffers, Reduction::sum); },
        [&](const Floats& sums) {
          const auto r = static_cast<std::size_t>(rank_);
          std::fill(own.begin(), own.end(),
                    std::numeric_limits<float>::quiet_NaN());  // undefined: who reads it?
          const auto block = block_of(own, r);
          std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(r * block.size()), block.size(),
                      block.begin());
        });
    ++calls_;
  }
  void all_reduce_exactly(const BufferRef& values, Reduction reduction, int /*layer*/) override {
    const std::span<float> own = values_in(*values);
    meeting_.exchange(
        rank_, own, [&](const auto& buffers) { return combined(buffers, reduction); },
        [&](const Floats& results) { std::copy(results.begin(), results.end(), own.begin()); });
    ++calls_;
  }
  [[nodiscard]] int calls() const { return calls_; }

 private:
  [[nodiscard]] std::span<float> block_of(std::span<float> buffer, std::size_t rank) const {
    const std::size_t block = buffer.size() / static_cast<std::size_t>(size());
    return buffer.subspan(rank * block, block);
  }
  static Floats combined(const std::vector<std::span<float>>& buffers, Reduction reduction) {
    Floats results(buffers[0].begin(), buffers[0].end());
    for (std::size_t r = 1; r < buffers.size(); ++r)
      for (std::size_t i = 0; i < results.size(); ++i)
        results[i] =
            reduction == Reduction::sum ? results[i] + buffers[r][i] : std::max(results[i], buffers[r][i]);
    return results;
  }

  Meeting& meeting_;
  int rank_;
  int calls_ = 0;
};

/// What the ranks of a group have after two micro-batches.
struct SharedTraining {
  std::vector<double> losses;     ///< by rank
  std::vector<Floats> gradients;  ///< by declared tensor, put together from the parts
  std::vector<int> calls;         ///< collectives, by rank
};

SharedTraining train_shared(const ModelCase& c, int tp, SequenceParallel sequence_parallel,
                            Recompute recompute) {
  const std::vector<TensorInfo> declared = declare_tensors(c.dims);
  SharedTraining result{.losses = std::vector<double>(static_cast<std::size_t>(tp)),
                        .gradients = {},
                        .calls = std::vector<int>(static_cast<std::size_t>(tp))};
  for (const TensorInfo& t : declared)
    result.gradients.emplace_back(static_cast<std::size_t>(t.elements().count()));

  Meeting meeting(tp);
  std::vector<std::unique_ptr<ThreadGroup>> groups;
  std::vector<std::unique_ptr<DecoderUnderTest>> ranks;
  for (int rank = 0; rank < tp; ++rank) {
    groups.push_back(std::make_unique<ThreadGroup>(meeting, rank));
    ranks.push_back(std::make_unique<DecoderUnderTest>(c, Sharing{.recompute = recompute,
                                                                  .group = groups.back().get(),
                                                                  .sequence_parallel = sequence_parallel}));
  }
  const Bytes before = ranks[0]->tracker().total();
  {
    std::vector<std::jthread> threads;
    for (const auto& rank : ranks)
      threads.emplace_back([&tested = *rank] {
        tested.train_micro_batch(0);
        tested.train_micro_batch(2);
      });
  }
  EXPECT_EQ(ranks[0]->tracker().total(), before) << "something is kept after backward";

  for (std::size_t r = 0; r < ranks.size(); ++r) {
    result.losses[r] = ranks[r]->mean_loss();
    result.calls[r] = groups[r]->calls();
    for (const TensorInfo& t : ranks[r]->tensors()) {
      const Floats& part = ranks[r]->gradient(t.index);
      Floats& whole = result.gradients[static_cast<std::size_t>(t.index)];
      // Without sequence parallelism each rank has a norm's whole gradient; with it that of its own tokens.
      if (t.is_norm() && sequence_parallel == SequenceParallel::off) {
        if (r == 0) whole = part;
        EXPECT_EQ(whole, part) << t.name << " of rank " << r;
        continue;
      }
      for (std::int64_t i = 0; i < t.elements().count(); ++i)
        whole[static_cast<std::size_t>(t.declared_element(i))] += part[static_cast<std::size_t>(i)];
    }
  }
  return result;
}

struct SharedCase {
  const char* name;
  ModelDims dims;
  DType dtype;
  int tp;
};
void PrintTo(const SharedCase& c, std::ostream* out) { *out << c.name; }

class SharedModel : public testing::TestWithParam<std::tuple<SharedCase, SequenceParallel>> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, SharedModel,
    testing::Combine(
        testing::Values(
            SharedCase{"even2", {2, 16, 4, 2, 8, 12, 6, Head::own}, DType::fp32, 2},
            SharedCase{"even2_tied", {2, 16, 4, 2, 8, 12, 6, Head::tied}, DType::fp32, 2},
            SharedCase{"odd2", {1, 16, 4, 4, 9, 13, 8, Head::own}, DType::fp32, 2},
            SharedCase{"odd4_tied", {2, 16, 4, 4, 9, 13, 8, Head::tied}, DType::fp32, 4},
            SharedCase{"grouped4", {1, 32, 8, 4, 10, 14, 4, Head::own}, DType::fp32, 4},
            // Chunks of 2, 2, 1 and 0 rows: the last rank has no row of the vocabulary, nor of ffn.
            SharedCase{"empty4", {1, 16, 4, 4, 5, 5, 4, Head::own}, DType::fp32, 4},
            SharedCase{"empty4_tied", {2, 16, 4, 4, 5, 5, 4, Head::tied}, DType::fp32, 4},
            SharedCase{"odd3_bf16", {1, 12, 6, 3, 7, 11, 9, Head::tied}, DType::bf16, 3}),
        testing::Values(SequenceParallel::off, SequenceParallel::on)),
    [](const auto& tested) {
      return std::string(std::get<0>(tested.param).name) +
             (std::get<1>(tested.param) == SequenceParallel::on ? "_sequence_parallel" : "");
    });

TEST_P(SharedModel, TrainsLikeTheWholeOne) {
  const auto& [c, sequence_parallel] = GetParam();
  const ModelCase model{c.name, c.dims, c.dtype};
  DecoderUnderTest whole(model);
  whole.train_micro_batch(0);
  whole.train_micro_batch(2);

  const SharedTraining shared = train_shared(model, c.tp, sequence_parallel, Recompute::none);
  for (const double loss : shared.losses) {
    EXPECT_EQ(loss, shared.losses[0]) << "ranks disagree";
    EXPECT_NEAR(loss, whole.mean_loss(), 1e-5);
  }
  for (const TensorInfo& t : whole.tensors())
    expect_close(shared.gradients[static_cast<std::size_t>(t.index)], widened(whole.gradient(t.index)), 1e-5,
                 t.name, 1e-2);

  // Two micro-batches of 2 (2L + 1) exchanges of the stream, and with sequence parallelism twice as many; 3
  // for the loss.
  const int exchanges = 2 * (2 * static_cast<int>(c.dims.layers) + 1);
  const int times = sequence_parallel == SequenceParallel::on ? 2 : 1;
  for (const int calls : shared.calls) EXPECT_EQ(calls, 2 * (times * exchanges + 3));
}

TEST_P(SharedModel, RecomputationChangesNoBit) {
  const auto& [c, sequence_parallel] = GetParam();
  const ModelCase model{c.name, c.dims, c.dtype};
  const SharedTraining keeping = train_shared(model, c.tp, sequence_parallel, Recompute::none);
  const SharedTraining recomputing = train_shared(model, c.tp, sequence_parallel, Recompute::full);
  EXPECT_EQ(keeping.losses, recomputing.losses);
  EXPECT_EQ(keeping.gradients, recomputing.gradients);
  // A block's forward collectives but the one after w2.
  const int again = 2 * static_cast<int>(c.dims.layers) * (sequence_parallel == SequenceParallel::on ? 3 : 1);
  for (std::size_t r = 0; r < keeping.calls.size(); ++r)
    EXPECT_EQ(recomputing.calls[r], keeping.calls[r] + again);
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
  const auto seconds = [](int layer, Pass pass) {
    return pass == Pass::forward ? 1.0 + layer : 100.0 + layer;
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

TEST(Decoder, TimedMathRecomputesForAsLongAsItSays) {
  const ModelDims dims{2, 12, 3, 1, 7, 11, 5, Head::own};
  const std::vector<TensorInfo> tensors = declare_tensors(dims);
  WeightTable weights(tensors.size());
  for (const TensorInfo& t : tensors) weights.set(t.index, {nullptr, DType::bf16, t.rows, t.columns});
  const GradientTable gradients(tensors.size());
  double passed = 0.0;
  std::vector<std::pair<int, Pass>> passes;
  Memory memory;
  Decoder decoder({.dims = dims,
                   .micro_batch = micro_batch,
                   .seed = seed,
                   .backing = Backing::none,
                   .recompute = Recompute::full,
                   .on_pass = [&](int layer, Pass pass) { passes.emplace_back(layer, pass); }},
                  memory,
                  make_timed_math(
                      dims,
                      [](int, Pass pass) {
                        return pass == Pass::forward ? 1.0 : pass == Pass::recompute ? 0.75 : 2.0;
                      },
                      [&](double seconds) { passed += seconds; }));
  for (int layer = 0; layer < dims.layer_count(); ++layer) decoder.forward(layer, weights);
  EXPECT_NEAR(passed, 4.0, 1e-9);
  decoder.backward(dims.head_layer(), weights, gradients);
  passed = 0.0;
  passes.clear();
  decoder.backward(2, weights, gradients);
  EXPECT_NEAR(passed, 2.0 + 0.75, 1e-9) << "backward, and all that is recomputed";
  EXPECT_EQ(passes, (std::vector<std::pair<int, Pass>>{{2, Pass::backward}, {2, Pass::recompute}}));
}

}  // namespace
}  // namespace shardbench::test
