// Causal grouped-query attention without a matrix of scores in memory, after FlashAttention-2 (Dao,
// arXiv:2307.08691): what one block of four warps does. Scores live in registers; a warp owns 16 rows.
//
// Forward. A block has 64 queries Q of a head and walks over tiles of 64 keys K and values V:
//   S = Q K^T;  m' = max(m, rows of S);  P = exp(scale S - scale m');  c = exp(scale m - scale m')
//   l = c l + sum(P);  O = c O + P V        at the end  out = O / l,  log_sum_exp = scale m + log l
// Backward. With P = exp(scale S - log_sum_exp) and D = sum(dO * O) of each row (RowProducts):
//   dP = dO V^T;  dS = P (dP - D);  dV = P^T dO;  dK = scale dS^T Q;  dQ = scale dS K
// in two passes that share nothing: a block of the first has 64 keys and adds up dK and dV over the queries
// of every head of the group, in order; a block of the second has 64 queries and adds up dQ. That computes S
// and dP twice, 7 products instead of 5, and needs neither atomic additions, whose order varies, nor memory
// for partial sums. The first computes S^T and dP^T, so that P^T and dS^T are left operands where they are.
//
// P and dS are rounded to bf16 for the products; sums are fp32.
//
// Positions past the sequence's end need no mask of their own: a query sees keys up to itself, and queries
// past the end are zeros with dO = D = log_sum_exp = 0, which add nothing.
#pragma once

#include "kernels/cuda/fragments.hpp"

namespace shardbench::kernels::cuda {

constexpr int attention_warps = 4;
constexpr int attention_threads = 32 * attention_warps;
constexpr int tile_rows = fragment_rows * attention_warps;  // queries or keys that a block owns

/// Blocks of a multiprocessor among which its 65536 registers are shared out: as many as do without spilling.
constexpr int resident_blocks_of(int width) { return width > 32 ? 2 : 3; }

constexpr float log2_e = 1.44269504F;

/// Causal grouped-query attention's sizes and operands; rows as in AttentionShape.
struct AttentionProblem {
  int length;
  int heads;
  int kv_heads;
  int head_size;  ///< a multiple of 8
  float scale;
  const BFloat16* q;
  const BFloat16* k;
  const BFloat16* v;

  [[nodiscard]] SHARDBENCH_LANE int group() const { return heads / kv_heads; }
  [[nodiscard]] SHARDBENCH_LANE int tiles() const { return (length + tile_rows - 1) / tile_rows; }

  template <class Value>
  [[nodiscard]] SHARDBENCH_LANE HeadRows<Value> rows_of(Value* data, std::int64_t sequence, int head,
                                                        int heads_of_row) const {
    const std::int64_t stride = static_cast<std::int64_t>(heads_of_row) * head_size;
    return {data + sequence * length * stride + static_cast<std::int64_t>(head) * head_size, stride, length,
            head_size};
  }
  template <class Value>
  [[nodiscard]] SHARDBENCH_LANE HeadRows<Value> of_queries(Value* data, std::int64_t sequence,
                                                           int head) const {
    return rows_of(data, sequence, head, heads);
  }
  template <class Value>
  [[nodiscard]] SHARDBENCH_LANE HeadRows<Value> of_keys(Value* data, std::int64_t sequence,
                                                        int kv_head) const {
    return rows_of(data, sequence, kv_head, kv_heads);
  }
  /// Offset of a head's values, one for each row: log_sum_exp and D.
  [[nodiscard]] SHARDBENCH_LANE std::int64_t row_values(std::int64_t sequence, int head) const {
    return (sequence * heads + head) * length;
  }
};

/// D, log_sum_exp and the operand that only backward has.
struct AttentionGradients {
  const BFloat16* d_out;
  const float* log_sum_exp;
  const float* row_products;
};

/// Which tile a block has. Blocks are started by number: those with most work come first, lest they finish
/// last.
struct BlockPlace {
  std::int64_t sequence;
  int head;
  int order;  ///< 0 for the tile with most work

