// Attention on tensor cores: the instructions that fragments.hpp asks for, and the launches.
#include "kernels/cuda/attention.hpp"

#include <cmath>

#include "kernels/cuda/flash_attention.hpp"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/lanes.cuh"

namespace shardbench::kernels::cuda {
namespace {

/// Instructions of compute capability 8.0 and later (PTX ISA).
class Gpu {
 public:
  /// `shared` may be null where nothing is asked of shared memory.
  __device__ explicit Gpu(const void* shared)
      : shared_(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))) {}

  [[nodiscard]] __device__ std::uint32_t shared() const { return shared_; }
  [[nodiscard]] __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  [[nodiscard]] __device__ int lane() const { return static_cast<int>(threadIdx.x) % warp_size; }
  [[nodiscard]] __device__ int warp() const { return static_cast<int>(threadIdx.x) / warp_size; }

  __device__ void copy(std::uint32_t to, const void* from, int bytes) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
  }
  __device__ void copy_value(std::uint32_t to, const void* from, int bytes) const {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
  }
  __device__ void commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  __device__ void wait() const { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
  __device__ void sync() const { __syncthreads(); }

  __device__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
  }
  __device__ void load_transposed(std::uint32_t (&r)[4], std::uint32_t row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
  }
  __device__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                               std::uint32_t b1) const {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  [[nodiscard]] __device__ float shuffle_xor(float value, int mask) const {
    return __shfl_xor_sync(whole_warp, value, mask);
  }
  __device__ void load_pair(float (&pair)[2], std::uint32_t from) const {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair[0]), "=f"(pair[1]) : "r"(from) : "memory");
  }
  __device__ void load_four(float (&values)[4], const float* from) const {
    const auto four = *reinterpret_cast<const float4*>(from);
    values[0] = four.x;
    values[1] = four.y;
    values[2] = four.z;
    values[3] = four.w;
  }
  __device__ void store_four(float* to, const float (&values)[4]) const {
    *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
  }
  /// The first operand of cvt becomes the upper half.
  [[nodiscard]] __device__ std::uint32_t narrow_pair(float low, float high) const {
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  [[nodiscard]] __device__ float exp2(float x) const {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
  }

 private:
  std::uint32_t shared_;
};

template <class Pass>
__global__ void __launch_bounds__(attention_threads, Pass::resident_blocks)
    attention_pass(Pass pass, AttentionProblem problem, std::int64_t sequences, int heads) {
  extern __shared__ __align__(tile_alignment) unsigned char shared[];
  Gpu gpu(shared);
  pass(gpu, problem, BlockPlace(blockIdx.x, sequences, heads));
}

__global__ void __launch_bounds__(attention_threads)
    row_products(RowProducts products, AttentionProblem problem, std::int64_t vectors) {
  Gpu gpu(nullptr);
  products(gpu, problem, blockIdx.x, vectors);
}

AttentionProblem problem_of(const AttentionOperands& operands, const AttentionShape& shape) {
  return {.length = static_cast<int>(shape.length),
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .head_size = static_cast<int>(shape.head_size),
          .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_size)),
          .q = operands.q,
          .k = operands.k,
          .v = operands.v};
}

/// A block for each tile of each of `heads` heads.
template <class Pass>
void launch(const Pass& pass, const AttentionProblem& problem, std::int64_t sequences, int heads,
            cudaStream_t stream) {
  const auto kernel = attention_pass<Pass>;
  SHARDBENCH_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Pass::shared_bytes));
  const auto blocks = static_cast<unsigned int>(ceil_div(problem.length, tile_rows) * sequences * heads);
  kernel<<<blocks, attention_threads, Pass::shared_bytes, stream>>>(pass, problem, sequences, heads);
  SHARDBENCH_CUDA(cudaGetLastError());
}

template <int width>
struct Width {};

/// Calls with the next width that there are kernels for.
template <class Use>
void for_width(std::int64_t head_size, Use&& use) {
  if (head_size <= 16) return use(Width<16>{});
  if (head_size <= 32) return use(Width<32>{});
  if (head_size <= 64) return use(Width<64>{});
  return use(Width<128>{});
}

}  // namespace

bool has_tiled_attention(const AttentionShape& shape) {
  return shape.head_size <= 128 && shape.head_size % chunk_elements == 0;
}

void tiled_attention_forward(float* out, float* log_sum_exp, const AttentionOperands& operands,
                             const AttentionShape& shape, cudaStream_t stream) {
  const AttentionProblem problem = problem_of(operands, shape);
  for_width(shape.head_size, [&]<int width>(Width<width>) {
    launch(Forward<width>{out, log_sum_exp}, problem, shape.sequences, problem.heads, stream);
  });
}

void tiled_attention_backward(const AttentionBackward& buffers, const AttentionOperands& operands,
                              const AttentionShape& shape, cudaStream_t stream) {
  const AttentionProblem problem = problem_of(operands, shape);
  const std::int64_t vectors = shape.sequences * shape.length * shape.heads;
  row_products<<<blocks_for(vectors, RowProducts::vectors_of_block), attention_threads, 0, stream>>>(
      {buffers.out, buffers.d_out, buffers.row_products}, problem, vectors);
  SHARDBENCH_CUDA(cudaGetLastError());
  const AttentionGradients given{buffers.rounded_d_out, buffers.log_sum_exp, buffers.row_products};
  for_width(shape.head_size, [&]<int width>(Width<width>) {
    launch(BackwardKeys<width>{given, buffers.dk, buffers.dv}, problem, shape.sequences, problem.kv_heads,
           stream);
    launch(BackwardQueries<width>{given, buffers.dq}, problem, shape.sequences, problem.heads, stream);
  });
}

}  // namespace shardbench::kernels::cuda
