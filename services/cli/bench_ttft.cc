// `ridgefill bench ttft`: through the services.
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "engine/base/status.h"
#include "kernels/api/backend.h"
#include "services/cli/bench.h"
#include "services/cli/client.h"

namespace ridgefill::cli {
namespace {

struct Measured {
  double ms = 0;
  v1::FillReport fill;
};

absl::StatusOr<Measured> MeasureOne(Client& client, const v1::GenerateRequest& request) {
  Measured out;
  std::optional<absl::Time> first;
  const absl::Time start = absl::Now();
  RF_RETURN_IF_ERROR(client.Generate(request, [&](const v1::GenerateResponse& message) {
    if (message.has_started()) out.fill = message.started().fill();
    if (message.has_delta() && !first.has_value()) first = absl::Now();
  }));
  if (!first.has_value()) return absl::InternalError("the answer had no token");
  out.ms = absl::ToDoubleMilliseconds(*first - start);
  return out;
}

// Exactly `length` token ids of text that no earlier request had.
absl::StatusOr<v1::GenerateRequest> MakePrompt(Client& client, int64_t length, uint64_t seed) {
  RF_ASSIGN_OR_RETURN(auto ids, client.Tokenize(BenchText(static_cast<int>(length), seed)));
  if (static_cast<int64_t>(ids.size()) < length) {
    return absl::InternalError(absl::StrCat("the text gave only ", ids.size(), " tokens"));
  }
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.begin() + length);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(1);
  return request;
}

absl::StatusOr<v1::FillMode> ParseMode(const std::string& name) {
  v1::FillMode mode;
  if (v1::FillMode_Parse("FILL_MODE_" + absl::AsciiStrToUpper(name), &mode)) return mode;
  return absl::InvalidArgumentError("--modes takes AUTO, EXACT, QUALITY and SPEED, got \"" + name + "\"");
}

absl::Status MeasureLength(Client& client, const BenchFlags& flags, const v1::ModelInfo& model,
                           int64_t length) {
  std::map<std::string, BenchLine> lines;
  std::map<std::string, std::string> reasons;    // by mode asked for
  for (int rep = -1; rep < flags.reps; ++rep) {  // rep -1 warms up
    RF_ASSIGN_OR_RETURN(v1::GenerateRequest request, MakePrompt(client, length, 1000 * length + rep + 1));
    for (const std::string& name : flags.modes) {
      RF_ASSIGN_OR_RETURN(const v1::FillMode mode, ParseMode(name));
      request.set_mode(mode);
      request.clear_selection();
      request.clear_split();
      if (flags.split > 0 && mode != v1::FILL_MODE_EXACT) request.set_split(flags.split);
      if (mode == v1::FILL_MODE_QUALITY) {
        RF_ASSIGN_OR_RETURN(const v1::Selector selector, ParseSelector(flags.selector));
        request.mutable_selection()->set_selector(selector);
      }
      RF_ASSIGN_OR_RETURN(const Measured measured, MeasureOne(client, request));
      if (rep < 0) continue;
      BenchLine& line = lines[name];
      line.mode = std::string(absl::StripPrefix(v1::FillMode_Name(measured.fill.mode()), "FILL_MODE_"));
      if (measured.fill.mode() == v1::FILL_MODE_QUALITY) line.selector = flags.selector;
      reasons[name] = measured.fill.reason();
      line.selected += measured.fill.selected();
      line.split = measured.fill.split();
      line.tail = measured.fill.tail();
      line.ms.push_back(measured.ms);
    }
  }
  for (const std::string& name : flags.modes) {
    BenchLine& line = lines[name];
    line.bench = "ttft";
    line.selected /= flags.reps;
    line.model = model.name();
    line.prompt_tokens = length;
    line.tokens = static_cast<double>(length);
    if (client.trio() != nullptr) {
      line.threads = client.trio()->model().backend->capabilities().threads;
      line.isa = client.trio()->model().backend->capabilities().isa;
    }
    if (name != line.mode && name != "AUTO") {
      std::fprintf(stderr, "bench ttft: %s of %lld tokens ran %s (%s)\n", name.c_str(),
                   static_cast<long long>(length), line.mode.c_str(), reasons[name].c_str());
    }
    Print(line);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchTtft(const BenchFlags& flags, const Environment& environment) {
  RF_ASSIGN_OR_RETURN(const auto client, Client::Connect(flags.target, flags.model, environment.home));
  RF_ASSIGN_OR_RETURN(const v1::ModelInfo model, client->Model());
  for (const int64_t length : flags.lengths) RF_RETURN_IF_ERROR(MeasureLength(*client, flags, model, length));
  return absl::OkStatus();
}

}  // namespace ridgefill::cli
