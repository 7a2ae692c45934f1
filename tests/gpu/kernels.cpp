// Every kernel on a GPU against its twin on the host: the same call on the same values. Without a device the
// program says so and exits with 77, which CTest reports as skipped.
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "kernels/cuda/cuda_kernels.hpp"
#include "src/device/cuda/cuda_device.hpp"
#include "tests/unit/support.hpp"

namespace shardbench::test {
namespace {

using kernels::Kernels;
using kernels::Matrix;
using kernels::Output;
using kernels::TypedView;
using Tokens = std::vector<std::int32_t>;

constexpr int skipped = 77;

// Sums in another order; bf16 operands of products are compared with products of the same rounded operands.
constexpr double fp32_tolerance = 2e-5;
constexpr double bf16_rounding = 0x1p-8;

/// Arrays on one of the two devices, the same for the same seed, and what a kernel made of them.
class Side {
 public:
  Side(std::shared_ptr<Device> device, Kernels& kernels) : device_(std::move(device)), kernels_(kernels) {}

  Kernels& kernels() { return kernels_; }

  DeviceSpan<float> floats(std::int64_t count, unsigned seed, float bound = 1.0F) {
    const Floats values = random_floats(count, seed, bound);
    return placed<float>(values);
  }
  Matrix matrix(std::int64_t rows, std::int64_t columns, unsigned seed, float bound = 1.0F) {
    return {floats(rows * columns, seed, bound).data(), rows, columns};
  }
  /// Values that bf16 can hold, so that a product of bf16 operands rounds none of them.
  Matrix rounded(std::int64_t rows, std::int64_t columns, unsigned seed) {
    Floats values = random_floats(rows * columns, seed);
    for (float& value : values) value = rounded_to(DType::bf16, value);
    return {placed<float>(values).data(), rows, columns};
  }
  TypedView stored(DType dtype, std::int64_t rows, std::int64_t columns, unsigned seed) {
    Stored values(dtype, rows, columns, random_floats(rows * columns, seed));
    TypedView view = values.view();
    const std::span<const std::byte> bytes(view.data,
                                           static_cast<std::size_t>(rows * columns * size_of(dtype)));
    view.data = reinterpret_cast<std::byte*>(placed<std::byte>(bytes).data());
    return view;
  }
  DeviceSpan<const std::int32_t> tokens(const Tokens& values) { return placed<std::int32_t>(values); }
  template <class T>
  DeviceSpan<T> scalar(T value) {
    return placed<T>(std::span<const T>(&value, 1));
  }

  void keep(const std::string& name, DeviceSpan<float> values) {
    const Floats floats = read_values<float>(*device_, values);
    results[name] = floats;
  }
  void keep(const std::string& name, const Matrix& m) {
    keep(name, DeviceSpan<float>(m.data, m.rows * m.columns));
  }
  void keep(const std::string& name, DeviceSpan<double> values) {
    results[name] = {static_cast<float>(read_values<double>(*device_, values).front())};
  }
  void keep(const std::string& name, const TypedView& view) {
    if (view.dtype == DType::fp32)
      return keep(name, DeviceSpan<float>(reinterpret_cast<float*>(view.data), view.elements()));
    for (const auto value : read_values<bodies::BFloat16>(
             *device_, {reinterpret_cast<const bodies::BFloat16*>(view.data), view.elements()}))
      results[name].push_back(bodies::widen(value));
  }

  void keep(const std::string& name, const kernels::ProductInput& input) {
    const kernels::ConstMatrix& m = input.values;
    if (input.rounded == nullptr) {
      results[name] = read_values<float>(*device_, {m.data, m.rows * m.columns});
    } else {
      keep(name, TypedView{input.rounded->data(), input.rounded->dtype(), m.rows, m.columns});
    }
  }

  std::map<std::string, Floats> results;

 private:
  template <class T>
  DeviceSpan<T> placed(std::span<const T> values) {
    arrays_.push_back(device_->allocate(Bytes(static_cast<std::int64_t>(values.size_bytes()))));
    const DeviceSpan<T> span(reinterpret_cast<T*>(arrays_.back().get()), std::ssize(values));
    write_values<T>(*device_, span, values);
    return span;
  }