  SHARDBENCH_LANE BlockPlace(std::int64_t block, std::int64_t sequences, int heads)
      : sequence(block / heads % sequences),
        head(static_cast<int>(block % heads)),
        order(static_cast<int>(block / heads / sequences)) {}
};

/// Shared memory of a block that walks over tiles of keys and values, two of each: one in use, one on its
/// way.
template <int width>
struct KeyStages {
  using Keys = Tile<tile_rows, width>;
  static constexpr int bytes = 4 * Keys::bytes;

  std::uint32_t address;

  [[nodiscard]] SHARDBENCH_LANE Keys keys(int stage) const {
    return {address + static_cast<std::uint32_t>(2 * stage * Keys::bytes)};
  }
  [[nodiscard]] SHARDBENCH_LANE Keys values(int stage) const {
    return {address + static_cast<std::uint32_t>((2 * stage + 1) * Keys::bytes)};
  }

  template <class Machine>
  SHARDBENCH_LANE void copy(Machine& machine, int tile, const HeadRows<const BFloat16>& from_keys,
                            const HeadRows<const BFloat16>& from_values) const {
    copy_tile<attention_threads>(machine, keys(tile % 2), from_keys, tile * tile_rows);
    copy_tile<attention_threads>(machine, values(tile % 2), from_values, tile * tile_rows);
    machine.commit();
  }
};

template <int width>
struct Forward {
  static constexpr int shared_bytes = KeyStages<width>::bytes;
  static constexpr int resident_blocks = resident_blocks_of(width);

  float* out;
  float* log_sum_exp;

  template <class Machine>
  SHARDBENCH_LANE void operator()(Machine& machine, const AttentionProblem& problem, BlockPlace place) const {
    const KeyStages<width> stages{machine.shared()};
    const int last_tile = problem.tiles() - 1 - place.order;
    const int kv_head = place.head / problem.group();
    const auto keys = problem.of_keys(problem.k, place.sequence, kv_head);
    const auto values = problem.of_keys(problem.v, place.sequence, kv_head);
    const int warp_row = machine.warp() * fragment_rows;
    const int first_row = last_tile * tile_rows + warp_row;

    // Queries pass through the second stage, which is not needed yet.
    copy_tile<attention_threads>(machine, stages.keys(1),
                                 problem.of_queries(problem.q, place.sequence, place.head),
                                 last_tile * tile_rows);
    stages.copy(machine, 0, keys, values);
    machine.wait();
    machine.sync();
    Left<width> queries;
    load_left(machine, queries, stages.keys(1), warp_row);

    const float scale = problem.scale * log2_e;
    Sums<width> sums;
    RowPair largest{-INFINITY, -INFINITY};
    RowPair total{0.0F, 0.0F};
    SHARDBENCH_LOOP
    for (int tile = 0; tile <= last_tile; ++tile) {
      machine.wait();
      machine.sync();  // this tile is there, and nobody reads the other stage any more
      if (tile < last_tile) stages.copy(machine, tile + 1, keys, values);

      Sums<tile_rows> scores;
      add_product_transposed(machine, scores, queries, stages.keys(tile % 2));
      if (tile == last_tile)
        each_sum(machine, scores, [&](float& score, int half, int column) {
          if (column > warp_row + sum_row(machine.lane(), 2 * half)) score = -INFINITY;
        });

      RowPair shift = largest;
      RowPair correction;
      each_sum(machine, scores,
               [&](const float& score, int half, int) { shift.of[half] = std::fmax(shift.of[half], score); });
      SHARDBENCH_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float larger =
            over_row(machine, shift.of[half], [](float a, float b) { return std::fmax(a, b); });
        shift.of[half] = scale * larger;
        correction.of[half] = machine.exp2(scale * largest.of[half] - shift.of[half]);
        total.of[half] *= correction.of[half];
        largest.of[half] = larger;
      }
      each_sum(machine, scores, [&](float& score, int half, int) {
        score = machine.exp2(scale * score - shift.of[half]);
        total.of[half] += score;
      });
      each_sum(machine, sums, [&](float& sum, int half, int) { sum *= correction.of[half]; });
      Left<tile_rows> probabilities;
      narrow(machine, probabilities, scores);
      add_product(machine, sums, probabilities, stages.values(tile % 2));
    }

