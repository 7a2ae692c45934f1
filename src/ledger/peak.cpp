#include "src/ledger/peak.hpp"

#include <algorithm>
#include <deque>
#include <vector>

#include "src/comm/schedule.hpp"
#include "src/shard/layout.hpp"

namespace shardbench {
namespace {

constexpr std::int64_t fp32 = 4;

/// What a collective over `ranks` needs to add what it receives (src/comm/schedule.hpp): segments of a MiB,
/// four at once, and for bf16 in direct schedules an fp32 sum of each; when doubling, up to half of all
/// blocks.
Bytes staging(Collective collective, DType dtype, std::int64_t elements, int ranks, int node_size,
              Algorithm algorithm) {
  if (ranks == 1 || collective == Collective::all_gather || algorithm == Algorithm::native ||
      is_modelled(algorithm))
    return Bytes(0);
  constexpr std::int64_t segment_bytes = 1 << 20;
  constexpr auto at_once = static_cast<std::int64_t>(concurrent_chains);
  const std::int64_t block = ceil_div(elements, ranks);
  const Algorithm chosen = resolve(algorithm, {.collective = collective,
                                               .algorithm = algorithm,
                                               .dtype = dtype,
                                               .size = Elements(elements),
                                               .ranks = ranks});
  if (chosen == Algorithm::doubling) {
    std::int64_t blocks = 0;
    for (std::int64_t distance = 1; distance < ranks; distance *= 2)
      blocks = std::max(blocks, std::min(distance, ranks - distance));
    return bytes_of(dtype, Elements(blocks * block));
  }
  const std::int64_t segments = std::max<std::int64_t>(1, ceil_div(block * size_of(dtype), segment_bytes));
  const std::int64_t staged = std::min(segments, at_once) * ceil_div(block, segments);
  if (chosen == Algorithm::hierarchical &&
      node_size > 1)  // inside a node, a segment of a block of every node at a time
    return bytes_of(dtype, Elements(staged * ceil_div(ranks, node_size)));
  const bool sums_in_fp32 = chosen == Algorithm::direct && dtype == DType::bf16;
  return Bytes(staged * (size_of(dtype) + (sums_in_fp32 ? fp32 : 0)));
}

/// Bytes that are held while this lives.
class Hold {
 public:
  Hold(Bytes& account, std::int64_t bytes) : account_(account), bytes_(bytes) { account_ += bytes_; }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { account_ -= bytes_; }

 private:
  Bytes& account_;
  Bytes bytes_;
};

/// One step of one rank on paper.
class Walk {
 public:
  Walk(const Options& options, int stage, const Mesh& mesh, int threads)
      : o_(options),
        stage_(stage),
        mesh_(mesh),
        local_(local_dims(options.dims, mesh.tp, mesh.tp_index)),
        tensors_(tensor_parallel_part(declare_tensors(options.dims), mesh.tp, mesh.tp_index)),
        cuts_sequence_(mesh.tp > 1 && options.sequence_parallel == SequenceParallel::on),
        tokens_(options.micro_batch * options.dims.seq),
        stream_(fp32 * (cuts_sequence_ ? tokens_ / mesh.tp : tokens_) * options.dims.hidden),
        whole_(fp32 * tokens_ * options.dims.hidden) {
    if (stage == 3) {
      grouping_ = make_grouping(options.dims, options.wrap);
      layouts_ = make_group_layouts(options.layout, grouping_.groups, options.dims, mesh);
      held_.resize(layouts_.size());
      copied_.resize(layouts_.size());
      unsharded_.resize(layouts_.size());
    } else {
      const Bytes cap(options.bucket_mb << 20);
      const bool small_first = stage == 0 && options.bucket_mb == default_bucket_mb;
      buckets_ = make_buckets(tensors_, options.reduce_dtype, small_first ? Bytes(1 << 20) : cap, cap);
      layouts_ = make_bucket_layouts(buckets_, tensors_, stage == 0 ? 1 : mesh.dp);
      unsharded_.resize(tensors_.size());
    }
    rest();
    // Kernel scratch: a panel of widened weights, or tiles of attention scores (docs/memory.md).
    const ModelDims& d = o_.dims;
    if (o_.compute == Compute::real) {
      now_.workspace += Bytes(
          fp32 * std::max({std::int64_t{1} << 20, 16 * std::max(d.hidden, d.ffn), 128 * d.seq * threads}));
      now_.workspace += Bytes(fp32 * d.seq * d.head_size());  // RoPE's tables
    }
  }

