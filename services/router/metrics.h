// The router's own metrics (docs/architecture.md, "Metrics"): client TTFT and the parts that it adds up from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "prometheus/collectable.h"
#include "ridgefill/v1/generation.pb.h"

namespace ridgefill::router {

// One finished request, as logs and metrics see it. Nothing of its text.
struct RequestRecord {
  std::string id;
  std::string trace;
  v1::FillMode asked = v1::FILL_MODE_UNSPECIFIED;
  v1::FillReport fill;  // empty when it failed before
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  v1::Timing timing;  // ttft 0: no token was written
  int retries = 0;
  std::string prefill_worker, decode_worker;
  absl::Status status;
};

// Thread-safe.
class RouterMetrics {
 public:
  explicit RouterMetrics(const std::string& model);
  ~RouterMetrics();
  void Observe(const RequestRecord& record);
  const prometheus::Collectable& collectable() const;

 private:
  struct Families;
  const std::string model_;
  std::unique_ptr<Families> families_;
};

// One JSON line.
void LogRequest(const RequestRecord& record);

// Label value for a prompt length: "le_512", "le_2048", "le_8192", "le_32768", "gt_32768".
std::string LengthBucket(int64_t tokens);

}  // namespace ridgefill::router
