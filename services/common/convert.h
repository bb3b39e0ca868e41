// Wire messages to and from engine types, for what several services exchange. Messages come from peers: an
// enum value or number that the engine's type cannot hold is refused by field name. Pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/ridge/fill_plan.h"
#include "engine/ridge/map_set.h"
#include "engine/runtime/decode_engine.h"
#include "engine/runtime/kv_frame.h"
#include "ridgefill/v1/decode.pb.h"
#include "ridgefill/v1/generation.pb.h"
#include "ridgefill/v1/prefill.pb.h"

namespace ridgefill::common {

v1::FillMode ToProto(ridge::Mode mode);
// UNSPECIFIED is AUTO.
absl::StatusOr<ridge::Mode> FromProto(v1::FillMode mode);
v1::Selector ToProto(ridge::Selector selector);
absl::StatusOr<ridge::Selector> FromProto(v1::Selector selector);

v1::WireForm ToProto(ridge::WireForm form);
std::string WireFormName(v1::WireForm form);  // as ridge::Name: "kv", "hidden"

v1::Hello ToProto(const runtime::Hello& hello);
runtime::Hello FromProto(const v1::Hello& hello);

v1::MapSetInfo ToProto(const ridge::MapSetManifest& manifest);

v1::FillDecision ToProto(const ridge::FillDecision& decision);
absl::StatusOr<ridge::FillDecision> FromProto(const v1::FillDecision& decision);

v1::FillReport ToProto(const runtime::FillReport& report);

// Fields of `options` that are unset keep the defaults of SamplingParams; ranges are the engine's business.
sampling::SamplingParams FromProto(const v1::SamplingOptions& options);

v1::DecodeRequest ToProto(const runtime::DecodeCall& call);
absl::StatusOr<runtime::DecodeCall> FromProto(const v1::DecodeRequest& request);

v1::GeneratedToken ToProto(const sampling::SampleResult& sample, bool with_logprobs);
v1::DecodeStarted ToProto(const runtime::StartedEvent& event);
v1::FinishReason ToProto(runtime::FinishReason reason);

}  // namespace ridgefill::common
