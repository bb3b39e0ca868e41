// The HTTP side door of a program: /metrics for Prometheus, /healthz (liveness), /readyz (readiness).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

namespace ridgefill::common {

// Numbers that exist elsewhere (an engine's Stats()) as metric families, made anew at each scrape.
class MetricPage {
 public:
  using Labels = std::map<std::string, std::string>;
  // Calls with one name add samples to one family; `help` is taken from the first.
  void Gauge(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  // Names end in _total.
  void Counter(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  std::vector<prometheus::MetricFamily> families;

 private:
  prometheus::MetricFamily& Family(const std::string& name, const std::string& help, bool counter);
};

// Thread-safe if `fill` is.
class PageCollectable : public prometheus::Collectable {
 public:
  explicit PageCollectable(std::function<void(MetricPage&)> fill) : fill_(std::move(fill)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  std::function<void(MetricPage&)> fill_;
};

struct MonitoringOptions {
  std::string address;                                  // empty: no server
  std::vector<const prometheus::Collectable*> metrics;  // borrowed
  std::function<bool()> live;   // the program's own step loop moves; never about a peer
  std::function<bool()> ready;  // it can take a request now
};

// Owns the HTTP server; stops it when destroyed.
class Monitoring {
 public:
  // UNAVAILABLE (ADDRESS_IN_USE) when the address cannot be bound. Null for an empty address.
  static absl::StatusOr<std::unique_ptr<Monitoring>> Start(MonitoringOptions options);
  virtual ~Monitoring() = default;
};

}  // namespace ridgefill::common
