#include "services/router/metrics.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/log.h"
#include "engine/base/status.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "services/common/convert.h"
#include "services/common/status.h"

namespace ridgefill::router {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;

const Histogram::BucketBoundaries& TtftBuckets() {
  static const Histogram::BucketBoundaries buckets = {.005, .01, .025, .05, .075, .1,  .15, .2, .3,
                                                      .4,   .5,  .75,  1,   1.5,  2,   3,   5,  7.5,
                                                      10,   15,  20,   30,  60,   120, 300};
  return buckets;
}

const Histogram::BucketBoundaries& TokenTimeBuckets() {
  static const Histogram::BucketBoundaries buckets = {.001, .0025, .005, .0075, .01, .015, .02, .03, .04,
                                                      .05,  .075,  .1,   .15,   .2,  .3,   .5,  1,   2.5};
  return buckets;
}

std::string ModeName(v1::FillMode mode) {
  return std::string(absl::StripPrefix(v1::FillMode_Name(mode), "FILL_MODE_"));
}

std::array<std::pair<const char*, double>, 8> Parts(const v1::Timing& timing) {
  return {{{"admission_wait", timing.admission_wait()},
           {"route", timing.route()},
           {"decode_queue", timing.decode_queue()},
           {"prefill_queue", timing.prefill_queue()},
           {"prefill_compute", timing.prefill_compute()},
           {"transfer_exposed", timing.transfer_exposed()},
           {"late_pass", timing.late_pass()},
           {"first_step", timing.first_step()}}};
}

}  // namespace

struct RouterMetrics::Families {
  prometheus::Registry registry;
  Family<Histogram>& ttft = prometheus::BuildHistogram()
                                .Name("ridgefill_ttft_seconds")
                                .Help("Request accepted to first token written, as the client sees it")
                                .Register(registry);
  Family<Histogram>& ttft_part =
      prometheus::BuildHistogram()
          .Name("ridgefill_ttft_part_seconds")
          .Help("Parts of ridgefill_ttft_seconds; for each request they add up to it")
          .Register(registry);
  Family<Histogram>& token_time = prometheus::BuildHistogram()
                                      .Name("ridgefill_time_per_output_token_seconds")
                                      .Help("Mean time between a request's tokens after the first")
                                      .Register(registry);
  Family<Histogram>& duration = prometheus::BuildHistogram()
                                    .Name("ridgefill_request_seconds")
                                    .Help("Request accepted to last message")
                                    .Register(registry);
  Family<Counter>& requests = prometheus::BuildCounter()
                                  .Name("ridgefill_requests_total")
                                  .Help("Requests by gRPC code and by the mode that ran")
                                  .Register(registry);
  Family<Counter>& decisions = prometheus::BuildCounter()
                                   .Name("ridgefill_router_decisions_total")
                                   .Help("Fill decisions by reason")
                                   .Register(registry);
  Family<Counter>& retries = prometheus::BuildCounter()
                                 .Name("ridgefill_router_retries_total")
                                 .Help("Attempts after a first one that met an unavailable worker")
                                 .Register(registry);
  Family<Counter>& prompt_tokens = prometheus::BuildCounter()
                                       .Name("ridgefill_prompt_tokens_total")
                                       .Help("Prompt tokens of answered requests, filled or exact")
                                       .Register(registry);
  Family<Counter>& generated_tokens = prometheus::BuildCounter()
                                          .Name("ridgefill_generated_tokens_total")
                                          .Help("Tokens generated for clients")
                                          .Register(registry);
};

RouterMetrics::RouterMetrics(const std::string& model) : model_(model), families_(new Families) {}
RouterMetrics::~RouterMetrics() = default;

const prometheus::Collectable& RouterMetrics::collectable() const { return families_->registry; }

void RouterMetrics::Observe(const RequestRecord& record) {
  Families& to = *families_;
  const std::string mode =
      record.fill.exact() + record.fill.filled() > 0 ? ModeName(record.fill.mode()) : "none";
  const std::string code(common::CodeName(record.status.code()));
  to.requests.Add({{"model", model_}, {"mode", mode}, {"code", code}}).Increment();
  if (record.retries > 0) to.retries.Add({{"model", model_}}).Increment(record.retries);
  if (mode == "none") return;
  to.decisions.Add({{"model", model_}, {"mode", mode}, {"reason", record.fill.reason()}}).Increment();
  to.prompt_tokens.Add({{"model", model_}, {"kind", "filled"}}).Increment(record.fill.filled());
  to.prompt_tokens.Add({{"model", model_}, {"kind", "exact"}}).Increment(record.fill.exact());
  to.generated_tokens.Add({{"model", model_}}).Increment(record.generated_tokens);
  // A failed or cancelled request is in no latency histogram: it would make a dying service look fast.
  if (!record.status.ok() || record.timing.ttft() <= 0) return;
  const std::map<std::string, std::string> labels = {{"model", model_},
                                                     {"mode", mode},
                                                     {"split", absl::StrCat(record.fill.split())},
                                                     {"prompt_length", LengthBucket(record.prompt_tokens)}};
  to.ttft.Add(labels, TtftBuckets()).Observe(record.timing.ttft());
  for (const auto& [part, seconds] : Parts(record.timing)) {
    auto with_part = labels;
    with_part["part"] = part;
    to.ttft_part.Add(with_part, TtftBuckets()).Observe(seconds);
  }
  to.duration.Add(labels, TtftBuckets()).Observe(record.timing.total());
  if (record.generated_tokens > 1) {
    const double rest = record.timing.total() - record.timing.ttft();
    to.token_time.Add(labels, TokenTimeBuckets()).Observe(rest / (record.generated_tokens - 1));
  }
}

void LogRequest(const RequestRecord& record) {
  const auto& timing = record.timing;
  const auto detail = base::GetErrorDetail(record.status);
  base::Log(record.status.ok() ? base::Severity::kInfo : base::Severity::kWarning, "request",
            {{"request", record.id},
             {"trace", record.trace},
             {"asked", ModeName(record.asked)},
             {"mode", ModeName(record.fill.mode())},
             {"reason", record.fill.reason()},
             {"split", int64_t{record.fill.split()}},
             {"wire_form", common::WireFormName(record.fill.wire_form())},
             {"prompt_tokens", record.prompt_tokens},
             {"filled_tokens", record.fill.filled()},
             {"exact_tokens", record.fill.exact()},
             {"generated_tokens", record.generated_tokens},
             {"ttft", timing.ttft()},
             {"admission_wait", timing.admission_wait()},
             {"route", timing.route()},
             {"decode_queue", timing.decode_queue()},
             {"prefill_queue", timing.prefill_queue()},
             {"prefill_compute", timing.prefill_compute()},
             {"transfer_exposed", timing.transfer_exposed()},
             {"late_pass", timing.late_pass()},
             {"first_step", timing.first_step()},
             {"total", timing.total()},
             {"retries", int64_t{record.retries}},
             {"prefill_worker", record.prefill_worker},
             {"decode_worker", record.decode_worker},
             {"status", std::string(common::CodeName(record.status.code()))},
             {"error", detail.has_value() ? detail->reason : std::string()}});
}

std::string LengthBucket(int64_t tokens) {
  for (const int64_t bound : {512, 2048, 8192, 32768}) {
    if (tokens <= bound) return absl::StrCat("le_", bound);
  }
  return "gt_32768";
}

}  // namespace ridgefill::router