    RowPair inverse;
    SHARDBENCH_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = over_row(machine, total.of[half], [](float a, float b) { return a + b; });
      inverse.of[half] = 1.0F / sum;
      const int row = first_row + sum_row(machine.lane(), 2 * half);
      if (machine.lane() % 4 == 0 && row < problem.length)
        log_sum_exp[problem.row_values(place.sequence, place.head) + row] =
            problem.scale * largest.of[half] + std::log(sum);
    }
    store_rows(machine, problem.of_queries(out, place.sequence, place.head), first_row, sums, inverse);
  }
};

/// Queries that the first pass of backward takes at once: as many as leave its sums in registers.
template <int width>
constexpr int queries_at_once = width > 64 ? 32 : 64;

template <int width>
struct BackwardKeys {
  using Keys = Tile<tile_rows, width>;
  using Queries = Tile<queries_at_once<width>, width>;
  static constexpr int values_bytes = Queries::rows * static_cast<int>(sizeof(float));
  static constexpr int stage_bytes = 2 * Queries::bytes + 2 * values_bytes;
  static constexpr int shared_bytes = 2 * Keys::bytes + 2 * stage_bytes;
  static constexpr int resident_blocks = resident_blocks_of(width);

  AttentionGradients given;
  float* dk;
  float* dv;

  template <class Machine>
  SHARDBENCH_LANE void operator()(Machine& machine, const AttentionProblem& problem, BlockPlace place) const {
    const int kv_head = place.head;
    const int first_key = place.order * tile_rows;
    const int warp_row = machine.warp() * fragment_rows;
    const Keys keys{machine.shared()};
    const Keys values{keys.address + Keys::bytes};
    copy_tile<attention_threads>(machine, keys, problem.of_keys(problem.k, place.sequence, kv_head),
                                 first_key);
    copy_tile<attention_threads>(machine, values, problem.of_keys(problem.v, place.sequence, kv_head),
                                 first_key);

    const int end_head = (kv_head + 1) * problem.group();
    Turn turn{kv_head * problem.group(), first_key};
    copy_turn(machine, problem, place.sequence, turn, 0);

    const float scale = problem.scale * log2_e;
    Sums<width> key_sums;
    Sums<width> value_sums;
    SHARDBENCH_LOOP
    for (int at = 0; turn.head < end_head; at = 1 - at) {
      machine.wait();
      machine.sync();  // this turn's tiles are there, and nobody reads the other stage any more
      Turn next{turn.head, turn.first_query + Queries::rows};
      if (next.first_query >= problem.length) next = {turn.head + 1, first_key};
      if (next.head < end_head) copy_turn(machine, problem, place.sequence, next, 1 - at);
      const Stage stage = stage_at(machine, at);

      Sums<Queries::rows> scores;
      add_product_transposed(machine, scores, LeftInTile<Keys>{keys, warp_row}, stage.queries);
      // A key's probability of each query.
      each_pair(machine, scores, stage.log_sum_exp, [&](float& score, float log_sum_exp) {
        score = machine.exp2(scale * score - log2_e * log_sum_exp);
      });
      const int offset = turn.first_query - first_key;
      if (offset < tile_rows)
        each_sum(machine, scores, [&](float& score, int half, int column) {
          if (offset + column < warp_row + sum_row(machine.lane(), 2 * half)) score = 0.0F;
        });
      Left<Queries::rows> probabilities;
      narrow(machine, probabilities, scores);

      Sums<Queries::rows> d_scores;
      add_product_transposed(machine, d_scores, LeftInTile<Keys>{values, warp_row}, stage.d_out);
      each_pair(machine, d_scores, stage.row_products,
                [](float& d_score, float product) { d_score -= product; });
      multiply(d_scores, scores);
      Left<Queries::rows> rounded_d_scores;
      narrow(machine, rounded_d_scores, d_scores);

      add_product(machine, value_sums, probabilities, stage.d_out);
      add_product(machine, key_sums, rounded_d_scores, stage.queries);
      turn = next;
    }
    const int first_row = first_key + warp_row;
    store_rows(machine, problem.of_keys(dk, place.sequence, kv_head), first_row, key_sums,
               {problem.scale, problem.scale});
    store_rows(machine, problem.of_keys(dv, place.sequence, kv_head), first_row, value_sums, {1.0F, 1.0F});
  }

