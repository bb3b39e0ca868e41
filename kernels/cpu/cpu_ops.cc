// Linear, Gram, pointwise and row ops of the CPU backend.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/api/check_args.h"
#include "kernels/cpu/cpu_backend.h"

namespace ridgefill::kernels::cpu {
namespace {

constexpr int64_t kF32TileRows = 6;  // kTileRows of gemm-inl.h

bool IsBf16(const TensorView& t) { return t.dtype == DType::kBF16; }

char* Row(const TensorView& t, int64_t row) {
  return t.as<char>() + row * t.row_elements() * ByteSize(t.dtype);
}

// Rows of a product that one task takes, whole tiles and about kMost at most. Fewer rows balance the threads
// better, more rows spread the cost of turning a panel into f32 (about kPanelCost rows' worth) further.
int64_t RowsPerTask(int64_t rows, int64_t panels, int threads, int64_t tile) {
  constexpr int64_t kMost = 528, kLeast = 48, kPanelCost = 12;
  const auto rows_for = [&](int64_t pieces) {
    return ((rows + pieces - 1) / pieces + tile - 1) / tile * tile;
  };
  int64_t best_pieces = (rows + kMost - 1) / kMost, best_cost = INT64_MAX;
  for (int64_t pieces = best_pieces; pieces == best_pieces || rows_for(pieces) >= kLeast; ++pieces) {
    const int64_t rounds = (panels * pieces + threads - 1) / threads;
    const int64_t cost = rounds * (rows_for(pieces) + kPanelCost);
    if (cost >= best_cost) continue;
    best_cost = cost;
    best_pieces = pieces;
  }
  return rows_for(best_pieces);
}

}  // namespace

absl::Status CpuBackend::DoEmbedding(Stream&, const EmbeddingArgs& a) {
  const int64_t d = a.out.dim(1);
  ForRows(a.out.dim(0), d, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels_->cast(Row(a.table, a.ids.as<int32_t>()[r]), IsBf16(a.table), Row(a.out, r), false, d);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoRmsNorm(Stream&, const RmsNormArgs& a) {
  const int64_t d = a.x.dim(1);
  ForRows(a.x.dim(0), 2 * d, [&](int64_t begin, int64_t end) {
    RmsNormTask task;
    task.x = a.x.as<float>() + begin * d;
    task.weight = a.weight.as<float>();
    task.eps = a.eps;
    task.rows = end - begin;
    task.d = d;
    task.out = Row(a.out, begin);
    task.out_is_bf16 = IsBf16(a.out);
    kernels_->rms_norm(task);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoSwiGlu(Stream&, const SwiGluArgs& a) {
  RF_RETURN_IF_ERROR(CheckActivation("swiglu", a.out));
  const int64_t ffn = a.out.dim(1), bytes = ByteSize(a.out.dtype);
  ForRows(a.out.dim(0), 6 * ffn, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const char* gate = Row(a.gate_up, r);
      kernels_->swiglu(gate, gate + ffn * bytes, Row(a.out, r), ffn);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoCast(Stream&, const CastArgs& a) {
  const int64_t d = a.x.dim(1);
  ForRows(a.x.dim(0), d, [&](int64_t begin, int64_t end) {
    kernels_->cast(Row(a.x, begin), IsBf16(a.x), Row(a.out, begin), IsBf16(a.out), (end - begin) * d);
  });
  return absl::OkStatus();
}

void CpuBackend::RunGemm(int64_t tasks, int64_t rows, absl::FunctionRef<GemmTask(int64_t)> make_task) {
  pool_.ParallelFor(tasks, [&](int64_t i, int thread) {
    GemmTask task = make_task(i);
    task.scratch = Scratch(thread, GemmScratch(rows));
    kernels_->gemm(task);
  });
}

absl::Status CpuBackend::DoLinear(Stream&, const LinearArgs& a) {
  RF_RETURN_IF_ERROR(CheckActivation("linear", a.x));
  if (a.x.dim(0) == 0) return absl::OkStatus();
  const auto& linear = static_cast<const CpuLinear&>(*a.weight);
  const int64_t rows = a.x.dim(0),
                per_task = RowsPerTask(rows, linear.panels(), capabilities_.threads, kernels_->tile_rows);
  const int64_t pieces = (rows + per_task - 1) / per_task;
  RunGemm(linear.panels() * pieces, per_task, [&](int64_t i) {
    const int64_t panel = i / pieces, row = i % pieces * per_task, column = panel * kPanel;
    GemmTask task;
    task.x = Row(a.x, row);
    task.rows = std::min(per_task, rows - row);
    task.depth = linear.in;
    task.x_row_stride = linear.in;
    task.form = linear.forms[panel];
    task.panel = linear.panel(panel);
    task.columns = std::min<int64_t>(kPanel, linear.out - column);
    task.y = Row(a.y, row) + column * ByteSize(a.y.dtype);
    task.y_stride = linear.out;
    task.y_is_bf16 = IsBf16(a.y);
    task.accumulate = a.accumulate;
    task.bias = linear.bias.empty() ? nullptr : linear.bias.data() + column;
    return task;
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoGram(Stream&, const GramArgs& a) {
  const int64_t depth = a.x.dim(0), m = a.x.dim(1), n = a.y.dim(1), panels = (n + kPanel - 1) / kPanel;
  const int64_t per_task = RowsPerTask(m, panels, capabilities_.threads, kF32TileRows),
                pieces = (m + per_task - 1) / per_task;
  RunGemm(panels * pieces, per_task, [&](int64_t i) {
    const int64_t row = i % pieces * per_task, column = i / pieces * kPanel;
    GemmTask task;
    task.x = a.x.as<float>() + row;
    task.rows = std::min(per_task, m - row);
    task.depth = depth;
    task.x_row_stride = 1;
    task.x_depth_stride = m;
    task.form = PanelForm::kF32Rows;
    task.f32 = a.y.as<float>() + column;
    task.f32_stride = n;
    task.columns = std::min<int64_t>(kPanel, n - column);
    task.y = a.c.as<float>() + row * n + column;
    task.y_stride = n;
    return task;
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoGatherRows(Stream&, const GatherRowsArgs& a) {
  const int64_t bytes = a.x.dim(1) * ByteSize(a.x.dtype);
  ForRows(a.index.dim(0), a.x.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(Row(a.out, r), Row(a.x, a.index.as<int32_t>()[r]), bytes);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoRowNorm(Stream&, const RowNormArgs& a) {
  const int64_t d = a.x.dim(1);
  ForRows(a.x.dim(0), d, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      a.out.as<float>()[r] = kernels_->row_norm(a.x.as<float>() + r * d, d);
  });
  return absl::OkStatus();
}

}  // namespace ridgefill::kernels::cpu
