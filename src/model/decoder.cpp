#include "src/model/decoder.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {
namespace {

LocalDims local_dims_of(const Decoder::Settings& settings) {
  const TensorParallelGroup* group = settings.group;
  return group == nullptr ? local_dims(settings.dims, 1, 0)
                          : local_dims(settings.dims, group->size(), group->rank());
}

void count_from(std::vector<std::int32_t>& tokens, const RowRange& vocabulary) {
  for (std::int32_t& token : tokens) {
    const bool here = token >= vocabulary.begin && token < vocabulary.end;
    token = here ? token - static_cast<std::int32_t>(vocabulary.begin) : -1;
  }
}

}  // namespace

Decoder::Decoder(const Settings& settings, Memory& memory, std::unique_ptr<LayerMath> math)
    : settings_(settings),
      local_(local_dims_of(settings)),
      memory_(memory),
      math_(std::move(math)),
      input_(static_cast<std::size_t>(settings.dims.layer_count()) + 1),
      kept_(static_cast<std::size_t>(settings.dims.layer_count())) {
  SHARDBENCH_ASSERT(!cuts_sequence() || settings.dims.seq % tp() == 0);
  if (settings.backing != Backing::memory) return;
  Device& device = *memory.device();
  loss_sum_.emplace(memory.device(), 0.0);
  tokens_ = device.allocate(Bytes(2 * tokens() * static_cast<std::int64_t>(sizeof(std::int32_t))));
  auto* const first = reinterpret_cast<const std::int32_t*>(tokens_.get());
  device_batch_ = {.inputs = {first, tokens()}, .targets = {first + tokens(), tokens()}};
}

void Decoder::begin_step() {
  if (loss_sum_) loss_sum_->set(0.0);
}

double Decoder::loss_sum() const {
  return loss_sum_ ? loss_sum_->get() : std::numeric_limits<double>::quiet_NaN();
}

void Decoder::load_batch(std::int64_t step, std::int64_t first_sequence) {
  if (settings_.backing != Backing::memory) return;
  fill_batch(batch_, settings_.dims, settings_.seed, step, first_sequence, settings_.micro_batch);
  count_from(batch_.inputs, local_.vocab);
  count_from(batch_.targets, local_.vocab);
  auto* const first = reinterpret_cast<std::int32_t*>(tokens_.get());
  write_values<std::int32_t>(*memory_.device(), {first, tokens()}, batch_.inputs);
  write_values<std::int32_t>(*memory_.device(), {first + tokens(), tokens()}, batch_.targets);
}

void Decoder::enter(int layer, Pass pass) {
  math_->enter(pass);
  if (settings_.on_pass) settings_.on_pass(layer, pass);
}

void Decoder::forward(int layer, const WeightTable& weights) {
  for (const int tensor : tensors_of_layer(settings_.dims, layer)) SHARDBENCH_ASSERT(weights.has(tensor));
  const auto l = static_cast<std::size_t>(layer);
  enter(layer, Pass::forward);
  if (layer == settings_.dims.head_layer()) {
    forward_head(weights);
  } else {
    input_[l + 1] = allocate_stream(Category::activations);
    if (layer == 0) {
      forward_embedding(weights);
    } else {
      BlockActivations kept = allocate_block();
      forward_block(layer, weights, kept, input_[l + 1]);
      if (settings_.recompute == Recompute::none) kept_[l] = std::move(kept);
    }
  }
  math_->settle();
}

void Decoder::backward(int layer, const WeightTable& weights, const GradientTable& gradients) {
  enter(layer, Pass::backward);
  if (layer == settings_.dims.head_layer()) {
    backward_head(weights, gradients);
  } else if (layer == 0) {
    math_->embedding_backward(device_batch_, gradients, *gradient_for_region(0));
    d_stream_.reset();
  } else {
    backward_block(layer, weights, gradients);
  }
  math_->settle();
  input_[static_cast<std::size_t>(layer)].reset();
}

void Decoder::forward_embedding(const WeightTable& weights) {
  const BufferRef& y = input_[1];
  if (!cuts_sequence()) {
    math_->embedding_forward(device_batch_, weights, *y);
    if (tp() > 1) all_reduce(y, 0);
    return;
  }
  const BufferRef whole = allocate_whole(Category::workspace);
  math_->embedding_forward(device_batch_, weights, *whole);
  reduce_scatter(whole, 0);
  math_->copy(*y, *own_tokens(whole));
}