  std::shared_ptr<Device> device_;
  Kernels& kernels_;
  std::vector<std::shared_ptr<std::byte>> arrays_;
};

/// Runs the same on the host and on the GPU, whose products read operands in `dtype`.
template <class Work>
void expect_twins(Work work, double tolerance = fp32_tolerance, DType dtype = DType::bf16) {
  KernelSet host_kernels(2, 2100, 512);
  Side host(make_host_device(), *host_kernels);
  work(host);
  const auto device = std::make_shared<cuda::CudaDevice>(0);
  Memory memory;
  memory.use(device);
  const auto kernels = kernels::make_cuda_kernels(device, memory, dtype);
  Side gpu(device, *kernels);
  work(gpu);
  ASSERT_EQ(host.results.size(), gpu.results.size());
  for (const auto& [name, values] : host.results)
    expect_close(gpu.results.at(name), widened(values), tolerance, name, 1e-3);
}

// Whole packs; a row that is no multiple of a pack; fewer columns than lanes.
constexpr std::int64_t widths[] = {256, 101, 6};

TEST(GpuElements, CastsAndSums) {
  for (const std::int64_t count : {1, 1003, 4096})
    for (const DType to : {DType::bf16, DType::fp32})
      for (const DType from : {DType::bf16, DType::fp32})
        expect_twins(
            [=](Side& side) {
              const TypedView copy = side.stored(to, count, 1, 1);
              const TypedView sum = side.stored(to, count, 1, 2);
              const TypedView source = side.stored(from, count, 1, 3);
              side.kernels().scaled_copy(copy, source, 0.25F);
              side.kernels().accumulate(sum, source);
              side.keep("copy", copy);
              side.keep("sum", sum);
            },
            to == DType::bf16 ? 0.0 : fp32_tolerance);
}

TEST(GpuElements, PartsThatBeginAnywhere) {
  expect_twins([](Side& side) {
    TypedView to = side.stored(DType::bf16, 100, 1, 1);
    TypedView from = side.stored(DType::fp32, 100, 1, 2);
    TypedView part = to;
    part.data += 3 * size_of(DType::bf16);
    part.rows = 90;
    from.data += 7 * size_of(DType::fp32);
    from.rows = 90;
    side.kernels().scaled_copy(part, from, 1.0F);
    part.rows = 5;
    side.kernels().fill_zero(part);
    side.keep("to", to);
  });
}

TEST(GpuElements, Swiglu) {
  expect_twins([](Side& side) {
    const Matrix gate = side.matrix(7, 101, 1, 6.0F);
    const Matrix up = side.matrix(7, 101, 2);
    const Matrix gated = side.matrix(7, 101, 3);
    side.kernels().swiglu_forward(gated, gate, up);
    side.keep("gated", gated);
    side.kernels().add(up, gate);
    side.keep("sum", up);
  });
  for (const DType dtype : {DType::bf16, DType::fp32})
    expect_twins(
        [](Side& side) {
          const auto gradients = side.kernels().swiglu_backward(
              side.matrix(7, 101, 4), side.matrix(7, 101, 5), side.matrix(7, 101, 6),
              side.matrix(7, 101, 1, 6.0F), side.matrix(7, 101, 2));
          side.keep("d_gate", gradients.gate);
          side.keep("d_up", gradients.up);
        },
        dtype == DType::bf16 ? bf16_rounding : fp32_tolerance, dtype);
}

TEST(GpuElements, AdamW) {
  for (const DType parameter : {DType::bf16, DType::fp32})
    for (const DType gradient : {DType::bf16, DType::fp32})
      expect_twins([=](Side& side) {
        const std::int64_t count = 1003;
        const auto master = side.floats(count, 1);
        const auto m = side.floats(count, 2, 0.0F);
        const auto v = side.floats(count, 3, 0.0F);
        const TypedView copy =
            parameter == DType::fp32
                ? TypedView{reinterpret_cast<std::byte*>(master.data()), DType::fp32, count}
                : side.stored(parameter, count, 1, 4);
        for (int step = 1; step <= 3; ++step)
          side.kernels().adamw(
              master, m, v, copy, side.stored(gradient, count, 1, 10U + static_cast<unsigned>(step)),
              side.scalar(0.5F),
              {.learning_rate = 3e-2F,
               .beta1 = 0.9F,
               .beta2 = 0.95F,
               .epsilon = 1e-8F,
               .weight_decay = 0.1F,
               .inverse_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(0.9, step))),
               .inverse_correction2 = static_cast<float>(1.0 / (1.0 - std::pow(0.95, step)))});
        side.keep("master", master);
        side.keep("m", m);
        side.keep("v", v);
      });
}