  ExpectedPeak run() {
    const int head = o_.dims.head_layer();
    phase_ = Phase::forward;
    for (int layer = 0; layer <= head; ++layer) forward(layer);
    phase_ = Phase::backward;
    for (int layer = head; layer >= 0; --layer) backward(layer);
    while (!reductions_.empty()) finish_reduction();
    phase_ = Phase::optimizer;
    note();
    return peak_;
  }

 private:
  struct Reduction {
    Bytes buffer;
    Bytes staging;
  };

  void note() {
    MemoryUse& largest = peak_.phases[static_cast<std::size_t>(phase_)];
    if (now_.total() > largest.total()) largest = now_;
  }

  /// What rests between steps.
  void rest() {
    std::int64_t owned = 0;
    std::int64_t real = 0;
    std::int64_t gathered = 0;
    for (const GroupLayout& layout : layouts_) {
      owned += total(layout.slices(layout.parts() == 1 ? 0 : mesh_.dp_index)).count();
      real += layout.real().count();
      gathered += layout.gathered().count();
    }
    const bool master_apart = o_.param_dtype != DType::fp32;
    const std::int64_t parameter = size_of(o_.param_dtype);
    const std::int64_t gradient = parameter + (o_.fp32_grad_accum == Fp32Accumulation::on ? fp32 : 0);
    now_.parameters = Bytes(parameter * (stage_ == 3 ? owned : gathered));
    now_.gradients = Bytes(gradient * (stage_ >= 2 ? owned : real));
    now_.optimizer = Bytes((master_apart ? 12 : 8) * owned);
  }

  void forward(int layer) {
    gather(layer, +1, o_.prefetch.forward);
    if (layer == o_.dims.head_layer()) {
      now_.activations += Bytes(whole_ + fp32 * tokens_);
      now_.logits += Bytes(fp32 * tokens_ * local_.vocab.count());
      gather_activations();
      const Hold rows(now_.workspace, mesh_.tp > 1 ? 3 * fp32 * tokens_ : 0);
      note();
    } else {
      now_.activations += Bytes(stream_);
      if (layer == 0) {
        const Hold partial(now_.workspace, cuts_sequence_ ? whole_ : 0);
        sum_activations();
      } else {
        const std::int64_t kept = block();
        now_.activations += Bytes(kept);
        forward_exchanges();
        if (o_.recompute == Recompute::full) now_.activations -= Bytes(kept);
      }
    }
    if (stage_ == 3 && is_freed_after_forward(group_of(layer))) free_gathered(group_of(layer));
  }

  void backward(int layer) {
    gather(layer, -1, o_.prefetch.backward);
    open_gradients(layer);
    compute_backward(layer);
    if (stage_ == 3) {
      const int group = group_of(layer);
      if (layer > grouping_.groups[static_cast<std::size_t>(group)].id) return;  // the root has more to do
      free_gathered(group);
      if (o_.rs_wait == ReduceScatterWait::next && !reductions_.empty()) finish_reduction();
      open_bucket(static_cast<std::size_t>(group));
      now_.unsharded_gradients -= unsharded_[static_cast<std::size_t>(group)];
      start_reduction(static_cast<std::size_t>(group));
      return;
    }
    if (stage_ < 2) free_gradients(tensors_of_layer(o_.dims, layer));  // added to what rests whole
    std::vector<int> final;
    for (auto tensor = tensors_.rbegin(); tensor != tensors_.rend(); ++tensor) {
      if (tensor->layer != layer) continue;
      final.push_back(tensor->index);
      const std::vector<int>& bucket = buckets_[filling_].tensors;
      if (bucket.front() == tensor->index) open_bucket(filling_);
      if (bucket.back() != tensor->index) continue;
      if (stage_ > 0 && o_.rs_wait == ReduceScatterWait::next && !reductions_.empty()) finish_reduction();
      start_reduction(filling_++);
    }
    if (stage_ == 2) free_gradients(final);
  }