void Decoder::forward_block(int layer, const WeightTable& weights, const BlockActivations& kept,
                            const BufferRef& y) {
  const BufferRef& x = input_[static_cast<std::size_t>(layer)];
  enter_region(layer, tensor_index(dims(), TensorRole::norm1, layer), weights, x, kept.normed1);
  math_->attention_forward(layer, weights, kept);
  leave_region(layer, x, kept.x_middle, [&](const Buffer& out, kernels::Output output) {
    math_->attention_output(layer, weights, kept, out, output);
  });

  enter_region(layer, tensor_index(dims(), TensorRole::norm2, layer), weights, kept.x_middle, kept.normed2);
  math_->mlp_forward(layer, weights, kept);
  if (y == nullptr) return;
  leave_region(layer, kept.x_middle, y, [&](const Buffer& out, kernels::Output output) {
    math_->mlp_output(layer, weights, kept, out, output);
  });
}

void Decoder::forward_head(const WeightTable& weights) {
  const int layer = dims().head_layer();
  head_ = {.normed = allocate_whole(Category::activations),
           .logits = allocate(Category::activations, tokens() * local_.vocab.count()),
           .losses = allocate(Category::activations, tokens())};
  enter_region(layer, tensor_index(dims(), TensorRole::final_norm), weights,
               input_[static_cast<std::size_t>(layer)], head_.normed);
  math_->logits_forward(weights, head_);
  if (tp() == 1) {
    math_->loss(device_batch_, head_, step_loss());
    return;
  }
  const auto row_values = [&] { return allocate(Category::workspace, tokens()); };
  const RowStatistics rows{.largest = row_values(), .total = row_values(), .target_logit = row_values()};
  math_->largest_logits(head_, rows);
  all_reduce_exactly(rows.largest, Reduction::maximum, layer);
  math_->exponentials(device_batch_, head_, rows);
  all_reduce_exactly(rows.total, Reduction::sum, layer);
  all_reduce_exactly(rows.target_logit, Reduction::sum, layer);
  math_->loss(device_batch_, head_, rows, step_loss());
}

void Decoder::backward_head(const WeightTable& weights, const GradientTable& gradients) {
  const int layer = dims().head_layer();
  d_stream_ = allocate_stream(Category::workspace);
  const BufferRef d_normed = allocate_whole(Category::workspace);
  const BufferRef inverse_rms = allocate(Category::workspace, stream_tokens());
  math_->head_backward(weights, gradients, head_, *d_normed);
  math_->zero(*d_stream_);
  math_->norm_backward(tensor_index(dims(), TensorRole::final_norm), weights, gradients,
                       *gradient_from_region(layer, d_normed), *input_[static_cast<std::size_t>(layer)],
                       *inverse_rms, *d_stream_);
  head_ = {};
}

void Decoder::backward_block(int layer, const WeightTable& weights, const GradientTable& gradients) {
  const auto l = static_cast<std::size_t>(layer);
  if (settings_.recompute == Recompute::full) {
    kept_[l] = allocate_block();
    enter(layer, Pass::recompute);
    forward_block(layer, weights, kept_[l], nullptr);
    math_->enter(Pass::backward);
  }
  const BlockActivations& kept = kept_[l];
  const BlockWorkspace work = allocate_block_workspace();
  // The residual passes the stream's gradient on unchanged; each half adds its share.
  math_->mlp_backward(layer, weights, gradients, *gradient_for_region(layer), kept, work);
  math_->norm_backward(tensor_index(dims(), TensorRole::norm2, layer), weights, gradients,
                       *gradient_from_region(layer, work.d_normed), *kept.x_middle, *work.inverse_rms,
                       *d_stream_);
  math_->attention_backward(layer, weights, gradients, *gradient_for_region(layer), kept, work);
  math_->norm_backward(tensor_index(dims(), TensorRole::norm1, layer), weights, gradients,
                       *gradient_from_region(layer, work.d_normed), *input_[l], *work.inverse_rms,
                       *d_stream_);
  kept_[l] = {};
}

