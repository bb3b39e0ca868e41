#include "services/common/monitoring.h"

#include <CivetServer.h>

#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"

namespace ridgefill::common {
namespace {

void Answer(mg_connection* connection, int code, const char* type, const std::string& body) {
  const std::string head = absl::StrCat("HTTP/1.1 ", code, code == 200 ? " OK" : " Service Unavailable",
                                        "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
                                        "\r\nConnection: close\r\n\r\n");
  mg_write(connection, head.data(), head.size());
  mg_write(connection, body.data(), body.size());
}

class MetricsHandler : public CivetHandler {
 public:
  explicit MetricsHandler(std::vector<const prometheus::Collectable*> metrics)
      : metrics_(std::move(metrics)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    std::vector<prometheus::MetricFamily> families;
    for (const auto* source : metrics_) {
      auto more = source->Collect();
      families.insert(families.end(), std::make_move_iterator(more.begin()),
                      std::make_move_iterator(more.end()));
    }
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, families);
    Answer(connection, 200, "text/plain; version=0.0.4; charset=utf-8", text.str());
    return true;
  }

 private:
  std::vector<const prometheus::Collectable*> metrics_;
};

class ProbeHandler : public CivetHandler {
 public:
  explicit ProbeHandler(std::function<bool()> probe) : probe_(std::move(probe)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    const bool ok = probe_();
    Answer(connection, ok ? 200 : 503, "text/plain", ok ? "ok\n" : "no\n");
    return true;
  }

 private:
  std::function<bool()> probe_;
};

class CivetMonitoring : public Monitoring {
 public:
  explicit CivetMonitoring(MonitoringOptions options)
      : metrics_(std::move(options.metrics)),
        live_(std::move(options.live)),
        ready_(std::move(options.ready)),
        server_(std::vector<std::string>{"listening_ports", options.address, "num_threads", "2"}) {
    server_.addHandler("/metrics", metrics_);
    server_.addHandler("/healthz", live_);
    server_.addHandler("/readyz", ready_);
  }

 private:
  MetricsHandler metrics_;
  ProbeHandler live_, ready_;
  CivetServer server_;  // last: it stops before its handlers go
};

}  // namespace

prometheus::MetricFamily& MetricPage::Family(const std::string& name, const std::string& help, bool counter) {
  for (auto& family : families) {
    if (family.name == name) return family;
  }
  families.push_back(
      {name, help, counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge, {}});
  return families.back();
}

void MetricPage::Gauge(const std::string& name, const std::string& help, double value, const Labels& labels) {
  prometheus::ClientMetric metric;
  for (const auto& [key, label] : labels) metric.label.push_back({key, label});
  metric.gauge.value = value;
  Family(name, help, /*counter=*/false).metric.push_back(std::move(metric));
}

void MetricPage::Counter(const std::string& name, const std::string& help, double value,
                         const Labels& labels) {
  prometheus::ClientMetric metric;
  for (const auto& [key, label] : labels) metric.label.push_back({key, label});
  metric.counter.value = value;
  Family(name, help, /*counter=*/true).metric.push_back(std::move(metric));
}

std::vector<prometheus::MetricFamily> PageCollectable::Collect() const {
  MetricPage page;
  fill_(page);
  return std::move(page.families);
}

absl::StatusOr<std::unique_ptr<Monitoring>> Monitoring::Start(MonitoringOptions options) {
  if (options.address.empty()) return nullptr;
  const std::string address = options.address;
  try {
    return std::make_unique<CivetMonitoring>(std::move(options));
  } catch (const CivetException&) {
    return base::Error(
        absl::StatusCode::kUnavailable, "ADDRESS_IN_USE",
        absl::StrCat("cannot listen on ", address, " for metrics: is another program using it?"));
  }
}

}  // namespace ridgefill::common
