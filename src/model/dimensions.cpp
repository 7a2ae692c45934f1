#include "src/model/dimensions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/errors.hpp"

namespace shardbench {
namespace {

constexpr int tensors_per_block = 9;

// Standard deviation 0.02 (GPT-2's and Llama's initialisation) as the bound of a uniform distribution.
const double initial_bound = 0.02 * std::sqrt(3.0);

struct BlockTensor {
  TensorRole role;
  const char* name;
  std::int64_t rows;
  std::int64_t columns;
};

std::vector<BlockTensor> block_tensors(const ModelDims& d) {
  return {{TensorRole::norm1, "norm1", d.hidden, 1},      {TensorRole::wq, "wq", d.hidden, d.hidden},
          {TensorRole::wk, "wk", d.kv_width(), d.hidden}, {TensorRole::wv, "wv", d.kv_width(), d.hidden},
          {TensorRole::wo, "wo", d.hidden, d.hidden},     {TensorRole::norm2, "norm2", d.hidden, 1},
          {TensorRole::w1, "w1", d.ffn, d.hidden},        {TensorRole::w3, "w3", d.ffn, d.hidden},
          {TensorRole::w2, "w2", d.hidden, d.ffn}};
}

}  // namespace

const std::vector<ModelPreset>& model_presets() {
  // 124m: GPT-2 small's sizes with a Llama block; 1b, 8b, 70b, 405b: Llama 3.x; 7b: Llama 2; tiny and 25m:
  // ours.
  static const std::vector<ModelPreset> presets = {
      {"tiny", {2, 64, 4, 2, 192, 256, 32, Head::own}},
      {"25m", {6, 512, 8, 4, 1408, 8192, 256, Head::own}},
      {"124m", {12, 768, 12, 12, 2048, 50257, 1024, Head::tied}},
      {"1b", {16, 2048, 32, 8, 8192, 128256, 4096, Head::tied}},
      {"7b", {32, 4096, 32, 32, 11008, 32000, 4096, Head::own}},
      {"8b", {32, 4096, 32, 8, 14336, 128256, 8192, Head::own}},
      {"70b", {80, 8192, 64, 8, 28672, 128256, 8192, Head::own}},
      {"405b", {126, 16384, 128, 8, 53248, 128256, 8192, Head::own}},
  };
  return presets;
}

std::optional<ModelDims> find_preset(std::string_view name) {
  for (const ModelPreset& preset : model_presets())
    if (preset.name == name) return preset.dims;
  return std::nullopt;
}

void validate(const ModelDims& d) {
  const auto positive = [](const char* option, std::int64_t value, std::int64_t largest) {
    if (value < 1 || value > largest)
      throw UsageError(fmt::format("--{} is {}, but must be from 1 to {}", option, value, largest));
  };
  positive("layers", d.layers, 10'000);
  positive("hidden", d.hidden, 1 << 20);
  positive("heads", d.heads, d.hidden);
  positive("kv-heads", d.kv_heads, d.heads);
  positive("ffn", d.ffn, 1 << 22);
  positive("vocab", d.vocab, 1 << 24);
  positive("seq", d.seq, (1 << 16) - 1);  // positions enter the token hash below bit 16
  if (d.hidden % d.heads != 0 || d.head_size() % 2 != 0)
    throw UsageError(
        fmt::format("--hidden {} over --heads {} must give an even whole head size (RoPE turns pairs); "
                    "choose hidden = heads x an even number",
                    d.hidden, d.heads));
  if (d.heads % d.kv_heads != 0)
    throw UsageError(
        fmt::format("--heads {} is not a multiple of --kv-heads {}; grouped attention needs equal groups",
                    d.heads, d.kv_heads));
}

std::vector<TensorInfo> declare_tensors(const ModelDims& d) {
  std::vector<TensorInfo> tensors;
  const auto declare = [&](std::string name, TensorRole role, std::int64_t rows, std::int64_t columns,
                           int layer, double bound) {
    const int index = static_cast<int>(tensors.size());
    tensors.push_back({.index = index,
                       .name = std::move(name),
                       .role = role,
                       .rows = rows,
                       .columns = columns,
                       .layer = layer,
                       .initial_bound = bound,
                       .declared_columns = columns});
  };
  const double residual_bound = initial_bound / std::sqrt(2.0 * static_cast<double>(d.layers));

  declare("embedding", TensorRole::embedding, d.vocab, d.hidden, 0, initial_bound);
  for (int block = 1; block <= d.layers; ++block)
    for (const BlockTensor& t : block_tensors(d)) {
      const bool into_residual = t.role == TensorRole::wo || t.role == TensorRole::w2;
      const bool norm = t.role == TensorRole::norm1 || t.role == TensorRole::norm2;
      const double bound = norm ? 0.0 : into_residual ? residual_bound : initial_bound;
      declare(fmt::format("{}.{}", block - 1, t.name), t.role, t.rows, t.columns, block, bound);
    }
  declare("norm", TensorRole::final_norm, d.hidden, 1, d.head_layer(), 0.0);
  if (d.head == Head::own)
    declare("head", TensorRole::head, d.vocab, d.hidden, d.head_layer(), initial_bound);
  return tensors;
}

RowRange chunk_of(std::int64_t rows, int parts, int index) {
  const std::int64_t chunk = ceil_div(rows, parts);
  return {std::min(rows, chunk * index), std::min(rows, chunk * (index + 1))};
}

std::vector<TensorInfo> tensor_parallel_part(std::vector<TensorInfo> tensors, int tp, int index) {
  for (TensorInfo& t : tensors) {
    if (t.is_norm()) {
      t.copy = index == 0 ? Copy::primary : Copy::replica;
    } else if (t.role == TensorRole::wo || t.role == TensorRole::w2) {
      const RowRange columns = chunk_of(t.columns, tp, index);
      t.first_column = columns.begin;
      t.columns = columns.count();
    } else {
      const RowRange rows = chunk_of(t.rows, tp, index);
      t.first_row = rows.begin;
      t.rows = rows.count();
    }
  }
  return tensors;
}

LocalDims local_dims(const ModelDims& d, int tp, int index) {
  return {.heads = d.heads / tp,
          .kv_heads = d.kv_heads / tp,
          .ffn = chunk_of(d.ffn, tp, index).count(),
          .vocab = chunk_of(d.vocab, tp, index)};
}

int tensor_index(const ModelDims& d, TensorRole role, int block) {
  const int after_blocks = 1 + tensors_per_block * static_cast<int>(d.layers);
  switch (role) {
    case TensorRole::embedding:
      return 0;
    case TensorRole::final_norm:
      return after_blocks;
    case TensorRole::head:
      return d.head == Head::tied ? 0 : after_blocks + 1;
    default:
      return 1 + tensors_per_block * (block - 1) +
             (static_cast<int>(role) - static_cast<int>(TensorRole::norm1));
  }
}

std::vector<int> tensors_of_layer(const ModelDims& d, int layer) {
  if (layer == 0) return {0};
  if (layer == d.head_layer())
    return {tensor_index(d, TensorRole::final_norm), tensor_index(d, TensorRole::head)};
  std::vector<int> indices(tensors_per_block);
  for (int i = 0; i < tensors_per_block; ++i)
    indices[static_cast<std::size_t>(i)] = tensor_index(d, TensorRole::norm1, layer) + i;
  return indices;
}

Elements parameter_count(const ModelDims& d) {
  Elements total;
  for (const TensorInfo& t : declare_tensors(d)) total += t.elements();
  return total;
}

LayerKind kind_of_layer(const ModelDims& dims, int layer) {
  if (layer == 0) return LayerKind::embedding;
  return layer == dims.head_layer() ? LayerKind::head : LayerKind::block;
}

double layer_flops(const ModelDims& d, int layer, Direction direction, std::int64_t tokens) {
  if (layer == 0) return 0.0;  // a table look-up
  double parameters = 0.0;
  if (layer == d.head_layer()) {
    parameters = static_cast<double>(d.hidden + d.vocab * d.hidden);
  } else {
    for (const BlockTensor& t : block_tensors(d)) parameters += static_cast<double>(t.rows * t.columns);
  }
  const double attention = layer == d.head_layer() ? 0.0 : 4.0 * static_cast<double>(d.hidden * d.seq);
  const double forward = (2.0 * parameters + attention) * static_cast<double>(tokens);
  return direction == Direction::forward ? forward : 2.0 * forward;
}

BlockShares block_shares(const ModelDims& d) {
  const auto h = static_cast<double>(d.hidden);
  const auto kv = static_cast<double>(d.kv_width());
  const auto ffn = static_cast<double>(d.ffn);
  // Per token, as layer_flops() counts.
  const double attention = 2.0 * h * (h + 2.0 * kv) + 4.0 * h * static_cast<double>(d.seq);
  const double attention_output = 2.0 * h * h;
  const double mlp = 4.0 * h * ffn;
  const double mlp_output = 2.0 * h * ffn;
  const double all = attention + attention_output + mlp + mlp_output;
  return {.attention = attention / all,
          .attention_output = attention_output / all,
          .mlp = mlp / all,
          .mlp_output = mlp_output / all};
}

}  // namespace shardbench