/// Normalises the stream and makes the result whole: what the column-parallel products read.
void Decoder::enter_region(int layer, int norm, const WeightTable& weights, const BufferRef& x,
                           const BufferRef& normed) {
  if (!cuts_sequence()) {
    math_->norm_forward(norm, weights, *x, *normed);
    return;
  }
  math_->norm_forward(norm, weights, *x, *own_tokens(normed));
  all_gather(normed, layer);
}

/// y = residual + the row-parallel product, summed over the ranks.
void Decoder::leave_region(int layer, const BufferRef& residual, const BufferRef& y, const Product& product) {
  if (tp() == 1) {
    math_->copy(*y, *residual);
    product(*y, kernels::Output::accumulate);
    return;
  }
  const BufferRef partial = allocate_whole(Category::workspace);
  product(*partial, kernels::Output::overwrite);
  if (cuts_sequence()) {
    reduce_scatter(partial, layer);
  } else {
    all_reduce(partial, layer);
  }
  math_->copy(*y, *residual);
  math_->add(*y, cuts_sequence() ? *own_tokens(partial) : *partial);
}

/// The gradient of what leave_region() added, for all tokens.
BufferRef Decoder::gradient_for_region(int layer) {
  if (!cuts_sequence()) return d_stream_;
  BufferRef whole = allocate_whole(Category::workspace);
  math_->copy(*own_tokens(whole), *d_stream_);
  all_gather(whole, layer);
  return whole;
}

/// The gradient of what enter_region() made, summed over the ranks, for the stream's tokens.
BufferRef Decoder::gradient_from_region(int layer, const BufferRef& d_normed) {
  if (cuts_sequence()) {
    reduce_scatter(d_normed, layer);
    return own_tokens(d_normed);
  }
  if (tp() > 1) all_reduce(d_normed, layer);
  return d_normed;
}

void Decoder::all_reduce(const BufferRef& values, int layer) {
  math_->settle();
  settings_.group->all_reduce(values, layer);
}

void Decoder::all_gather(const BufferRef& values, int layer) {
  math_->settle();
  settings_.group->all_gather(values, layer);
}

void Decoder::reduce_scatter(const BufferRef& values, int layer) {
  math_->settle();
  settings_.group->reduce_scatter(values, layer);
}

void Decoder::all_reduce_exactly(const BufferRef& values, Reduction reduction, int layer) {
  math_->settle();
  settings_.group->all_reduce_exactly(values, reduction, layer);
}

BufferRef Decoder::own_tokens(const BufferRef& whole) {
  const std::int64_t elements = stream_tokens() * dims().hidden;
  return memory_.part(whole, settings_.group->rank() * elements, Elements(elements), Backing::none);
}

BufferRef Decoder::allocate(Category category, std::int64_t elements) {
  return memory_.allocate(category, DType::fp32, Elements(elements), settings_.backing);
}

BlockActivations Decoder::allocate_block() {
  const std::int64_t head_size = dims().head_size();
  const auto keep = [&](std::int64_t columns) { return allocate(Category::activations, tokens() * columns); };
  return {.normed1 = keep(dims().hidden),
          .q = keep(local_.heads * head_size),
          .k = keep(local_.kv_heads * head_size),
          .v = keep(local_.kv_heads * head_size),
          .attention = keep(local_.heads * head_size),
          .log_sum_exp = keep(local_.heads),
          .x_middle = allocate_stream(Category::activations),
          .normed2 = keep(dims().hidden),
          .gate = keep(local_.ffn),
          .up = keep(local_.ffn),
          .gated = keep(local_.ffn)};
}

BlockWorkspace Decoder::allocate_block_workspace() {
  const std::int64_t head_size = dims().head_size();
  const auto work = [&](std::int64_t columns) { return allocate(Category::workspace, tokens() * columns); };
  return {.d_gated = work(local_.ffn),
          .d_gate = work(local_.ffn),
          .d_up = work(local_.ffn),
          .d_normed = work(dims().hidden),
          .d_attention = work(local_.heads * head_size),
          .dq = work(local_.heads * head_size),
          .dk = work(local_.kv_heads * head_size),
          .dv = work(local_.kv_heads * head_size),
          .inverse_rms = allocate(Category::workspace, stream_tokens())};
}

}  // namespace shardbench
