#include "src/train/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "src/errors.hpp"

namespace shardbench {
namespace {

// One bf16 rounding changes a value by a relative 2^-9/sqrt(3) in root mean square.
constexpr double bf16_rounding = 0x1p-9 / 1.7320508;

// fp32 sums in another order differ by a relative 1e-6 in right runs.
constexpr double fp32_noise = 1e-6;
constexpr double fp32_tolerance = 1e-4;

// What cancels leaves fp32 roundings of the terms, which a small sum does not show: with one position, for
// example, the gradients of wq and wk are 0 in exact arithmetic. Terms are taken to be as large as the
// largest gradient of any tensor.
constexpr double cancellation = 0x1p-24;

/// Errors of a gradient due to bf16, relative to the gradients of single micro-batches, whose roundings stay
/// when micro-batches cancel; several times what is seen. Weights rounded the other way change a gradient by
/// one rounding, rounding it by another. A reduction rounds what goes in, then partial sums, whose squares
/// are a third of the last's on average; so does accumulation; and from the second step on, masters have
/// moved elsewhere where the sign of a gradient was chance. Tensor parallelism rounds each exchanged
/// activation: 4L+2 in a micro-batch. A GPU's products round what they read, 7 forward and 14 backward in a
/// block and 3 of the head; the host's kernels, made to round likewise, are off by half of this at most.
double bf16_tolerance(const TrainContext& context) {
  const Options& options = context.options;
  const auto ranks = static_cast<double>(context.mesh.dp);
  const auto micro_batches = static_cast<double>(options.grad_accum);
  double tolerance = 0.0;
  if (options.param_dtype == DType::bf16) tolerance += 1.5e-2;
  if (options.param_dtype == DType::bf16 && context.mesh.tp > 1)
    tolerance += 4.0 * bf16_rounding * std::sqrt(4.0 * static_cast<double>(options.dims.layers) + 2.0);
  if (options.param_dtype == DType::bf16 && options.backend == BackendChoice::nccl)
    tolerance += 4.0 * bf16_rounding * std::sqrt(21.0 * static_cast<double>(options.dims.layers) + 3.0);
  if (options.reduce_dtype == DType::bf16)
    tolerance += 8.0 * bf16_rounding * std::sqrt(1.0 + (ranks + micro_batches) / 3.0);
  return tolerance;
}

/// Rounding differences feed back through the masters; measured over 20 steps of a 6-million-parameter model
/// they grow with about the square root of the steps.
double growth(int step) { return std::sqrt(1.0 + step / 20.0); }

/// Relative L2 errors of how far masters have moved. Adam moves an element by the learning rate whatever its
/// gradient's size, so that where a gradient is smaller than its noise the direction is chance.
double master_tolerance(const TrainContext& context) {
  return 10.0 * (fp32_tolerance + bf16_tolerance(context));
}

// However many ranks and steps: what is off by more is wrong. (A tensor that never moved is off by 1.)
constexpr double loosest_gradient = 0.3;
constexpr double loosest_master = 0.5;

// A single element may be off by this many times the error that is allowed on average, and by a few times the
// tensor's root mean square in any case, before it counts as wrong by itself.
constexpr double element_factor = 100.0;
constexpr double element_floor = 4.0;

/// Adds the squares of `values` up, in double.
double sum_of_squares(const std::vector<float>& values) {
  double squares = 0.0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return squares;
}

/// To the nearest value of bf16's 8 significant bits, ties to even; without the kernels' arithmetic on bits.
float rounded_to_bf16(float value) {
  if (value == 0.0F || !std::isfinite(value)) return value;
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(value), &exponent);  // from 1/2 to 1
  constexpr int smallest_normal = -125;
  const int digits = 8 - std::max(0, smallest_normal - exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(mantissa, digits)), exponent - digits));
}

/// Elements of either storage type, on the host.
std::vector<float> values_of(Device& device, const kernels::TypedView& view) {
  if (view.dtype == DType::fp32)
    return read_values<float>(device, {reinterpret_cast<const float*>(view.data), view.elements()});
  const auto stored = read_values<bodies::BFloat16>(
      device, {reinterpret_cast<const bodies::BFloat16*>(view.data), view.elements()});
  std::vector<float> values(stored.size());
  std::transform(stored.begin(), stored.end(), values.begin(),
                 [](bodies::BFloat16 value) { return bodies::widen(value); });
  return values;
}