TEST(GpuRows, Embedding) {
  for (const std::int64_t width : widths)
    expect_twins(
        [=](Side& side) {
          const auto tokens = side.tokens({4, 0, 4, -1, 2, 4, 0, 1, 1});
          const Matrix y = side.matrix(9, width, 1);
          const Matrix d_table = side.matrix(5, width, 2);
          side.kernels().embedding_forward(y, side.stored(DType::bf16, 5, width, 3), tokens);
          side.kernels().embedding_backward(d_table, side.matrix(9, width, 4), tokens);
          side.keep("y", y);
          side.keep("d_table", d_table);
        },
        0.0);  // sums in the same order
}

TEST(GpuRows, RmsNorm) {
  for (const std::int64_t width : widths)
    for (const DType dtype : {DType::bf16, DType::fp32})
      expect_twins([=](Side& side) {
        const Matrix x = side.matrix(77, width, 1);
        const Matrix y = side.matrix(77, width, 2);
        const Matrix dx = side.matrix(77, width, 3);
        const auto d_weight = side.floats(width, 4);
        const TypedView weight = side.stored(dtype, width, 1, 5);
        side.kernels().rms_norm_forward(y, x, weight, 1e-5F);
        side.kernels().rms_norm_backward(dx, d_weight, side.floats(77, 6), side.matrix(77, width, 7), x,
                                         weight, 1e-5F);
        side.keep("y", y);
        side.keep("dx", dx);
        side.keep("d_weight", d_weight);
      });
}

TEST(GpuRows, Rope) {
  for (const auto rotation : {bodies::Rotation::forward, bodies::Rotation::inverse})
    expect_twins([=](Side& side) {
      const Matrix cosines = side.matrix(19, 8, 1);
      const Matrix sines = side.matrix(19, 8, 2);
      const Matrix x = side.matrix(2 * 19, 3 * 16, 3);
      side.kernels().rope_table(cosines, sines, 16, 10000.0);
      side.kernels().rope(x, cosines, sines, rotation);
      side.keep("cosines", cosines);
      side.keep("sines", sines);
      side.keep("x", x);
    });
}

TEST(GpuRows, CrossEntropy) {
  for (const std::int64_t vocabulary : {8, 1001, 4096})
    expect_twins([=](Side& side) {
      const Tokens targets = {0, static_cast<std::int32_t>(vocabulary) - 1, 3, 3, 7};
      const Matrix logits = side.matrix(5, vocabulary, 1, 5.0F);
      const auto losses = side.floats(5, 2);
      const auto total = side.scalar(1.0);
      side.kernels().cross_entropy(losses, logits, side.tokens(targets), 0.2F);
      side.kernels().add_sum(total, losses);
      side.keep("losses", losses);
      side.keep("gradient", logits);
      side.keep("total", total);
    });
}

TEST(GpuRows, SharedCrossEntropy) {
  expect_twins([](Side& side) {
    const Matrix logits = side.matrix(4, 333, 1, 5.0F);
    const auto targets = side.tokens({0, -1, 332, 5});
    const auto largest = side.floats(4, 2);
    const auto total = side.floats(4, 3);
    const auto target_logit = side.floats(4, 4);
    const auto losses = side.floats(4, 5);
    side.kernels().row_maximum(largest, logits);
    side.kernels().row_exponentials(total, target_logit, logits, largest, targets);
    side.kernels().cross_entropy_gradient(losses, logits, {largest, total, target_logit}, targets, 0.25F);
    for (const auto& [name, values] : {std::pair("largest", largest),
                                       {"total", total},
                                       {"target_logit", target_logit},
                                       {"losses", losses}})
      side.keep(name, values);
    side.keep("gradient", logits);
  });
}

