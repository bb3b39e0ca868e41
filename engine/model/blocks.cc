#include "engine/model/blocks.h"

#include <cmath>

#include "engine/base/status.h"

namespace ridgefill::model {

using kernels::TensorView;

absl::StatusOr<std::unique_ptr<Scratch>> Scratch::New(kernels::Backend& backend, const ModelConfig& config,
                                                      int64_t max_rows) {
  auto scratch = std::make_unique<Scratch>();
  scratch->rows = max_rows;
  const kernels::DType dtype = backend.capabilities().activation_dtype;
  const int64_t q = static_cast<int64_t>(config.heads_q) * config.head_dim;
  const auto allocate = [&](int64_t columns) { return backend.Allocate(dtype, {max_rows, columns}); };
  RF_ASSIGN_OR_RETURN(scratch->normed, allocate(config.hidden));
  RF_ASSIGN_OR_RETURN(scratch->q, allocate(q));
  RF_ASSIGN_OR_RETURN(scratch->kv, allocate(2LL * config.kv_width()));
  RF_ASSIGN_OR_RETURN(scratch->attended, allocate(q));
  RF_ASSIGN_OR_RETURN(scratch->gate_up, allocate(2LL * config.ffn));
  RF_ASSIGN_OR_RETURN(scratch->ffn, allocate(config.ffn));
  return scratch;
}

absl::Status InputNorm(const KvStep& step, const TensorView& hidden, const TensorView& normed) {
  return step.backend.RmsNorm(step.stream,
                              {hidden, step.weights.input_norm.view(), step.config.rms_eps, normed});
}

absl::Status ProjectKv(const KvStep& step, kernels::Phase phase, const TensorView& normed,
                       const TensorView& kv) {
  return step.backend.Linear(step.stream,
                             {.x = normed, .weight = step.weights.kv.get(), .y = kv, .phase = phase});
}

absl::Status AttentionBlock(LayerRun& run) {
  const ForwardArgs& args = run.args;
  const int64_t rows = args.batch->rows();
  const KvStep step{run.backend, run.stream, run.config, run.weights};
  const TensorView normed = run.scratch.normed.view().Rows(0, rows), q = run.scratch.q.view().Rows(0, rows);
  const TensorView kv = run.scratch.kv.view().Rows(0, rows),
                   attended = run.scratch.attended.view().Rows(0, rows);
  RF_RETURN_IF_ERROR(InputNorm(step, args.hidden, normed));
  RF_RETURN_IF_ERROR(run.backend.Linear(
      run.stream, {.x = normed, .weight = run.weights.q.get(), .y = q, .phase = args.phase}));
  RF_RETURN_IF_ERROR(ProjectKv(step, args.phase, normed, kv));
  if (args.on_kv) RF_RETURN_IF_ERROR(args.on_kv(run.layer, kv));
  RF_RETURN_IF_ERROR(run.backend.RopeWrite(
      run.stream,
      {.batch = args.batch, .rope = &run.rope, .q = q, .kv = kv, .cache = args.cache, .layer = run.layer}));
  if (args.on_query) RF_RETURN_IF_ERROR(args.on_query(run.layer, q));
  RF_RETURN_IF_ERROR(
      run.backend.Attention(run.stream, {.batch = args.batch,
                                         .q = q,
                                         .cache = args.cache,
                                         .layer = run.layer,
                                         .scale = 1.0f / std::sqrt(static_cast<float>(run.config.head_dim)),
                                         .out = attended}));
  return run.backend.Linear(run.stream, {.x = attended,
                                         .weight = run.weights.attn_out.get(),
                                         .y = args.hidden,
                                         .accumulate = true,
                                         .phase = args.phase});
}

absl::Status SwiGluBlock(LayerRun& run) {
  const ForwardArgs& args = run.args;
  const int64_t rows = args.batch->rows();
  const TensorView normed = run.scratch.normed.view().Rows(0, rows),
                   ffn = run.scratch.ffn.view().Rows(0, rows);
  const TensorView gate_up = run.scratch.gate_up.view().Rows(0, rows);
  RF_RETURN_IF_ERROR(run.backend.RmsNorm(
      run.stream, {args.hidden, run.weights.ffn_norm.view(), run.config.rms_eps, normed}));
  RF_RETURN_IF_ERROR(run.backend.Linear(
      run.stream, {.x = normed, .weight = run.weights.gate_up.get(), .y = gate_up, .phase = args.phase}));
  RF_RETURN_IF_ERROR(run.backend.SwiGlu(run.stream, {gate_up, ffn}));
  return run.backend.Linear(run.stream, {.x = ffn,
                                         .weight = run.weights.ffn_out.get(),
                                         .y = args.hidden,
                                         .accumulate = true,
                                         .phase = args.phase});
}

}  // namespace ridgefill::model