struct Deviation {
  double excess = 0.0;  ///< error / allowed error
  std::int64_t tensor = -1;
  std::int64_t rank = 0;
  std::int64_t element = 0;
  double found = 0.0;
  double expected = 0.0;
};

/// What is compared with the reference, and how.
struct Comparison {
  std::string what;
  /// The elements of an owned range.
  std::function<std::vector<float>(std::size_t owned)> found;
  /// Element of a declared tensor: errors are relative to the distance from here.
  std::function<double(const TensorInfo& tensor, std::int64_t element)> origin;
  /// On rank 0: by tensor, the root mean square error allowed for a distance of this root mean square.
  std::function<double(std::size_t tensor, double distance)> allowed;
};

}  // namespace

/// The unsharded training run.
class ReferenceCheck::Reference {
 public:
  explicit Reference(const TrainContext& context)
      : options_(context.options),
        tensors_(declare_tensors(context.dims())),
        micro_batches_(context.options.grad_accum * context.mesh.dp),
        bf16_tolerance_(bf16_tolerance(context)),
        kernels_(make_kernels(context)),
        decoder_({.dims = context.dims(),
                  .micro_batch = context.options.micro_batch,
                  .seed = context.options.seed,
                  .backing = Backing::memory},
                 memory_,
                 make_real_math(context.dims(), local_dims(context.dims(), 1, 0), context.options.micro_batch,
                                allocate_rope_tables(context.dims(), memory_, Backing::memory), *kernels_)),
        weights_(tensors_.size()),
        gradient_views_(tensors_.size()) {
    for (const TensorInfo& tensor : tensors_) {
      const auto n = static_cast<std::size_t>(tensor.elements().count());
      std::vector<float> master(n);
      for (std::size_t i = 0; i < n; ++i)
        master[i] = initial_value(options_.seed, tensor, static_cast<std::int64_t>(i));
      masters.push_back(std::move(master));
      gradients.emplace_back(n);
      of_micro_batch_.emplace_back(n);
      chance_.emplace_back(n);
      moment1_.emplace_back(n);
      moment2_.emplace_back(n);
      stored_.push_back(memory_.allocate(Category::parameters, options_.param_dtype, tensor.elements()));
      weights_.set(tensor.index, {stored_.back()->data(), options_.param_dtype, tensor.rows, tensor.columns});
      gradient_views_.set(tensor.index, {of_micro_batch_.back().data(), tensor.rows, tensor.columns});
    }
    store_parameters();
  }

  /// Gradients of the mean loss over the step's global batch.
  void compute_gradients(int step) {
    for (auto& gradient : gradients) std::fill(gradient.begin(), gradient.end(), 0.0F);
    std::vector<double> squares(gradients.size());
    for (std::int64_t micro = 0; micro < micro_batches_; ++micro) {
      for (auto& gradient : of_micro_batch_) std::fill(gradient.begin(), gradient.end(), 0.0F);
      decoder_.load_batch(step, micro * options_.micro_batch);
      for (int layer = 0; layer < decoder_.dims().layer_count(); ++layer) decoder_.forward(layer, weights_);
      for (int layer = decoder_.dims().head_layer(); layer >= 0; --layer)
        decoder_.backward(layer, weights_, gradient_views_);
      for (std::size_t t = 0; t < gradients.size(); ++t) {
        squares[t] += sum_of_squares(of_micro_batch_[t]);
        for (std::size_t i = 0; i < gradients[t].size(); ++i) gradients[t][i] += of_micro_batch_[t][i];
      }
    }
    for (auto& gradient : gradients)
      for (float& value : gradient) value /= static_cast<float>(micro_batches_);
    scales_.clear();
    for (std::size_t t = 0; t < squares.size(); ++t)
      scales_.push_back(std::sqrt(squares[t] / static_cast<double>(micro_batches_) /
                                  static_cast<double>(gradients[t].size())));
  }

  /// Of a tensor's gradient: the error that bf16 and cancellation may leave, in root mean square.
  [[nodiscard]] double noise(std::size_t tensor, int step) const {
    const double largest = *std::max_element(scales_.begin(), scales_.end());
    return std::min(loosest_gradient, bf16_tolerance_ * growth(step)) * scales_[tensor] +
           cancellation * largest;
  }

  /// How far a tensor's masters may be off because gradients as small as their noise have any direction.
  [[nodiscard]] double chance(std::size_t tensor) const {
    double squares = 0.0;
    for (const double value : chance_[tensor]) squares += value * value;
    return std::sqrt(squares / static_cast<double>(chance_[tensor].size()));
  }