TEST(GpuNumbers, SquaresAndClipping) {
  for (const std::int64_t count : {1, 1003, 5'000'000})
    for (const DType dtype : {DType::bf16, DType::fp32})
      expect_twins([=](Side& side) {
        const auto squares = side.scalar(2.0);
        const auto factor = side.scalar(1.0F);
        const auto message = side.scalar(0.0F);
        side.kernels().add_squares(squares, side.stored(dtype, count, 1, 1));
        side.kernels().narrow(message, squares);
        side.kernels().widen(squares, message);
        side.kernels().clip_factor(factor, squares, 1.0);
        side.keep("squares", squares);
        side.keep("factor", factor);
      });
}

TEST(GpuProducts, Linear) {
  struct Shape {
    std::int64_t tokens, in, out;
  };
  for (const auto& [tokens, in, out] : {Shape{64, 128, 256}, {3, 5, 7}, {33, 64, 100}, {5, 0, 7}, {5, 7, 0}})
    for (const DType dtype : {DType::bf16, DType::fp32})
      for (const Output output : {Output::overwrite, Output::accumulate})
        expect_twins(
            [=](Side& side) {
              const Matrix x = side.rounded(tokens, in, 1);
              const Matrix dy = side.rounded(tokens, out, 2);
              const TypedView weight = side.stored(dtype, out, in, 3);
              const Matrix y = side.matrix(tokens, out, 4);
              const Matrix dx = side.matrix(tokens, in, 5);
              const Matrix d_weight = side.matrix(out, in, 6);
              const auto prepared = side.kernels().prepare(dy);
              side.kernels().linear_forward(y, x, weight, output);
              side.kernels().linear_backward_input(dx, prepared, weight, output);
              side.kernels().linear_backward_weight(d_weight, prepared, x);
              side.keep("y", y);
              side.keep("dx", dx);
              side.keep("d_weight", d_weight);
            },
            fp32_tolerance, dtype);
}

TEST(GpuProducts, Attention) {
  // Grouped heads, lengths that are no multiple of anything, several tiles.
  for (const kernels::AttentionShape& shape : {kernels::AttentionShape{2, 5, 4, 2, 4},
                                               {1, 200, 6, 3, 16},
                                               {2, 130, 4, 4, 64},
                                               {1, 2100, 4, 2, 8},
                                               {2, 333, 4, 1, 128},
                                               {1, 65, 2, 2, 32}})
    for (const DType dtype : {DType::fp32, DType::bf16})
      expect_twins(
          [=](Side& side) {
            const std::int64_t rows = shape.sequences * shape.length;
            const std::int64_t q_columns = shape.heads * shape.head_size;
            const std::int64_t kv_columns = shape.kv_heads * shape.head_size;
            const Matrix q = side.rounded(rows, q_columns, 1);
            const Matrix k = side.rounded(rows, kv_columns, 2);
            const Matrix v = side.rounded(rows, kv_columns, 3);
            const Matrix d_out = side.rounded(rows, q_columns, 4);
            const Matrix out = side.matrix(rows, q_columns, 5);
            const Matrix dq = side.matrix(rows, q_columns, 6);
            const Matrix dk = side.matrix(rows, kv_columns, 7);
            const Matrix dv = side.matrix(rows, kv_columns, 8);
            const auto log_sum_exp = side.floats(shape.sequences * shape.heads * shape.length, 9);
            side.kernels().attention_forward(out, log_sum_exp, q, k, v, shape);
            side.kernels().attention_backward(dq, dk, dv, d_out, out, log_sum_exp, q, k, v, shape);
            side.keep("log_sum_exp", log_sum_exp);
            for (const auto& [name, m] : {std::pair("out", out), {"dq", dq}, {"dk", dk}, {"dv", dv}})
              side.keep(name, m);
          },
          dtype == DType::bf16 ? 1e-2 : fp32_tolerance, dtype);
}

}  // namespace
}  // namespace shardbench::test

int main(int argc, char** argv) {
  if (shardbench::cuda::visible_devices() == 0) {
    std::puts("skipped: no CUDA device is visible");
    return shardbench::test::skipped;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