  void compute_backward(int layer) {
    const std::int64_t stream_rows = fp32 * (cuts_sequence_ ? tokens_ / mesh_.tp : tokens_);
    if (layer == o_.dims.head_layer()) {
      now_.workspace += Bytes(stream_);  // the stream's gradient, until the embedding has used it
      const Hold work(now_.workspace, whole_ + stream_rows);
      sum_activations();
      now_.activations -= Bytes(whole_ + fp32 * tokens_);
      now_.logits = Bytes(0);
    } else if (layer == 0) {
      const Hold gradient(now_.workspace, cuts_sequence_ ? whole_ : 0);
      gather_activations();
      now_.workspace -= Bytes(stream_);
    } else {
      if (o_.recompute == Recompute::full) {
        now_.activations += Bytes(block());
        forward_exchanges();
      }
      const std::int64_t head_size = o_.dims.head_size();
      const std::int64_t columns =
          3 * local_.ffn + o_.dims.hidden + (2 * local_.heads + 2 * local_.kv_heads) * head_size;
      const Hold work(now_.workspace, fp32 * tokens_ * columns + stream_rows);
      {
        const Hold gradient(now_.workspace, cuts_sequence_ ? whole_ : 0);
        gather_activations();
      }
      sum_activations();
      now_.activations -= Bytes(block());
    }
    if (layer > 0) now_.activations -= Bytes(stream_);  // the layer's input
  }

  /// What a block keeps for backward, in bytes.
  [[nodiscard]] std::int64_t block() const {
    const std::int64_t head_size = o_.dims.head_size();
    const std::int64_t columns = 2 * o_.dims.hidden + (2 * local_.heads + 2 * local_.kv_heads) * head_size +
                                 local_.heads + 3 * local_.ffn;
    return fp32 * tokens_ * columns + stream_;
  }

  void forward_exchanges() {
    gather_activations();
    const Hold partial(now_.workspace, mesh_.tp > 1 ? whole_ : 0);
    sum_activations();
  }

  [[nodiscard]] std::int64_t message() const {
    return mesh_.tp > 1 && o_.param_dtype == DType::bf16 ? whole_ / 2 : 0;
  }
  /// An all-gather over tp, where the sequence is cut.
  void gather_activations() {
    const Hold cast(now_.workspace, cuts_sequence_ ? message() : 0);
    note();
  }
  /// An all-reduce or reduce-scatter over tp.
  void sum_activations() {
    const Hold cast(now_.workspace, message());
    const Bytes staged =
        staging(cuts_sequence_ ? Collective::reduce_scatter : Collective::all_reduce, o_.param_dtype,
                whole_ / fp32, mesh_.tp, node_size(mesh_.tp, 1), o_.algorithm);
    const Hold added(now_.workspace, staged.count());
    note();
  }

  void gather(int layer, int direction, int ahead) {
    if (stage_ < 3) return;
    for (int i = 0; i <= ahead; ++i) {
      const int next = layer + direction * i;
      if (next < 0 || next > o_.dims.head_layer()) break;
      Bytes& held = held_[static_cast<std::size_t>(group_of(next))];
      if (held != Bytes(0)) continue;
      held = gathered_bytes(group_of(next));
      now_.gathered += held;
      note();
    }
    const int group = group_of(layer);
    const auto g = static_cast<std::size_t>(group);
    if (layouts_[g].in_place() || copied_[g]) return;
    const Bytes copy = bytes_of(o_.param_dtype, layouts_[g].real());
    now_.gathered += copy;
    note();
    now_.gathered -= held_[g];
    held_[g] = copy;
    copied_[g] = true;
  }

  void free_gathered(int group) {
    const auto g = static_cast<std::size_t>(group);
    now_.gathered -= held_[g];
    held_[g] = Bytes(0);
    copied_[g] = false;
  }