 private:
  /// Whose queries are taken: those of a head from a position.
  struct Turn {
    int head;
    int first_query;
  };
  struct Stage {
    Queries queries;
    Queries d_out;
    std::uint32_t log_sum_exp;
    std::uint32_t row_products;
  };

  template <class Machine>
  [[nodiscard]] static SHARDBENCH_LANE Stage stage_at(Machine& machine, int stage) {
    const std::uint32_t at =
        machine.shared() + static_cast<std::uint32_t>(2 * Keys::bytes + stage * stage_bytes);
    return {{at}, {at + Queries::bytes}, at + 2 * Queries::bytes, at + 2 * Queries::bytes + values_bytes};
  }

  template <class Machine>
  SHARDBENCH_LANE void copy_turn(Machine& machine, const AttentionProblem& problem, std::int64_t sequence,
                                 const Turn& turn, int stage_index) const {
    const Stage stage = stage_at(machine, stage_index);
    const int first = turn.first_query;
    copy_tile<attention_threads>(machine, stage.queries, problem.of_queries(problem.q, sequence, turn.head),
                                 first);
    copy_tile<attention_threads>(machine, stage.d_out, problem.of_queries(given.d_out, sequence, turn.head),
                                 first);
    static_assert(2 * Queries::rows <= attention_threads);
    const int index = machine.thread();
    if (index < 2 * Queries::rows) {
      const float* values = index < Queries::rows ? given.log_sum_exp : given.row_products;
      const std::uint32_t to = index < Queries::rows ? stage.log_sum_exp : stage.row_products;
      const int column = index % Queries::rows;
      const bool is_there = first + column < problem.length;
      const std::int64_t row = is_there ? first + column : 0;
      machine.copy_value(to + static_cast<std::uint32_t>(column) * 4,
                         values + problem.row_values(sequence, turn.head) + row, is_there ? 4 : 0);
    }
    machine.commit();
  }

  /// Calls use(sum, value), where `values` in shared memory has one for each column.
  template <class Machine, int columns, class Use>
  static SHARDBENCH_LANE void each_pair(Machine& machine, Sums<columns>& sums, std::uint32_t values,
                                        Use&& use) {
    SHARDBENCH_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      float pair[2];
      machine.load_pair(pair, values + static_cast<std::uint32_t>(8 * j + sum_column(machine.lane(), 0)) * 4);
      SHARDBENCH_UNROLL
      for (int index = 0; index < 4; ++index) use(sums.of[j][index], pair[index % 2]);
    }
  }
};

/// D = sum(dO * O) of each row and head; a row's columns are shared by neighbouring lanes, 16 bytes each.
struct RowProducts {
  static constexpr int lanes = 8;
  static constexpr int vectors_of_block = attention_threads / lanes;

  const float* out;
  const float* d_out;
  float* row_products;

