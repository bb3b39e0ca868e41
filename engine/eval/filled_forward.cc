#include "engine/eval/filled_forward.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/status.h"

namespace ridgefill::eval {
namespace {

using kernels::DType;
using kernels::TensorView;

}  // namespace

absl::StatusOr<std::unique_ptr<FilledForward>> FilledForward::Create(const model::Model& model,
                                                                     absl::Span<const int> splits,
                                                                     int64_t max_tokens, int64_t chunk_rows) {
  RF_CHECK(!splits.empty());
  const model::ModelConfig& config = model.config();
  kernels::Backend& backend = model.backend();
  std::unique_ptr<FilledForward> out(new FilledForward(model, chunk_rows));
  RF_ASSIGN_OR_RETURN(out->pass_, runtime::SequencePass::Create(model, max_tokens, chunk_rows));
  for (const int split : splits) {
    RF_CHECK(out->levels_.empty() || out->levels_.back().split < split);
    Level& level = out->levels_.emplace_back();
    level.split = split;
    RF_ASSIGN_OR_RETURN(level.hidden, backend.Allocate(DType::kF32, {max_tokens, config.hidden}));
  }
  RF_ASSIGN_OR_RETURN(out->chunk_, backend.Allocate(DType::kF32, {chunk_rows, config.hidden}));
  RF_ASSIGN_OR_RETURN(out->previous_, backend.Allocate(DType::kF32, {chunk_rows, config.hidden}));
  RF_ASSIGN_OR_RETURN(out->late_, backend.Allocate(DType::kF32, {max_tokens, config.hidden}));
  RF_ASSIGN_OR_RETURN(out->scorer_, Scorer::Create(*out->pass_));
  return out;
}

const FilledForward::Level& FilledForward::At(int split) const {
  if (split == 0) return levels_.back();
  const auto found =
      std::find_if(levels_.begin(), levels_.end(), [&](const Level& level) { return level.split == split; });
  RF_CHECK(found != levels_.end());
  return *found;
}

absl::Status FilledForward::Lower(absl::Span<const int32_t> ids, int64_t prompt_tokens) {
  ids_.assign(ids.begin(), ids.end());
  const int64_t tokens = static_cast<int64_t>(ids.size());
  RF_CHECK(tokens <= pass_->max_tokens() && prompt_tokens <= tokens);
  std::vector<std::unique_ptr<runtime::SelectionScores>> scores;
  for (Level& level : levels_) {
    level.norms.clear();
    level.scores.clear();
    if (prompt_tokens == 0) continue;
    RF_ASSIGN_OR_RETURN(
        auto some, runtime::SelectionScores::Create(model_, level.split, prompt_tokens, pass_->stream()));
    scores.push_back(std::move(some));
  }
  for (int64_t begin = 0; begin < tokens; begin += chunk_rows_) {
    RF_RETURN_IF_ERROR(LowerChunk(ids.subspan(begin, std::min(chunk_rows_, tokens - begin)), begin, scores));
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    RF_ASSIGN_OR_RETURN(levels_[i].scores, scores[i]->Read(pass_->stream()));
  }
  exact_layers_ = levels_.back().split;
  return absl::OkStatus();
}

// The layers up to each split take what those up to the split before gave.
absl::Status FilledForward::LowerChunk(absl::Span<const int32_t> ids, int64_t begin,
                                       absl::Span<const std::unique_ptr<runtime::SelectionScores>> scores) {
  const int64_t count = static_cast<int64_t>(ids.size());
  const std::vector<int32_t> positions = runtime::Positions(begin, begin + count);
  for (size_t i = 0; i < levels_.size(); ++i) {
    const TensorView hidden = levels_[i].hidden.view().Rows(begin, count);
    if (i == 0) {
      RF_RETURN_IF_ERROR(pass_->Embed(ids, hidden));
    } else {
      RF_RETURN_IF_ERROR(pass_->Gather(levels_[i - 1].hidden.view(), positions, hidden));
    }
    runtime::SequencePass::Layers layers{
        positions, hidden, i == 0 ? 0 : levels_[i - 1].split, levels_[i].split, {}};
    layers.on_query = [&](int layer, const TensorView& q) -> absl::Status {
      for (const auto& some : scores) {  // each takes the layers below its own split
        RF_RETURN_IF_ERROR(
            some->Add(pass_->stream(), layer, q, {&pass_->cache(), pass_->block_table(), begin}));
      }
      return absl::OkStatus();
    };
    if (scores.empty()) layers.on_query = nullptr;
    RF_RETURN_IF_ERROR(pass_->Forward(layers));
    RF_ASSIGN_OR_RETURN(const std::vector<float> norms, pass_->RowNorms(hidden));
    levels_[i].norms.insert(levels_[i].norms.end(), norms.begin(), norms.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> FilledForward::Probe(const ridge::FillPlan& plan, runtime::FillPass& fill,
                                                        int split) {
  const Level& level = At(split);
  RF_CHECK(plan.tokens <= static_cast<int64_t>(ids_.size()) && plan.selected.empty());
  RF_CHECK(level.split <= exact_layers_);
  RF_ASSIGN_OR_RETURN(const auto scores,
                      runtime::SelectionScores::CreateProbe(model_, level.split, plan.tail_begin, plan.tokens,
                                                            pass_->stream()));
  RF_RETURN_IF_ERROR(FillBulk(level, plan, &fill));
  RF_RETURN_IF_ERROR(RunExactRows(level, scores.get()));
  return scores->Read(pass_->stream());
}

absl::Status FilledForward::Late(const ridge::FillPlan& plan, runtime::FillPass* fill, int split) {
  const Level& level = At(split);
  RF_CHECK(plan.tokens == static_cast<int64_t>(ids_.size()));
  RF_CHECK(level.split <= exact_layers_);
  RF_RETURN_IF_ERROR(FillBulk(level, plan, fill));
  return RunExactRows(level);
}

absl::Status FilledForward::FillBulk(const Level& level, const ridge::FillPlan& plan,
                                     runtime::FillPass* fill) {
  exact_rows_ = plan.ExactRows();
  outliers_ = plan.outliers;
  const std::vector<int32_t> all = runtime::Positions(0, plan.tokens);
  std::vector<int32_t> bulk;
  std::set_difference(all.begin(), all.end(), exact_rows_.begin(), exact_rows_.end(),
                      std::back_inserter(bulk));
  RF_CHECK(bulk.empty() || fill != nullptr);
  exact_layers_ = bulk.empty() ? model_.config().layers : level.split;
  const int64_t rows = static_cast<int64_t>(bulk.size());
  for (int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, rows - begin);
    RF_RETURN_IF_ERROR(FillRows(level, absl::MakeConstSpan(bulk).subspan(begin, count), *fill));
  }
  return absl::OkStatus();
}

absl::Status FilledForward::LateOverCache(const ridge::FillPlan& plan) {
  RF_CHECK(plan.tokens == static_cast<int64_t>(ids_.size()));
  exact_rows_ = plan.ExactRows();
  exact_layers_ = levels_.back().split;
  return RunExactRows(levels_.back());
}

kernels::KvSpan FilledForward::Span(int layer) const {
  return {layer, pass_->block_table(), 0, static_cast<int64_t>(ids_.size())};
}

absl::StatusOr<std::vector<char>> FilledForward::ReadKv(int layer) {
  std::vector<char> bytes(Span(layer).bytes(pass_->cache().spec()));
  RF_RETURN_IF_ERROR(
      pass_->backend().ReadKv(pass_->stream(), pass_->cache(), Span(layer), absl::MakeSpan(bytes)));
  RF_RETURN_IF_ERROR(pass_->backend().Synchronize(pass_->stream()));
  return bytes;
}

absl::Status FilledForward::WriteKv(int layer, absl::Span<const char> bytes) {
  RF_RETURN_IF_ERROR(pass_->backend().WriteKv(pass_->stream(), pass_->cache(), Span(layer), bytes));
  return pass_->backend().Synchronize(pass_->stream());
}

absl::Status FilledForward::FillRows(const Level& level, absl::Span<const int32_t> rows,
                                     runtime::FillPass& fill) {
  runtime::FillPass::Args args;
  args.rows.hidden = Chunk(static_cast<int64_t>(rows.size()));
  RF_RETURN_IF_ERROR(pass_->Gather(level.hidden.view(), rows, args.rows.hidden));
  if (fill.needs_previous()) {
    std::vector<int32_t> previous;
    previous.reserve(rows.size());
    for (int32_t row : rows) {
      const bool outlier = std::binary_search(outliers_.begin(), outliers_.end(), row - 1);
      previous.push_back(static_cast<int32_t>(ridge::PreviousRow(row, outlier)));
    }
    args.rows.previous = previous_.view().Rows(0, static_cast<int64_t>(rows.size()));
    RF_RETURN_IF_ERROR(pass_->Gather(level.hidden.view(), previous, args.rows.previous));
  }
  args.positions = rows;
  args.block_table = pass_->block_table();
  args.cache = &pass_->cache();
  args.workspace = &pass_->workspace();
  RF_RETURN_IF_ERROR(fill.Run(pass_->stream(), args));
  return pass_->backend().Synchronize(pass_->stream());
}

// The rows of a probe go apart from the outliers before them: what is scored lies side by side.
absl::Status FilledForward::RunExactRows(const Level& level, runtime::SelectionScores* probe) {
  const int64_t rows = static_cast<int64_t>(exact_rows_.size());
  const int64_t outliers = probe == nullptr ? 0 : static_cast<int64_t>(outliers_.size());
  for (int64_t begin = 0, count = 0; begin < rows; begin += count) {
    count = std::min(chunk_rows_, (begin < outliers ? outliers : rows) - begin);
    const auto positions = absl::MakeConstSpan(exact_rows_).subspan(begin, count);
    const TensorView hidden = late_.view().Rows(begin, count);
    RF_RETURN_IF_ERROR(pass_->Gather(level.hidden.view(), positions, hidden));
    runtime::SequencePass::Layers layers{positions, hidden, level.split, model_.config().layers, {}};
    if (probe != nullptr && begin >= outliers) {
      layers.on_query = [&](int layer, const TensorView& q) {
        return probe->Add(pass_->stream(), layer, q,
                          {&pass_->cache(), pass_->block_table(), positions.front()});
      };
    }
    RF_RETURN_IF_ERROR(pass_->Forward(layers));
  }
  return absl::OkStatus();
}

TensorView FilledForward::Rows(int64_t begin, int64_t end) const {
  const int64_t first = std::lower_bound(exact_rows_.begin(), exact_rows_.end(), begin) - exact_rows_.begin();
  const int64_t last = first + end - begin - 1;
  RF_CHECK(begin < end && last < static_cast<int64_t>(exact_rows_.size()) && exact_rows_[first] == begin &&
           exact_rows_[last] == end - 1);
  return late_.view().Rows(first, end - begin);
}

absl::Span<const int32_t> FilledForward::TokensAfter(int64_t begin, int64_t end) const {
  RF_CHECK(begin < end && end < static_cast<int64_t>(ids_.size()));
  return absl::MakeConstSpan(ids_).subspan(begin + 1, end - begin);
}

absl::StatusOr<std::vector<float>> FilledForward::Logits(int64_t position) {
  return scorer_->Logits(Rows(position, position + 1));
}

absl::StatusOr<std::vector<double>> FilledForward::NextTokenNll(int64_t begin, int64_t end) {
  RF_ASSIGN_OR_RETURN(const std::vector<TokenScore> scores,
                      scorer_->Score(Rows(begin, end), TokensAfter(begin, end)));
  std::vector<double> out;
  out.reserve(scores.size());
  for (const TokenScore& score : scores) out.push_back(score.nll);
  return out;
}

}  // namespace ridgefill::eval