  void open_gradients(int layer) {
    const auto open = [&](std::size_t index, Bytes bytes) {
      if (unsharded_[index] != Bytes(0)) return;
      unsharded_[index] = bytes;
      now_.unsharded_gradients += bytes;
    };
    if (stage_ == 3) {
      const auto g = static_cast<std::size_t>(group_of(layer));
      open(g, bytes_of(DType::fp32, layouts_[g].real()));
      return;
    }
    for (const int tensor : tensors_of_layer(o_.dims, layer)) {
      const auto t = static_cast<std::size_t>(tensor);
      open(t, bytes_of(DType::fp32, tensors_[t].elements()));
    }
  }

  void free_gradients(const std::vector<int>& tensors) {
    for (const int tensor : tensors) {
      Bytes& bytes = unsharded_[static_cast<std::size_t>(tensor)];
      now_.unsharded_gradients -= bytes;
      bytes = Bytes(0);
    }
  }

  void open_bucket(std::size_t index) {
    now_.reduce_buffers += bytes_of(o_.reduce_dtype, layouts_[index].gathered());
    note();
  }
  void start_reduction(std::size_t index) {
    if (stage_ == 3) unsharded_[index] = Bytes(0);
    const Elements size = layouts_[index].gathered();
    reductions_.push_back(
        {bytes_of(o_.reduce_dtype, size),
         staging(stage_ == 0 ? Collective::all_reduce : Collective::reduce_scatter, o_.reduce_dtype,
                 size.count(), mesh_.dp, node_size(mesh_.dp, mesh_.tp), o_.algorithm)});
    now_.workspace += reductions_.back().staging;
    note();
  }
  void finish_reduction() {
    now_.reduce_buffers -= reductions_.front().buffer;
    now_.workspace -= reductions_.front().staging;
    reductions_.pop_front();
  }

  /// Members of a group that share a node, where neighbours are `stride` ranks apart (one node unless
  /// --ranks-per-node says otherwise).
  [[nodiscard]] int node_size(int members, int stride) const {
    return std::clamp(o_.ranks_per_node.value_or(members * stride) / stride, 1, members);
  }

  [[nodiscard]] int group_of(int layer) const {
    return grouping_.group_of_layer[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] Bytes gathered_bytes(int group) const {
    return bytes_of(o_.param_dtype, layouts_[static_cast<std::size_t>(group)].gathered());
  }
  [[nodiscard]] bool is_freed_after_forward(int group) const {
    if (o_.reshard == ReshardAfterForward::none || (o_.wrap == Wrap::root && group == 0)) return false;
    return o_.reshard == ReshardAfterForward::all || group != group_of(o_.dims.head_layer());
  }

  const Options& o_;
  int stage_;
  Mesh mesh_;
  LocalDims local_;
  std::vector<TensorInfo> tensors_;
  bool cuts_sequence_;
  std::int64_t tokens_;
  std::int64_t stream_;          ///< bytes of the residual stream
  std::int64_t whole_;           ///< bytes of [T, h]
  Grouping grouping_;            ///< stage 3
  std::vector<Bucket> buckets_;  ///< stages 0 to 2
  std::vector<GroupLayout> layouts_;
  std::vector<Bytes> held_;       ///< by group: gathered now
  std::vector<bool> copied_;      ///< by group: copied out
  std::vector<Bytes> unsharded_;  ///< by group, or by tensor: gradients held now
  std::size_t filling_ = 0;       ///< the first bucket that is not full
  std::deque<Reduction> reductions_;
  Phase phase_ = Phase::forward;
  MemoryUse now_;
  ExpectedPeak peak_;
};

}  // namespace

Phase ExpectedPeak::largest() const {
  Phase result = Phase::forward;
  for (const Phase phase : {Phase::backward, Phase::optimizer})
    if (of(phase).total() > of(result).total()) result = phase;
  return result;
}

ExpectedPeak expected_peak(const Options& options, int stage, const Mesh& mesh, int threads) {
  return Walk(options, stage, mesh, threads).run();
}

}  // namespace shardbench