  /// The contract's AdamW, step `update` from 1.
  void update(int update) {
    constexpr double beta1 = 0.9;
    constexpr double beta2 = 0.95;
    constexpr double learning_rate = 3e-4;
    constexpr double epsilon = 1e-8;
    constexpr double weight_decay = 0.1;
    const double factor = clip_factor();
    const double correction1 = 1 - std::pow(beta1, update);
    const double correction2 = 1 - std::pow(beta2, update);
    for (const TensorInfo& tensor : tensors_) {
      const auto t = static_cast<std::size_t>(tensor.index);
      const double decay = tensor.is_norm() ? 0.0 : weight_decay;
      const double uncertain = noise(t, update - 1) + fp32_noise * scales_[t];
      for (std::size_t i = 0; i < masters[t].size(); ++i) {
        const double g = factor * static_cast<double>(gradients[t][i]);
        double& m = moment1_[t][i];
        double& v = moment2_[t][i];
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        const double size = std::sqrt(v / correction2) + epsilon;
        const double step = (m / correction1) / size;
        chance_[t][i] += learning_rate * std::min(2.0, factor * uncertain / size);
        const double decayed = static_cast<double>(masters[t][i]) * (1 - learning_rate * decay);
        masters[t][i] = static_cast<float>(decayed - learning_rate * step);
      }
    }
    store_parameters();
  }

  std::vector<std::vector<float>> masters;
  std::vector<std::vector<float>> gradients;

 private:
  std::unique_ptr<kernels::Kernels> make_kernels(const TrainContext& context) {
    const auto needs = scratch_needs(options_, thread_count(options_, context.world.placement()));
    scratch_ =
        memory_.allocate(Category::workspace, DType::fp32, Elements(kernels::openmp_scratch_elements(needs)));
    return kernels::make_openmp_kernels(needs, scratch_->floats(),
                                        [&world = context.world] { world.poll(); });
  }

  [[nodiscard]] double clip_factor() const {
    if (options_.clip == 0.0) return 1.0;
    double squares = 0.0;
    for (const auto& gradient : gradients) squares += sum_of_squares(gradient);
    return std::min(1.0, options_.clip / (std::sqrt(squares) + 1e-6));
  }

  void store_parameters() {
    for (std::size_t t = 0; t < masters.size(); ++t)
      for (std::size_t i = 0; i < masters[t].size(); ++i) {
        if (options_.param_dtype == DType::bf16) {
          const auto bits = std::bit_cast<std::uint32_t>(rounded_to_bf16(masters[t][i]));
          reinterpret_cast<bodies::BFloat16*>(stored_[t]->data())[i] = {
              static_cast<std::uint16_t>(bits >> 16U)};
        } else {
          reinterpret_cast<float*>(stored_[t]->data())[i] = masters[t][i];
        }
      }
  }

  const Options& options_;
  std::vector<TensorInfo> tensors_;
  std::int64_t micro_batches_;
  double bf16_tolerance_;
  Memory memory_;  // its own, on the host: the reference is not part of what the run holds
  BufferRef scratch_;
  std::unique_ptr<kernels::Kernels> kernels_;
  Decoder decoder_;
  std::vector<BufferRef> stored_;
  WeightTable weights_;
  std::vector<std::vector<float>> of_micro_batch_;
  GradientTable gradient_views_;  // of a micro-batch
  std::vector<double> scales_;    // by tensor: root mean square of the micro-batches' gradients
  std::vector<std::vector<double>> chance_;
  std::vector<std::vector<double>> moment1_;
  std::vector<std::vector<double>> moment2_;
};

namespace {

/// Of a tensor, in root mean square.
struct Scale {
  double distance = 0.0;  ///< of the reference's values from their origin
  double allowed = 0.0;   ///< error
};

/// By tensor; rank 0 finds out and tells the others.
std::vector<Scale> scales_of(const TrainContext& context, const std::vector<std::vector<float>>* reference,
                             const Comparison& comparison) {
  std::vector<Scale> scales;
  if (reference != nullptr)
    for (const TensorInfo& tensor : declare_tensors(context.dims())) {
      const auto t = static_cast<std::size_t>(tensor.index);
      const std::vector<float>& values = (*reference)[t];
      double squares = 0.0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double distance =
            static_cast<double>(values[i]) - comparison.origin(tensor, static_cast<std::int64_t>(i));
        squares += distance * distance;
      }
      const double distance = std::sqrt(squares / static_cast<double>(values.size()));
      scales.push_back({.distance = distance, .allowed = comparison.allowed(t, distance)});
    }
  const auto bytes = as_message<Scale>(std::span<const Scale>(scales));
  return from_message<Scale>(broadcast(context.world.control(), {bytes.begin(), bytes.end()}));
}

