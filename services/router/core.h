// What the calls of the router's service share. Internal to services/router.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/clock.h"
#include "engine/tokenizer/tokenizer.h"
#include "ridgefill/v1/decode.grpc.pb.h"
#include "services/router/admission.h"
#include "services/router/metrics.h"
#include "services/router/placement.h"
#include "services/router/request.h"
#include "services/router/split_policy.h"
#include "services/router/work_pool.h"

namespace ridgefill::router {

struct Core {
  Core(const std::string& model, std::vector<std::string> prefill_workers,
       std::vector<std::string> decode_workers, const AdmissionOptions& admission_options,
       const base::Clock& the_clock);

  const base::Clock& clock;
  const tokenizer::Tokenizer* tokenizer = nullptr;
  RequestLimits limits;  // context_tokens: of the model; a worker's own may be smaller
  PolicyOptions policy;
  absl::Duration default_deadline = absl::Minutes(10);
  std::string architecture;
  bool chat = false;  // the model's chat template is supported

  Placement prefill;
  Placement decode;
  std::vector<std::unique_ptr<v1::DecodeService::Stub>> decode_stubs;
  Admission admission;
  RouterMetrics metrics;
  WorkPool pool;  // last: its threads use all of the above
};

}  // namespace ridgefill::router
