// Bodies that compute one element, eight to a thread: their operands travel in loads and stores of 16 bytes.
#include "kernels/cuda/grid.cuh"

namespace shardbench::kernels::cuda {
namespace {

template <class T, int width>
struct alignas(width == 1 ? alignof(T) : 16) Pack {
  T values[width];
};

/// How a body uses an operand.
template <class T>
struct Reads {
  const T* data;
};
template <class T>
struct Writes {
  T* data;
};
template <class T>
struct Updates {
  T* data;
};

template <int width, class T>
__device__ Pack<T, width> load(const Reads<T>& operand, std::int64_t first) {
  return *reinterpret_cast<const Pack<T, width>*>(operand.data + first);
}
template <int width, class T>
__device__ Pack<T, width> load(const Updates<T>& operand, std::int64_t first) {
  return *reinterpret_cast<const Pack<T, width>*>(operand.data + first);
}
template <int width, class T>
__device__ Pack<T, width> load(const Writes<T>& /*operand*/, std::int64_t /*first*/) {
  return {};
}

template <int width, class T>
__device__ void store(const Reads<T>& /*operand*/, std::int64_t /*first*/, const Pack<T, width>& /*values*/) {
}
template <int width, class T>
__device__ void store(const Updates<T>& operand, std::int64_t first, const Pack<T, width>& values) {
  *reinterpret_cast<Pack<T, width>*>(operand.data + first) = values;
}
template <int width, class T>
__device__ void store(const Writes<T>& operand, std::int64_t first, const Pack<T, width>& values) {
  *reinterpret_cast<Pack<T, width>*>(operand.data + first) = values;
}

/// The body works on copies in registers: `width` elements, counted from 0.
template <int width, class Body, class... Operands>
__device__ void work_on_pack(std::int64_t first, const Body& body, const Operands&... operands) {
  const auto with_packs = [&](auto... packs) {
#pragma unroll
    for (int k = 0; k < width; ++k) body(k, packs.values...);
    (store<width>(operands, first, packs), ...);
  };
  with_packs(load<width>(operands, first)...);
}

template <int width, class Body, class... Operands>
__global__ void __launch_bounds__(block_threads)
    elementwise(std::int64_t elements, Body body, Operands... operands) {
  const std::int64_t first = width * (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (first + width <= elements) {
    work_on_pack<width>(first, body, operands...);
  } else {
    for (std::int64_t i = first; i < elements; ++i) work_on_pack<1>(i, body, operands...);
  }
}

template <class Body, class... Operands>
void launch(std::int64_t elements, cudaStream_t stream, const Body& body, const Operands&... operands) {
  if (elements == 0) return;
  constexpr int width = 8;  // 16 bytes of bf16, twice 16 of fp32
  if ((is_aligned(operands.data) && ...)) {
    elementwise<width><<<blocks_for(elements, block_threads * width), block_threads, 0, stream>>>(
        elements, body, operands...);
  } else {  // a shard may begin anywhere
    elementwise<1>
        <<<blocks_for(elements, block_threads), block_threads, 0, stream>>>(elements, body, operands...);
  }
  SHARDBENCH_CUDA(cudaGetLastError());
}

struct AddBody {
  template <class To, class From>
  __device__ void operator()(std::int64_t i, To* to, const From* from) const {
    bodies::add(i, to, from);
  }
};

struct ScaledCopyBody {
  float scale;
  template <class To, class From>
  __device__ void operator()(std::int64_t i, To* to, const From* from) const {
    bodies::scaled_copy(i, to, from, scale);
  }
};

struct SwigluForwardBody {
  __device__ void operator()(std::int64_t i, float* gated, const float* gate, const float* up) const {
    bodies::swiglu_forward(i, gated, gate, up);
  }
};

struct SwigluBackwardBody {
  template <class To>
  __device__ void operator()(std::int64_t i, To* d_gate, To* d_up, const float* d_gated, const float* gate,
                             const float* up) const {
    bodies::swiglu_backward(i, d_gate, d_up, d_gated, gate, up);
  }
};

struct AdamWBody {
  const float* gradient_factor;
  bodies::AdamW constants;
  template <class Parameter, class Gradient>
  __device__ void operator()(std::int64_t i, float* master, float* moment1, float* moment2,
                             Parameter* parameter, const Gradient* gradient) const {
    bodies::adamw(i, master, moment1, moment2, parameter, gradient, *gradient_factor, constants);
  }
};

}  // namespace

void add(Matrix y, ConstMatrix x, cudaStream_t stream) {
  launch(y.rows * y.columns, stream, AddBody{}, Updates<float>{y.data}, Reads<float>{x.data});
}

void scaled_copy(TypedView destination, TypedView source, float scale, cudaStream_t stream) {
  for_storage(destination, [&](auto* to) {
    for_storage(source, [&](auto* from) {
      launch(source.elements(), stream, ScaledCopyBody{scale}, Writes{to}, Reads{from});
    });
  });
}

void accumulate(TypedView destination, TypedView source, cudaStream_t stream) {
  for_storage(destination, [&](auto* to) {
    for_storage(source,
                [&](auto* from) { launch(source.elements(), stream, AddBody{}, Updates{to}, Reads{from}); });
  });
}

void swiglu_forward(Matrix gated, ConstMatrix gate, ConstMatrix up, cudaStream_t stream) {
  launch(gated.rows * gated.columns, stream, SwigluForwardBody{}, Writes<float>{gated.data},
         Reads<float>{gate.data}, Reads<float>{up.data});
}

void swiglu_backward(TypedView d_gate, TypedView d_up, ConstMatrix d_gated, ConstMatrix gate, ConstMatrix up,
                     cudaStream_t stream) {
  for_storage(d_gate, [&]<class To>(To* to_gate) {
    launch(d_gated.rows * d_gated.columns, stream, SwigluBackwardBody{}, Writes<To>{to_gate},
           Writes<To>{reinterpret_cast<To*>(d_up.data)}, Reads<float>{d_gated.data}, Reads<float>{gate.data},
           Reads<float>{up.data});
  });
}

void adamw(DeviceSpan<float> master, DeviceSpan<float> moment1, DeviceSpan<float> moment2,
           TypedView parameter, TypedView gradient, DeviceSpan<const float> gradient_factor,
           const bodies::AdamW& constants, cudaStream_t stream) {
  for_storage(parameter, [&](auto* p) {
    for_storage(gradient, [&](auto* g) {
      launch(master.size(), stream, AdamWBody{gradient_factor.data(), constants},
             Updates<float>{master.data()}, Updates<float>{moment1.data()}, Updates<float>{moment2.data()},
             Writes{p}, Reads{g});
    });
  });
}

}  // namespace shardbench::kernels::cuda
