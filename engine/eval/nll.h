// Paired dNLL (docs/method.md, "Measuring it"): what a fill costs in nats per token, against the exact run of
// the same engine on the same tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/model_identity.h"
#include "engine/eval/bootstrap.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"

namespace ridgefill::eval {

enum class Fill : uint8_t { kRidge, kIdentity };
absl::string_view Name(Fill fill);  // "ridge", "identity"

struct NllOptions {
  int64_t tail = 512;
  int64_t continuation = 256;  // tokens of a document that are forced after its prompt
  std::vector<Fill> fills = {Fill::kRidge, Fill::kIdentity};
  int64_t chunk_rows = 1024;
  // After each document; an error ends the run.
  std::function<absl::Status(int64_t documents_done)> progress;
};

// Tokens scored together: of the prompt's tail, of its last 512 rows (when the tail is longer), or forced
// after the prompt.
struct NllWindow {
  std::string name;            // "tail", "last_512", "continuation"
  int64_t tokens = 0;          // scored per document
  double exact = 0;            // mean NLL of the exact run
  Interval delta;              // filled less exact, over documents
  std::vector<double> deltas;  // by document
};

struct NllRun {
  Fill fill = Fill::kRidge;
  std::vector<NllWindow> windows;
};

struct NllReport {
  std::string model, isa;
  int split = 0;
  int64_t tail = 0, prompt_tokens = 0, continuation = 0;
  int64_t documents = 0;
  double filled_share = 0;  // of the prompt rows, mean over documents
  std::vector<NllRun> runs;
};

// Documents of one length: prompt and continuation together. INVALID_ARGUMENT (EVAL_...) when there are none,
// or they are unequal or too short for tail and continuation.
absl::StatusOr<NllReport> EvalNll(const model::Model& model, const base::ModelIdentity& identity,
                                  const ridge::DeviceMaps& maps,
                                  absl::Span<const std::vector<int32_t>> documents,
                                  const NllOptions& options);

// One JSON object a line for each fill and window.
std::string ToJsonLines(const NllReport& report);

}  // namespace ridgefill::eval