/// Sends rank 0's tensors around, one at a time, and compares this rank's owned ranges with them. Collective;
/// every rank returns the same verdict.
std::optional<std::string> compare(const TrainContext& context, const std::vector<Slice>& owned,
                                   Replication replication, const std::vector<std::vector<float>>* reference,
                                   const Comparison& comparison) {
  ControlChannel& control = context.world.control();
  // By tensor: squares of errors, elements compared, elements of which this is the one copy that counts.
  std::vector<double> sums(3 * context.tensors.size());
  const std::vector<Scale> scales = scales_of(context, reference, comparison);
  std::vector<Deviation> worst(context.tensors.size());  // by tensor
  const std::vector<TensorInfo> declared = declare_tensors(context.dims());
  for (const TensorInfo& tensor : declared) {
    const auto t = static_cast<std::size_t>(tensor.index);
    std::vector<std::byte> message;
    if (reference != nullptr) {
      const auto bytes = as_message<float>((*reference)[t]);
      message.assign(bytes.begin(), bytes.end());
    }
    const auto expected = from_message<float>(broadcast(control, std::move(message)));
    const bool counts = context.tensors[t].copy == Copy::primary &&
                        (replication == Replication::sharded || control.rank() == 0);
    for (std::size_t range = 0; range < owned.size(); ++range) {
      const Slice& slice = owned[range];
      if (slice.tensor != tensor.index) continue;
      if (counts) sums[3 * t + 2] += static_cast<double>(slice.count);
      const std::vector<float> values = comparison.found(range);
      for (std::int64_t i = 0; i < slice.count; ++i) {
        const std::int64_t element = context.tensors[t].declared_element(slice.begin + i);
        const auto e = static_cast<double>(expected[static_cast<std::size_t>(element)]);
        const auto found = static_cast<double>(values[static_cast<std::size_t>(i)]);
        const double distance = e - comparison.origin(tensor, element);
        const double error = std::abs(found - e);
        sums[3 * t] += error * error;
        sums[3 * t + 1] += 1.0;
        const double far =
            element_floor * (scales[t].distance + std::abs(distance)) + element_factor * scales[t].allowed;
        const double excess = std::isfinite(found) ? error / (far + 1e-30) : INFINITY;
        if (worst[t].tensor < 0 || excess > worst[t].excess)
          worst[t] = {excess, tensor.index, control.rank(), element, found, e};
      }
    }
  }
  const std::vector<double> all = sum(control, sums);
  for (const auto& message : gather(control, as_message<Deviation>(std::span<const Deviation>(worst)))) {
    const auto others = from_message<Deviation>(message);
    for (std::size_t t = 0; t < others.size(); ++t)
      if (others[t].tensor >= 0 && (worst[t].tensor < 0 || others[t].excess > worst[t].excess))
        worst[t] = others[t];
  }
  Deviation named = *std::max_element(
      worst.begin(), worst.end(), [](const Deviation& a, const Deviation& b) { return a.excess < b.excess; });
  std::string failure;
  for (const TensorInfo& tensor : context.tensors) {
    const auto t = static_cast<std::size_t>(tensor.index);
    const double error = std::sqrt(all[3 * t] / std::max(all[3 * t + 1], 1.0));
    if (all[3 * t + 2] != static_cast<double>(declared[t].elements().count())) {
      failure = fmt::format(" of {} is held for {:.0f} of {} elements only", tensor.name, all[3 * t + 2],
                            declared[t].elements().count());
      break;
    }
    if (error <= scales[t].allowed) continue;  // (a NaN is no agreement)
    failure = fmt::format(" of {} is off by {:.2e} in root mean square, {:.1e} allowed", tensor.name, error,
                          scales[t].allowed);
    named = worst[t];
    break;
  }
  // Ranks know only their own worst elements; rank 0, which prints, knows everyone's.
  const bool wrong = !failure.empty() || named.excess > 1.0;
  if (maximum(control, control.rank() == 0 && wrong ? 1.0 : 0.0) == 0.0) return std::nullopt;
  const std::string name =
      named.tensor < 0 ? "none" : context.tensors[static_cast<std::size_t>(named.tensor)].name;
  return fmt::format("{}{}; worst element: tensor {}, rank {}, index {}: found {:.6g}, expected {:.6g}",
                     comparison.what, failure, name, named.rank, named.element, named.found, named.expected);
}

