// Calls and frames between workers as protobuf messages. What comes in is untrusted; here it is only checked
// to be a frame of this transfer. Whether it is the right one (order, ranges, sizes, checksums) is for the
// engine's TransferChecker, the same for every transport. Payloads are moved, never copied.
#pragma once

#include "absl/status/statusor.h"
#include "engine/runtime/kv_frame.h"
#include "ridgefill/v1/prefill.pb.h"

namespace ridgefill::transport {

v1::PrefillRequest ToProto(const runtime::PrefillCall& call);
// Deadline and trace come from the call's context, not from the message.
absl::StatusOr<runtime::PrefillCall> FromProto(const v1::PrefillRequest& request);

void ToProto(const runtime::TransferId& id, runtime::KvFrame frame, v1::PrefillResponse& response);
// Takes the payload out of `response`. DATA_LOSS (FRAME_TRANSFER_ID, FRAME_BODY).
absl::StatusOr<runtime::KvFrame> FromProto(const runtime::TransferId& id, v1::PrefillResponse& response);

}  // namespace ridgefill::transport
