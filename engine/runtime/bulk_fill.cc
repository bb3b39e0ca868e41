#include "engine/runtime/bulk_fill.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/ridge/selection.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::runtime {
namespace {

int64_t FillEnd(const BulkFill::Prompt& prompt) {
  const int64_t tokens = static_cast<int64_t>(prompt.tokens.size());
  return ridge::NeedsProbe(*prompt.decision) ? ridge::ProbeBegin(*prompt.decision, tokens)
                                             : ridge::TailBegin(*prompt.decision, tokens);
}

}  // namespace

BulkFill::BulkFill(const Prompt& prompt)
    : prompt_(prompt), probes_(ridge::NeedsProbe(*prompt.decision)), fill_end_(FillEnd(prompt)) {
  RF_CHECK(fill_end_ > 0 && prompt.hidden->size() == tokens());
}

int64_t BulkFill::left() const {
  if (planned_) return 0;
  const int64_t to_fill = (fill_end_ - filled_ + kFilledRowsPerRow - 1) / kFilledRowsPerRow;
  const int64_t to_probe =
      probes_ ? static_cast<int64_t>(outliers_.size()) + tokens() - fill_end_ - probed_ : 0;
  return to_fill + to_probe;
}

absl::Status BulkFill::Step(DecodePass& pass, int64_t rows) {
  RF_CHECK(rows > 0 && !planned_);
  if (filled_ == fill_end_) {
    RF_RETURN_IF_ERROR(ProbeRows(pass, rows));
  } else {
    RF_RETURN_IF_ERROR(FillRows(pass, std::min(rows * kFilledRowsPerRow, fill_end_ - filled_)));
  }
  return left() == 0 ? MakePlan(pass) : absl::OkStatus();
}

absl::Status BulkFill::FillRows(DecodePass& pass, int64_t count) {
  for (const int64_t end = filled_ + count; filled_ < end;) {
    const int64_t part = std::min(end - filled_, pass.max_piece_rows());
    RF_RETURN_IF_ERROR(
        pass.Fill({prompt_.decision->split, prompt_.hidden, filled_, part, prompt_.blocks}, outliers_));
    filled_ += part;
  }
  return absl::OkStatus();
}

// The outliers first: a piece with the probe's own rows holds nothing else, so that its rows are consecutive.
absl::Status BulkFill::ProbeRows(DecodePass& pass, int64_t rows) {
  if (probe_ == nullptr) {
    RF_ASSIGN_OR_RETURN(probe_, pass.NewProbe(prompt_.decision->split, fill_end_, tokens()));
  }
  const int64_t outliers = static_cast<int64_t>(outliers_.size());
  PieceRows piece;
  piece.blocks = prompt_.blocks;
  piece.layer_begin = prompt_.decision->split;
  piece.hidden = prompt_.hidden;
  std::vector<int32_t> own;
  if (probed_ < outliers) {
    rows = std::min(rows, outliers - probed_);
    piece.positions = absl::MakeConstSpan(outliers_).subspan(probed_, rows);
  } else {
    const int64_t begin = fill_end_ + probed_ - outliers;
    rows = std::min(rows, tokens() - begin);
    own = Positions(begin, begin + rows);
    piece.positions = own;
    piece.scores = probe_.get();
  }
  RF_RETURN_IF_ERROR(pass.RunPiece(piece));
  probed_ += rows;
  return absl::OkStatus();
}

absl::Status BulkFill::MakePlan(DecodePass& pass) {
  std::vector<float> probed;
  if (probe_ != nullptr) {
    RF_ASSIGN_OR_RETURN(probed, pass.ReadScores(*probe_));
    probe_ = nullptr;
  }
  const absl::Span<const float> scores = probes_ ? absl::MakeConstSpan(probed) : prompt_.scores;
  plan_ = ridge::MakeFillPlan(*prompt_.decision, tokens(), outliers_,
                              ridge::SelectRows(*prompt_.decision, prompt_.tokens, scores, outliers_));
  planned_ = true;
  return absl::OkStatus();
}

}  // namespace ridgefill::runtime
