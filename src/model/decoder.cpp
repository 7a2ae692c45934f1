#include "src/model/decoder.hpp"

#include <limits>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {

Decoder::Decoder(const Settings& settings, Memory& memory, std::unique_ptr<LayerMath> math)
    : settings_(settings),
      memory_(memory),
      math_(std::move(math)),
      input_(static_cast<std::size_t>(settings.dims.layer_count()) + 1),
      kept_(static_cast<std::size_t>(settings.dims.layer_count())) {}

void Decoder::load_batch(std::int64_t step, std::int64_t first_sequence) {
  if (settings_.backing == Backing::memory)
    fill_batch(batch_, settings_.dims, settings_.seed, step, first_sequence, settings_.micro_batch);
}

void Decoder::forward(int layer, const WeightTable& weights) {
  for (const int tensor : tensors_of_layer(settings_.dims, layer)) SHARDBENCH_ASSERT(weights.has(tensor));
  const auto l = static_cast<std::size_t>(layer);
  const std::int64_t stream = tokens() * settings_.dims.hidden;
  if (layer == settings_.dims.head_layer()) {
    head_ = {.normed = allocate(Category::activations, stream),
             .logits = allocate(Category::activations, tokens() * settings_.dims.vocab),
             .losses = allocate(Category::activations, tokens())};
    loss_sum_ = math_->head_forward(batch_, weights, *input_[l], head_);
    return;
  }
  input_[l + 1] = allocate(Category::activations, stream);
  if (layer == 0) {
    math_->embedding_forward(batch_, weights, *input_[1]);
  } else {
    kept_[l] = allocate_block();
    math_->block_forward(layer, weights, *input_[l], kept_[l], *input_[l + 1]);
  }
}

void Decoder::backward(int layer, const WeightTable& weights, const GradientTable& gradients) {
  const auto l = static_cast<std::size_t>(layer);
  const std::int64_t stream = tokens() * settings_.dims.hidden;
  if (layer == settings_.dims.head_layer()) {
    d_stream_ = allocate(Category::workspace, stream);
    const HeadWorkspace work{.d_normed = allocate(Category::workspace, stream),
                             .inverse_rms = allocate(Category::workspace, tokens())};
    math_->head_backward(weights, gradients, *input_[l], head_, work, *d_stream_);
    head_ = {};
  } else if (layer == 0) {
    math_->embedding_backward(batch_, gradients, *d_stream_);
    d_stream_.reset();
  } else {
    const BlockWorkspace work = allocate_block_workspace();
    math_->block_backward(layer, weights, gradients, *input_[l], kept_[l], work, *d_stream_);
    kept_[l] = {};
  }
  input_[l].reset();
}

BufferRef Decoder::allocate(Category category, std::int64_t elements) {
  return memory_.allocate(category, DType::fp32, Elements(elements), settings_.backing);
}

BlockActivations Decoder::allocate_block() {
  const ModelDims& d = settings_.dims;
  const auto keep = [&](std::int64_t columns) { return allocate(Category::activations, tokens() * columns); };
  return {.normed1 = keep(d.hidden),
          .q = keep(d.hidden),
          .k = keep(d.kv_width()),
          .v = keep(d.kv_width()),
          .attention = keep(d.hidden),
          .log_sum_exp = keep(d.heads),
          .x_middle = keep(d.hidden),
          .normed2 = keep(d.hidden),
          .gate = keep(d.ffn),
          .up = keep(d.ffn),
          .gated = keep(d.ffn)};
}

BlockWorkspace Decoder::allocate_block_workspace() {
  const ModelDims& d = settings_.dims;
  const auto work = [&](std::int64_t columns) { return allocate(Category::workspace, tokens() * columns); };
  return {.d_gated = work(d.ffn),
          .d_gate = work(d.ffn),
          .d_up = work(d.ffn),
          .d_normed = work(d.hidden),
          .d_attention = work(d.hidden),
          .dq = work(d.hidden),
          .dk = work(d.kv_width()),
          .dv = work(d.kv_width()),
          .inverse_rms = work(1)};
}

}  // namespace shardbench
