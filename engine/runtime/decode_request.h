// One request inside the decode engine, from Submit to its FinishedEvent. Touched by the engine's thread
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/block_pool.h"
#include "engine/runtime/bulk_fill.h"
#include "engine/runtime/decision.h"
#include "engine/runtime/decode_engine.h"
#include "engine/runtime/decode_pass.h"
#include "engine/runtime/first_token_times.h"
#include "engine/runtime/transfer_intake.h"
#include "engine/sampling/sampler.h"

namespace ridgefill::runtime {

enum class RequestState : uint8_t {
  kQueued,     // waits for blocks
  kReceiving,  // its transfer runs
  kFilling,    // wire form `hidden`: its late K and V are filled here, piece by piece
  kFinishing,  // its exact rows pass the late layers, piece by piece
  kRunning,    // decodes
};

struct DecodeRequest {
  uint64_t handle = 0;
  DecodeCall call;
  std::unique_ptr<TokenSink> sink;
  RequestState state = RequestState::kQueued;
  WorkSplit work;
  cache::BlockTable blocks;                // for prompt and answer, from admission on
  std::unique_ptr<TransferIntake> intake;  // null when local
  std::unique_ptr<BulkFill> fill;          // from kFilling to the first token
  ridge::FillPlan plan;                    // from kFinishing on
  bool batch_invariant = true;
  std::vector<int32_t> late_rows;  // positions that pass layers [work.late_begin, L) here
  int64_t late_done = 0;           // of late_rows
  std::vector<float> prompt_logprobs;
  std::optional<sampling::Sampler> sampler;  // from kRunning on
  int64_t generated = 0;
  int32_t last_token = 0;
  RequestTimes times;

  int64_t prompt_tokens() const { return static_cast<int64_t>(call.tokens.size()); }
  int64_t late_left() const { return static_cast<int64_t>(late_rows.size()) - late_done; }
  // Positions that will ever hold K and V: the last token that is generated never runs.
  int64_t cache_tokens() const { return prompt_tokens() + call.max_tokens - 1; }
  // The newest token and where it goes.
  DecodeRow NextRow() const;
  // The next `rows` of late_rows.
  PieceRows NextPiece(int64_t rows) const;
  // The transfer is sealed: kFilling, or kFinishing where there is nothing to fill here.
  void Received(int layers);
  // kFinishing: the plan is known, all K and V that are not the late pass's own are in place.
  void BeginLatePass(ridge::FillPlan final_plan, int layers);
  StartedEvent Started() const;
};

struct CallLimits {
  int64_t context_tokens = 0;
  int layers = 0;
  int vocab = 0;
  ridge::MapSets maps;       // the engine's own
  bool has_sources = false;  // prefill workers can be reached
};
// What DecodeEngine::Submit refuses about a call by itself.
absl::Status CheckCall(const DecodeCall& call, const CallLimits& limits);

}  // namespace ridgefill::runtime
