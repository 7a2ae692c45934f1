// The decoder's dimensions, its presets and the tensors it declares, in declaration order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/units.hpp"

namespace shardbench {

/// Whether the output head has a tensor of its own or is the embedding table.
enum class Head { own, tied };

struct ModelDims {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t seq = 0;
  Head head = Head::own;

  [[nodiscard]] std::int64_t head_size() const { return hidden / heads; }
  [[nodiscard]] std::int64_t kv_width() const { return kv_heads * head_size(); }
  /// Compute layers: 0 = embedding, 1 ... L = blocks, L+1 = {final norm, head, loss}.
  [[nodiscard]] int layer_count() const { return static_cast<int>(layers) + 2; }
  [[nodiscard]] int head_layer() const { return static_cast<int>(layers) + 1; }
};

struct ModelPreset {
  std::string_view name;
  ModelDims dims;
};

/// All presets, smallest first.
const std::vector<ModelPreset>& model_presets();
std::optional<ModelDims> find_preset(std::string_view name);

/// Throws UsageError naming the dimension and what it must satisfy.
void validate(const ModelDims& dims);

enum class TensorRole { embedding, norm1, wq, wk, wv, wo, norm2, w1, w3, w2, final_norm, head };

/// One declared tensor: [rows, columns] row-major; norm weights are vectors, columns = 1.
struct TensorInfo {
  int index = 0;
  std::string name;
  TensorRole role = TensorRole::embedding;
  std::int64_t rows = 0;
  std::int64_t columns = 1;
  int layer = 0;               ///< the first compute layer that uses it
  double initial_bound = 0.0;  ///< values start uniform in (-bound, bound); 0 means all ones

  [[nodiscard]] Elements elements() const { return Elements(rows * columns); }
  [[nodiscard]] bool is_norm() const {
    return role == TensorRole::norm1 || role == TensorRole::norm2 || role == TensorRole::final_norm;
  }
};

/// Tensors in declaration order: embedding; per block norm1 wq wk wv wo norm2 w1 w3 w2; final norm; head
/// unless tied.
std::vector<TensorInfo> declare_tensors(const ModelDims& dims);

/// Declaration index of a tensor; `block` counts from 1 and is ignored for embedding, final_norm and head.
/// A tied head is the embedding.
int tensor_index(const ModelDims& dims, TensorRole role, int block = 0);

/// Indices of the tensors that a compute layer reads.
std::vector<int> tensors_of_layer(const ModelDims& dims, int layer);

/// Psi: parameters of the whole model.
Elements parameter_count(const ModelDims& dims);

enum class Direction { forward, backward };

/// Model FLOPs of one layer and direction for `tokens` tokens: 2 per parameter and token in a forward
/// product, twice that in backward, plus attention counted whole (4*h*s per token and block forward). The sum
/// over layers is 6*(Psi - Psi of an untied input embedding) + 12*L*h*s per token, torchtitan's count.
double layer_flops(const ModelDims& dims, int layer, Direction direction, std::int64_t tokens);

}  // namespace shardbench
