#include "tests/engine/eval/smollm.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/formats/json.h"
#include "engine/model/config.h"
#include "engine/model/weight_source.h"

namespace ridgefill::testing_support {
namespace {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  RF_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace

std::string SmolLmPath() {
  const char* home = std::getenv("RIDGEFILL_HOME");
  const char* user = std::getenv("HOME");
  const std::string folder =
      home != nullptr ? home : absl::StrCat(user != nullptr ? user : "", "/.cache/ridgefill");
  return folder + "/models/smollm2-135m-instruct.gguf";
}

bool SmolLmIsThere() { return std::filesystem::exists(SmolLmPath()); }

SmolLm LoadSmolLm() {
  SmolLm out;
  out.backend = Must(kernels::MakeCpuBackend({}));
  const auto source = Must(model::WeightSource::Open(SmolLmPath()));
  out.tokenizer = Must(tokenizer::Tokenizer::FromGguf(*source->gguf()));
  model::LoadOptions options;
  options.for_decode = false;
  out.model = Must(model::Model::Load(*source, *out.backend, options));
  out.identity = model::MakeIdentity("smollm2-135m-instruct", source->config(), out.tokenizer->digest(),
                                     source->weights_digest());
  return out;
}

std::vector<fit::Document> ListedWindows(const tokenizer::Tokenizer& tokenizer, const std::string& part,
                                         const std::string& key) {
  const formats::Json list =
      Must(formats::ParseJson(Must(base::ReadFile("tests/data/eval/windows_4096.json"))));
  const auto all =
      Must(fit::LoadCorpus(tokenizer, "tests/data/corpus/" + part, {.document_tokens = list["tokens"]}));
  std::vector<fit::Document> out;
  for (const formats::Json& window : list[key]) {
    for (const fit::Document& document : all) {
      if (document.file == window["file"] && document.begin == window["begin"]) out.push_back(document);
    }
  }
  RF_CHECK(out.size() == list[key].size());
  return out;
}

void ShiftKeyPositions(const model::Model& model, int shift, ridge::LayerMap& map) {
  const kernels::RopeSpec& rope = model.rope();
  const int half = rope.head_dim / 2, kv = model.config().kv_width();
  const auto rows = static_cast<int>(map.bias.size());  // K's, then V's, of each map of a mixture
  const int inputs = static_cast<int>(map.weight.size()) / rows;
  const auto turn = [](float& a, float& b, double angle) {
    const double c = std::cos(angle), s = std::sin(angle), x = a, y = b;
    a = static_cast<float>(x * c - y * s);
    b = static_cast<float>(y * c + x * s);
  };
  for (int first = 0; first < rows; first += rope.head_dim) {
    if (first % (2 * kv) >= kv) continue;  // V
    for (int i = 0; i < half; ++i) {
      const double angle = shift * rope.inverse_frequencies[i];
      const int a = first + i, b = first + i + half;
      turn(map.bias[a], map.bias[b], angle);
      for (int column = 0; column < inputs; ++column) {
        turn(map.weight[a * inputs + column], map.weight[b * inputs + column], angle);
      }
    }
  }
}

}  // namespace ridgefill::testing_support
