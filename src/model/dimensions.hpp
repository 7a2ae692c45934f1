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

/// Whether a rank's part of a tensor is also another rank's, which counts it in sums over ranks.
enum class Copy { primary, replica };

/// One declared tensor, or the part of it that tensor parallelism leaves to a rank: [rows, columns]
/// row-major; norm weights are vectors, columns = 1.
struct TensorInfo {
  int index = 0;
  std::string name;
  TensorRole role = TensorRole::embedding;
  std::int64_t rows = 0;
  std::int64_t columns = 1;
  int layer = 0;               ///< the first compute layer that uses it
  double initial_bound = 0.0;  ///< values start uniform in (-bound, bound); 0 means all ones
  std::int64_t first_row = 0;  ///< of this part in the declared tensor
  std::int64_t first_column = 0;
  std::int64_t declared_columns = 1;
  Copy copy = Copy::primary;

  [[nodiscard]] Elements elements() const { return Elements(rows * columns); }
  /// Where element i of this part lies in the declared tensor, both row-major.
  [[nodiscard]] std::int64_t declared_element(std::int64_t i) const {
    return (first_row + i / columns) * declared_columns + first_column + i % columns;
  }
  [[nodiscard]] bool is_norm() const {
    return role == TensorRole::norm1 || role == TensorRole::norm2 || role == TensorRole::final_norm;
  }
};

/// Tensors in declaration order: embedding; per block norm1 wq wk wv wo norm2 w1 w3 w2; final norm; head
/// unless tied.
std::vector<TensorInfo> declare_tensors(const ModelDims& dims);

/// Rows [begin, end).
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t count() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

/// The part of `rows` that chunk `index` of `parts` holds: ceil(rows/parts) rows each, later chunks may be
/// short or empty (torch.chunk's rule, with the empty ones kept).
RowRange chunk_of(std::int64_t rows, int parts, int index);

/// What tensor-parallel rank `index` of `tp` holds of each tensor (Shoeybi et al., arXiv:1909.08053): rows of
/// the column-parallel embedding, wq, wk, wv, w1, w3 and head, columns of the row-parallel wo and w2, all of
/// the norms. tp must divide heads and kv_heads; vocabulary and ffn go in ceil chunks.
std::vector<TensorInfo> tensor_parallel_part(std::vector<TensorInfo> tensors, int tp, int index);

/// The widths of one tensor-parallel rank's part.
struct LocalDims {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  RowRange vocab;
};
LocalDims local_dims(const ModelDims& dims, int tp, int index);

/// Declaration index of a tensor; `block` counts from 1 and is ignored for embedding, final_norm and head.
/// A tied head is the embedding.
int tensor_index(const ModelDims& dims, TensorRole role, int block = 0);

/// Indices of the tensors that a compute layer reads.
std::vector<int> tensors_of_layer(const ModelDims& dims, int layer);

/// Psi: parameters of the whole model.
Elements parameter_count(const ModelDims& dims);

enum class LayerKind { embedding, block, head };
LayerKind kind_of_layer(const ModelDims& dims, int layer);

enum class Direction { forward, backward };

/// What a layer computes for. `recompute` is a block's forward once more, in backward: all but its last
/// product, w2, whose result nobody needs.
enum class Pass { forward, recompute, backward };

/// Model FLOPs of one layer and direction for `tokens` tokens: 2 per parameter and token in a forward
/// product, twice that in backward, plus attention counted whole (4*h*s per token and block forward). The sum
/// over layers is 6*(Psi - Psi of an untied input embedding) + 12*L*h*s per token, torchtitan's count.
double layer_flops(const ModelDims& dims, int layer, Direction direction, std::int64_t tokens);

/// How the FLOPs of a block's forward split at the places where tensor-parallel ranks exchange; the norms'
/// are neglected. They add up to 1.
struct BlockShares {
  double attention = 0.0;  ///< wq, wk, wv and the attention itself
  double attention_output = 0.0;
  double mlp = 0.0;  ///< w1 and w3
  double mlp_output = 0.0;
};
BlockShares block_shares(const ModelDims& dims);

}  // namespace shardbench