/// bf16 parameters must be their masters, rounded: exactly.
std::optional<std::string> compare_parameters(const TrainContext& context, ResidentState& state) {
  if (context.options.param_dtype != DType::bf16) return std::nullopt;
  ControlChannel& control = context.world.control();
  Device& device = *context.memory.device();
  Deviation first;
  for (std::size_t range = 0; range < state.owned().size() && first.tensor < 0; ++range) {
    const Slice& slice = state.owned()[range];
    const std::vector<float> masters = read_values<float>(device, state.masters(range));
    const std::vector<float> stored = values_of(
        device, view(*state.parameters(), state.residence().parameters.owned_at[range], slice.count));
    for (std::int64_t i = 0; i < slice.count && first.tensor < 0; ++i) {
      const float found = stored[static_cast<std::size_t>(i)];
      const float expected = rounded_to_bf16(masters[static_cast<std::size_t>(i)]);
      if (found == expected) continue;
      const TensorInfo& tensor = context.tensors[static_cast<std::size_t>(slice.tensor)];
      first = {1.0, slice.tensor, control.rank(), tensor.declared_element(slice.begin + i), found, expected};
    }
  }
  for (const auto& message : gather(control, as_message<Deviation>(std::span<const Deviation>(&first, 1)))) {
    const auto other = from_message<Deviation>(message).front();
    if (first.tensor < 0) first = other;
  }
  if (maximum(control, first.tensor < 0 ? 0.0 : 1.0) == 0.0) return std::nullopt;
  const std::string name =
      first.tensor < 0 ? "none" : context.tensors[static_cast<std::size_t>(first.tensor)].name;
  return fmt::format(
      "the final parameter is not its master rounded; worst element: tensor {}, rank {}, index {}: found "
      "{:.6g}, expected {:.6g}",
      name, first.rank, first.element, first.found, first.expected);
}

}  // namespace

ReferenceCheck::ReferenceCheck(const TrainContext& context)
    : context_(context), master_tolerance_(master_tolerance(context)) {
  if (context.world.rank() == 0) reference_ = std::make_unique<Reference>(context);
}

ReferenceCheck::~ReferenceCheck() = default;

std::optional<std::string> ReferenceCheck::compare_step(int step, Scenario& scenario) {
  if (reference_) reference_->compute_gradients(step);
  const ResidentState& state = scenario.state();
  const auto values = [&](std::size_t owned) {
    return values_of(*context_.memory.device(), state.gradient(owned));
  };
  auto failure =
      compare(context_, state.owned(), scenario.replication(), reference_ ? &reference_->gradients : nullptr,
              {.what = fmt::format("step {}: the gradient", step),
               .found = values,
               .origin = [](const TensorInfo&, std::int64_t) { return 0.0; },
               .allowed =
                   [&](std::size_t tensor, double distance) {
                     return fp32_tolerance * growth(step) * distance + reference_->noise(tensor, step);
                   }});
  last_step_ = step;
  if (reference_) reference_->update(step + 1);
  barrier(context_.world.control());  // or the next step would be timed waiting for rank 0's reference
  return failure;
}

std::optional<std::string> ReferenceCheck::compare_masters(Scenario& scenario) {
  const ResidentState& state = scenario.state();
  const auto values = [&](std::size_t owned) {
    return read_values<float>(*context_.memory.device(), state.masters(owned));
  };
  const auto initial = [this](const TensorInfo& tensor, std::int64_t element) {
    return static_cast<double>(initial_value(context_.options.seed, tensor, element));
  };
  auto failure =
      compare(context_, state.owned(), scenario.replication(), reference_ ? &reference_->masters : nullptr,
              {.what = "the final master",
               .found = values,
               .origin = initial,
               .allowed = [&](std::size_t tensor, double distance) {
                 const double part = std::min(loosest_master, master_tolerance_ * growth(last_step_));
                 return std::hypot(part * distance, reference_->chance(tensor));
               }});
  const auto rounding = compare_parameters(context_, scenario.state());
  return failure ? failure : rounding;
}

}  // namespace shardbench
