#include "src/train/rank_setup.hpp"

#include <algorithm>

#include "src/ledger/peak.hpp"

namespace shardbench {
namespace {

Backing message_backing(const Options& options, Purpose purpose) {
  if (purpose == Purpose::plan) return Backing::none;
  return options.payload == Payload::phantom ? Backing::aliased : Backing::memory;
}

}  // namespace

RankSetup::RankSetup(const Options& options, const ScenarioDefinition& definition, World& world,
                     Memory& memory, Backend& backend, Purpose purpose)
    : options_(options),
      world_(world),
      backend_(backend),
      memory_(memory),
      threads_(thread_count(options, world.placement())),
      mesh_(make_mesh(world.size(), options.tp, world.rank())),
      message_(message_backing(options, purpose)),
      times_(compute_times(options, mesh_, world.hardware())),
      copies_(world),
      tensors_(tensor_parallel_part(declare_tensors(options.dims), mesh_.tp, mesh_.tp_index)),
      rope_tables_(options.compute == Compute::real
                       ? allocate_rope_tables(options.dims, memory,
                                              purpose == Purpose::run ? Backing::memory : Backing::none)
                       : RopeTables{}),
      recorder_(world, backend.timeline(), memory.tracker(),
                purpose == Purpose::plan ? TraceLevel::events : options.trace),
      tensor_parallel_(make_tensor_parallel_group()),
      decoder_(make_decoder(purpose)) {
  const bool timed = options.compute == Compute::timed;
  const bool phantom = options.payload == Payload::phantom;
  const bool planned = purpose == Purpose::plan;
  context_ = std::make_unique<TrainContext>(
      TrainContext{.options = options_,
                   .world = world_,
                   .memory = memory_,
                   .recorder = recorder_,
                   .backend = backend_,
                   .kernels = backend_.kernels(),
                   .decoder = *decoder_,
                   .copies = copies_,
                   .mesh = mesh_,
                   .tensors = tensors_,
                   .resident = planned || phantom ? Backing::none : Backing::memory,
                   .activation = planned || timed ? Backing::none : Backing::memory,
                   .message = message_,
                   .imitate_optimizer = [this](Elements elements) {
                     imitate(optimizer_seconds(times_, options_, elements, world_.hardware()));
                   }});
  scenario_ = definition.make(*context_);
}

std::unique_ptr<TracedTensorParallelGroup> RankSetup::make_tensor_parallel_group() {
  if (mesh_.tp == 1) return nullptr;
  return std::make_unique<TracedTensorParallelGroup>(
      TracedCommunicator(backend_.communicator(mesh_.tp_group()), Axis::tp, recorder_), recorder_, memory_,
      backend_.kernels(), copies_, options_.param_dtype, message_);
}

std::unique_ptr<Decoder> RankSetup::make_decoder(Purpose purpose) {
  const ModelDims& dims = options_.dims;
  const bool computes = options_.compute == Compute::real && purpose == Purpose::run;
  const auto seconds = [this](int layer, Pass pass) {
    return times_.of(kind_of_layer(options_.dims, layer), pass);
  };
  Decoder::Settings settings{.dims = dims,
                             .micro_batch = options_.micro_batch,
                             .seed = options_.seed,
                             .backing = computes ? Backing::memory : Backing::none,
                             .recompute = options_.recompute,
                             .group = tensor_parallel_.get(),
                             .sequence_parallel = options_.sequence_parallel};
  if (computes) {
    settings.on_pass = [=, this](int layer, Pass pass) { imitate(seconds(layer, pass)); };
    return std::make_unique<Decoder>(settings, memory_,
                                     make_real_math(dims, local_dims(dims, mesh_.tp, mesh_.tp_index),
                                                    options_.micro_batch, rope_tables_, backend_.kernels()));
  }
  return std::make_unique<Decoder>(settings, memory_,
                                   make_timed_math(dims, seconds, [this](double s) { imitate(s); }));
}

double RankSetup::shortest_block_s() const {
  return std::min(times_.of(LayerKind::block, Pass::forward), times_.of(LayerKind::block, Pass::backward));
}

void RankSetup::step(int index, bool warmup) {
  slowdown_ = slowdown(options_.jitter, options_.seed, world_.rank(), index);
  recorder_.begin_step(index, warmup);
  decoder_->begin_step();
  scenario_->forward_backward(index);
  if (!warmup && !held_is_known_) {
    held_is_known_ = true;
    const MemoryTracker& tracker = memory_.tracker();
    held_ = {.parameters = tracker.current(Category::parameters),
             .gradients = tracker.current(Category::gradients),
             .optimizer = tracker.current(Category::optimizer)};
  }
  scenario_->optimizer_step();
  const bool counts_tokens = mesh_.tp_index == 0;  // the others train the same ones
  StepRecord& record = recorder_.end_step(counts_tokens ? decoder_->tokens() * options_.grad_accum : 0);
  record.loss = counts_tokens ? decoder_->loss_sum() : 0.0;  // made global when the window is over
  record.grad_norm = scenario_->state().gradient_squares();
}

void RankSetup::rehearse(int index) {
  slowdown_ = 1.0;
  recorder_.set_rehearsal(true);
  recorder_.begin_step(index, true);
  scenario_->forward_backward(index);
  recorder_.end_step(0);
  recorder_.set_rehearsal(false);
}

std::vector<LedgerRow> RankSetup::ledger() const {
  const ExpectedLedger expected = scenario_->expected();
  std::vector<LedgerRow> rows = ledger_rows(expected, held_, recorder_.totals());
  const ExpectedPeak peak = expected_peak(options_, expected.stage, mesh_, threads_);
  rows.push_back(peak_row(peak.of(peak.largest()).total(), memory_.tracker().total_peak()));
  return rows;
}

}  // namespace shardbench