  template <class Machine>
  SHARDBENCH_LANE void operator()(Machine& machine, const AttentionProblem& problem, std::int64_t block,
                                  std::int64_t vectors) const {
    const std::int64_t vector = block * vectors_of_block + machine.thread() / lanes;
    const bool is_there = vector < vectors;  // else the lane still takes part in the sums
    const std::int64_t first = is_there ? vector * problem.head_size : 0;
    float sum = 0.0F;
    for (int column = 4 * (machine.thread() % lanes); column < problem.head_size; column += 4 * lanes) {
      float o[4];
      float d[4];
      machine.load_four(o, out + first + column);
      machine.load_four(d, d_out + first + column);
      SHARDBENCH_UNROLL
      for (int i = 0; i < 4; ++i) sum += o[i] * d[i];
    }
    SHARDBENCH_UNROLL
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += machine.shuffle_xor(sum, distance);
    if (!is_there || machine.thread() % lanes != 0) return;
    const std::int64_t token = vector / problem.heads;
    const int head = static_cast<int>(vector % problem.heads);
    row_products[problem.row_values(token / problem.length, head) + token % problem.length] = sum;
  }
};

template <int width>
struct BackwardQueries {
  using Queries = Tile<tile_rows, width>;
  static constexpr int shared_bytes = 2 * Queries::bytes + KeyStages<width>::bytes;
  static constexpr int resident_blocks = resident_blocks_of(width);

  AttentionGradients given;
  float* dq;

  template <class Machine>
  SHARDBENCH_LANE void operator()(Machine& machine, const AttentionProblem& problem, BlockPlace place) const {
    const Queries queries{machine.shared()};
    const Queries d_out{queries.address + Queries::bytes};
    const KeyStages<width> stages{d_out.address + Queries::bytes};
    const int last_tile = problem.tiles() - 1 - place.order;
    const int kv_head = place.head / problem.group();
    const auto keys = problem.of_keys(problem.k, place.sequence, kv_head);
    const auto values = problem.of_keys(problem.v, place.sequence, kv_head);
    const int warp_row = machine.warp() * fragment_rows;
    const int first_row = last_tile * tile_rows + warp_row;

    copy_tile<attention_threads>(machine, queries, problem.of_queries(problem.q, place.sequence, place.head),
                                 last_tile * tile_rows);
    copy_tile<attention_threads>(machine, d_out, problem.of_queries(given.d_out, place.sequence, place.head),
                                 last_tile * tile_rows);
    stages.copy(machine, 0, keys, values);

    RowPair shift{0.0F, 0.0F};
    RowPair product{0.0F, 0.0F};
    SHARDBENCH_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + sum_row(machine.lane(), 2 * half);
      if (row >= problem.length) continue;
      const std::int64_t at = problem.row_values(place.sequence, place.head) + row;
      shift.of[half] = log2_e * given.log_sum_exp[at];
      product.of[half] = given.row_products[at];
    }

    const float scale = problem.scale * log2_e;
    Sums<width> sums;
    SHARDBENCH_LOOP
    for (int tile = 0; tile <= last_tile; ++tile) {
      machine.wait();
      machine.sync();  // this tile is there, and nobody reads the other stage any more
      if (tile < last_tile) stages.copy(machine, tile + 1, keys, values);

      Sums<tile_rows> scores;
      add_product_transposed(machine, scores, LeftInTile<Queries>{queries, warp_row}, stages.keys(tile % 2));
      each_sum(machine, scores,
               [&](float& score, int half, int) { score = machine.exp2(scale * score - shift.of[half]); });
      if (tile == last_tile)
        each_sum(machine, scores, [&](float& score, int half, int column) {
          if (column > warp_row + sum_row(machine.lane(), 2 * half)) score = 0.0F;
        });
      Sums<tile_rows> d_scores;
      add_product_transposed(machine, d_scores, LeftInTile<Queries>{d_out, warp_row},
                             stages.values(tile % 2));
      each_sum(machine, d_scores, [&](float& d_score, int half, int) { d_score -= product.of[half]; });
      multiply(d_scores, scores);
      Left<tile_rows> left;
      narrow(machine, left, d_scores);
      add_product(machine, sums, left, stages.keys(tile % 2));
    }
    store_rows(machine, problem.of_queries(dq, place.sequence, place.head), first_row, sums,
               {problem.scale, problem.scale});
  }
};

}  // namespace shardbench::kernels::cuda
