#include "services/router/placement.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace ridgefill::router {

Placement::Placement(std::string role, std::vector<std::string> addresses)
    : role_(std::move(role)), addresses_(std::move(addresses)), states_(addresses_.size()) {}

Placement::Lease& Placement::Lease::operator=(Lease&& other) noexcept {
  Release();
  placement_ = std::exchange(other.placement_, nullptr);
  index_ = other.index_;
  return *this;
}

void Placement::Lease::Release() {
  if (placement_ == nullptr) return;
  absl::MutexLock lock(&placement_->mutex_);
  --placement_->states_[index_].in_flight;
  placement_ = nullptr;
}

absl::StatusOr<Placement::Lease> Placement::Pick(absl::Span<const int> avoid, MapsWanted maps, int split) {
  absl::MutexLock lock(&mutex_);
  const int count = static_cast<int>(states_.size());
  int best = -1;
  using Rank = std::tuple<bool, bool, bool, bool, int64_t, int>;
  Rank best_rank;
  for (int i = 0; i < count; ++i) {
    const State& state = states_[i];
    if (!state.report.serving) continue;
    const bool avoided = std::find(avoid.begin(), avoid.end(), i) != avoid.end();
    const int turn = (i - last_ - 1 + 2 * count) % count;  // who came longest ago goes first
    const bool bare = OfSplit(state.report.maps, split).split == 0;
    // Of prefill workers: whoever fills, they run the layers below the split.
    const bool too_few =
        maps != MapsWanted::kNo && state.report.layers > 0 && state.report.loaded_layers < split;
    const Rank rank(too_few, maps == MapsWanted::kRequired && bare, avoided,
                    maps == MapsWanted::kPreferred && bare, state.in_flight + state.others, turn);
    if (best < 0 || rank < best_rank) {
      best = i;
      best_rank = rank;
    }
  }
  if (best < 0) {
    return base::Error(
        absl::StatusCode::kUnavailable, "NO_WORKER",
        absl::StrCat("no ", role_, " worker is serving; configured: ", absl::StrJoin(addresses_, ", ")),
        {{"role", role_}});
  }
  last_ = best;
  ++states_[best].in_flight;
  return Lease(this, best);
}

void Placement::Update(int index, const WorkerReport& report) {
  absl::MutexLock lock(&mutex_);
  State& state = states_[index];
  if (!report.serving) {
    state.report.serving = false;  // what else is known of it stays
    return;
  }
  state.report = report;
  state.others = std::max<int64_t>(0, report.load - state.in_flight);
  state.seen = true;
}

void Placement::MarkDown(int index) {
  absl::MutexLock lock(&mutex_);
  states_[index].report.serving = false;
}

WorkerReport Placement::report(int index) const {
  absl::MutexLock lock(&mutex_);
  return states_[index].report;
}

int Placement::in_flight(int index) const {
  absl::MutexLock lock(&mutex_);
  return states_[index].in_flight;
}

std::optional<WorkerReport> Placement::Example() const {
  absl::MutexLock lock(&mutex_);
  for (const State& state : states_) {
    if (state.seen) return state.report;
  }
  return std::nullopt;
}

std::vector<MapFacts> Placement::Maps() const {
  absl::MutexLock lock(&mutex_);
  std::vector<MapFacts> maps;
  for (const State& state : states_) {
    if (!state.seen) continue;
    for (const MapFacts& facts : state.report.maps) {
      if (OfSplit(maps, facts.split).split == 0) maps.push_back(facts);
    }
  }
  return maps;
}

}  // namespace ridgefill::router
