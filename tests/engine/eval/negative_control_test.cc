// Bounds that a filled answer meets, and what is broken does not (docs/method.md, "Measuring it", oracles):
// if one of the broken fills passed them, every figure of quality would be in doubt. On a real model, over a
// few documents; maps from a few thousand rows do.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "engine/base/float16.h"
#include "engine/base/status.h"
#include "engine/eval/filled_forward.h"
#include "engine/fit/fit.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/map_set.h"
#include "tests/engine/eval/smollm.h"

namespace ridgefill::eval {
namespace {

constexpr int kSplit = 18;
constexpr int64_t kTokens = 1024, kTail = 192, kChunk = 512;
constexpr size_t kDocuments = 3;
constexpr int64_t kFirstRows = 64;  // of the tail: they stand next to the bulk

// Of one way to fill, mean over documents.
struct Figures {
  double kl = 0;        // KL(exact || filled) of the tail's rows, nats
  double first_kl = 0;  // of its first rows
  double cosine = 0;    // of the bulk's K in the cache with the exact K: layers, rows and heads alike
  double dnll = 0;
};

// What a fill of the same documents may be worse than the fitted maps' before it counts as broken. The
// comparison is paired, so the margins are far above its noise; the fitted fill itself has bounds of its own.
bool MeetsTheBounds(const Figures& f, const Figures& fitted) {
  return f.kl < 1.1 * fitted.kl && f.first_kl < 1.1 * fitted.first_kl && f.cosine > fitted.cosine - 0.002;
}

// A fill, whole or broken, of the document that is in the lower layers.
using Case = std::function<absl::Status(FilledForward& forward, const ridge::FillPlan& plan)>;

class NegativeControlTest : public testing::Test {
 protected:
  // All cases once, document by document, for all tests.
  static void SetUpTestSuite() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return;
#endif
    if (!testing_support::SmolLmIsThere()) return;
    shared_ = new Shared;
    shared_->folder = absl::StrCat(testing::TempDir(), "/negative_control_test.", getpid());
    shared_->lm = testing_support::LoadSmolLm();
    shared_->calibration =
        fit::LoadCorpus(*shared_->lm.tokenizer, "tests/data/corpus/calibration", {.document_tokens = 1024})
            .value();
    Fit();
    shared_->set = Set(kSplit);
    AddCases();
    const auto held_out =
        fit::LoadCorpus(*shared_->lm.tokenizer, "tests/data/corpus/heldout", {.document_tokens = kTokens})
            .value();
    const auto forward = FilledForward::Create(*shared_->lm.model, kSplit, kTokens, kChunk).value();
    for (size_t i = 0; i < kDocuments; ++i) ASSERT_TRUE(RunDocument(*forward, held_out[i].ids).ok());
    for (const auto& [name, figures] : shared_->figures) {
      std::printf("%-24s KL %.4f, first rows %.4f, K cosine %.4f, dNLL %+.4f%s\n", name.c_str(), figures.kl,
                  figures.first_kl, figures.cosine, figures.dnll,
                  MeetsTheBounds(figures, Of("fitted")) ? ", within the bounds" : "");
    }
  }
  static void TearDownTestSuite() {
    if (shared_ == nullptr) return;
    std::filesystem::remove_all(shared_->folder);
    delete shared_;
    shared_ = nullptr;
  }
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a real model under a sanitizer takes minutes";
#endif
    if (shared_ == nullptr)
      GTEST_SKIP() << "no " << testing_support::SmolLmPath() << " (deploy/fetch_model.sh)";
  }

  // Maps as `ridgefill fit` makes them by default, but of few rows and a small mixture.
  static void Fit() {
    fit::FitOptions options;
    options.splits = {kSplit - 1, kSplit};
    options.rows = 12 * 1024;
    options.mixture = 2;
    options.held_out_documents = 1;
    options.out = shared_->folder;
    const auto fitted = fit::FitMaps(*shared_->lm.model, shared_->lm.identity, shared_->calibration, options);
    ASSERT_TRUE(fitted.ok()) << fitted.status();
  }
  static std::unique_ptr<ridge::MapSet> Set(int split) {
    return ridge::MapSet::Load(absl::StrCat(shared_->folder, "/split-", split)).value();
  }

  // The fill of these maps, stored under the fitted set's manifest.
  static runtime::FillPass* FillOf(const std::string& name, const ridge::MapSet& set,
                                   const std::function<void(ridge::LayerMap&)>& change = {}) {
    const std::string folder = absl::StrCat(shared_->folder, "/", name);
    EXPECT_TRUE(
        ridge::SaveMapSet(folder, shared_->set->manifest(), Layers(set, change), set.ReadGate().value())
            .ok());
    shared_->maps.push_back(
        ridge::DeviceMaps::Load(*ridge::MapSet::Load(folder).value(), *shared_->lm.backend).value());
    shared_->fills.push_back(
        runtime::FillPass::Create(*shared_->lm.model, *shared_->maps.back(), kChunk).value());
    return shared_->fills.back().get();
  }
  // Layers above the split of a set, each with `change` made to it.
  static std::vector<ridge::LayerMap> Layers(const ridge::MapSet& set,
                                             const std::function<void(ridge::LayerMap&)>& change) {
    std::vector<ridge::LayerMap> out;
    for (int layer = kSplit + 1; layer < set.manifest().layers; ++layer) {
      out.push_back(set.ReadLayer(layer).value());
      if (change) change(out.back());
    }
    return out;
  }

  static void AddCases() {
    const auto late = [](runtime::FillPass* fill) {
      return [fill](FilledForward& forward, const ridge::FillPlan& plan) { return forward.Late(plan, fill); };
    };
    const auto& config = shared_->lm.model->config();
    const int head = config.head_dim, kv = config.kv_width();
    runtime::FillPass* const fitted = FillOf("fitted", *shared_->set);
    auto& cases = shared_->cases;
    cases["fitted"] = late(fitted);
    cases["keys of the next head"] = late(FillOf("heads", *shared_->set, [&](ridge::LayerMap& map) {
      const auto inputs = static_cast<int>(map.weight.size() / map.bias.size());
      for (auto keys = map.bias.begin(); keys != map.bias.end(); keys += 2 * kv) {
        std::rotate(keys, keys + head, keys + kv);
        const auto weight = map.weight.begin() + (keys - map.bias.begin()) * inputs;
        std::rotate(weight, weight + head * inputs, weight + kv * inputs);
      }
    }));
    cases["positions off by one"] = late(FillOf("positions", *shared_->set, [](ridge::LayerMap& map) {
      testing_support::ShiftKeyPositions(*shared_->lm.model, 1, map);
    }));
    cases["maps of split 17"] = late(FillOf("neighbour", *Set(kSplit - 1)));
    shared_->fills.push_back(runtime::FillPass::CreateIdentity(*shared_->lm.model, kSplit, kChunk).value());
    cases["identity"] = late(shared_->fills.back().get());
    cases["outlier rows filled"] = [fitted](FilledForward& forward, ridge::FillPlan plan) {
      EXPECT_FALSE(plan.outliers.empty());
      plan.outliers.clear();
      return forward.Late(plan, fitted);
    };
    for (const int64_t rows : {8, 32}) {
      cases[absl::StrCat("last ", rows, " rows not filled")] = [=](FilledForward& forward,
                                                                   const ridge::FillPlan& plan) {
        RF_RETURN_IF_ERROR(forward.Late(plan, fitted));
        RF_RETURN_IF_ERROR(Clear(forward, plan.tail_begin - rows, plan.tail_begin));
        return forward.LateOverCache(plan);
      };
    }
  }

  // Rows of the late layers as a new cache has them.
  static absl::Status Clear(FilledForward& forward, int64_t begin, int64_t end) {
    const int64_t row_bytes = 2 * shared_->lm.model->config().kv_width();  // of K or V: bf16
    for (int layer = kSplit; layer < shared_->lm.model->config().layers; ++layer) {
      RF_ASSIGN_OR_RETURN(std::vector<char> bytes, forward.ReadKv(layer));
      for (char* const half : {bytes.data(), bytes.data() + kTokens * row_bytes}) {
        std::fill(half + begin * row_bytes, half + end * row_bytes, 0);
      }
      RF_RETURN_IF_ERROR(forward.WriteKv(layer, bytes));
    }
    return absl::OkStatus();
  }

  static ridge::FillPlan Plan(const FilledForward& forward) {
    ridge::FillDecision decision;
    decision.mode = ridge::Mode::kSpeed;
    decision.tail = kTail;
    std::vector<int32_t> outliers;
    for (int64_t row = 0; row < kTokens; ++row) {
      if (ridge::IsOutlier(row, forward.norms()[row], shared_->set->manifest().outlier_threshold)) {
        outliers.push_back(static_cast<int32_t>(row));
      }
    }
    return ridge::MakeFillPlan(decision, kTokens, outliers, {});
  }

  static absl::Status RunDocument(FilledForward& forward, const std::vector<int32_t>& ids) {
    const int64_t begin = kTokens - kTail, end = kTokens - 1;
    RF_RETURN_IF_ERROR(forward.Lower(ids));
    RF_RETURN_IF_ERROR(forward.Late(ridge::MakeFillPlan({}, kTokens, {}, {}), nullptr));
    RF_ASSIGN_OR_RETURN(const KeptLogits exact, forward.scorer().Keep(forward.Rows(begin, end)));
    RF_ASSIGN_OR_RETURN(const std::vector<double> exact_nll, forward.NextTokenNll(begin, end));
    RF_ASSIGN_OR_RETURN(const auto exact_keys, Keys(forward));
    const ridge::FillPlan plan = Plan(forward);
    for (const auto& [name, run] : shared_->cases) {
      RF_RETURN_IF_ERROR(run(forward, plan));
      RF_ASSIGN_OR_RETURN(const auto scores, forward.scorer().Compare(exact, 0, forward.Rows(begin, end),
                                                                      forward.TokensAfter(begin, end)));
      RF_ASSIGN_OR_RETURN(const auto keys, Keys(forward));
      Figures& figures = shared_->figures[name];
      const double rows = static_cast<double>(scores.size()), documents = kDocuments;
      for (size_t i = 0; i < scores.size(); ++i) {
        figures.kl += scores[i].kl / rows / documents;
        figures.dnll += (scores[i].nll - exact_nll[i]) / rows / documents;
        if (i < kFirstRows) figures.first_kl += scores[i].kl / double{kFirstRows} / documents;
      }
      figures.cosine += MeanCosine(exact_keys, keys) / documents;
    }
    return absl::OkStatus();
  }

  // K of the rows below the tail, but for row 0, of all mapped layers: one head after the other.
  static absl::StatusOr<std::vector<float>> Keys(FilledForward& forward) {
    const auto& config = shared_->lm.model->config();
    std::vector<float> out;
    for (int layer = kSplit + 1; layer < config.layers; ++layer) {
      RF_ASSIGN_OR_RETURN(const std::vector<char> bytes, forward.ReadKv(layer));
      for (int64_t i = config.kv_width(); i < (kTokens - kTail) * config.kv_width(); ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
        out.push_back(base::BF16ToF32(bits));
      }
    }
    return out;
  }
  static double MeanCosine(const std::vector<float>& a, const std::vector<float>& b) {
    const size_t dim = shared_->lm.model->config().head_dim;
    double sum = 0;
    for (size_t at = 0; at < a.size(); at += dim) {
      double ab = 0, aa = 1e-30, bb = 1e-30;
      for (size_t i = at; i < at + dim; ++i) {
        ab += double{a[i]} * b[i];
        aa += double{a[i]} * a[i];
        bb += double{b[i]} * b[i];
      }
      sum += ab / std::sqrt(aa * bb);
    }
    return sum * static_cast<double>(dim) / static_cast<double>(a.size());
  }

  static const Figures& Of(const std::string& name) { return shared_->figures.at(name); }
  static bool Meets(const std::string& name) { return MeetsTheBounds(Of(name), Of("fitted")); }

  struct Shared {
    std::string folder;
    testing_support::SmolLm lm;
    std::vector<fit::Document> calibration;
    std::unique_ptr<ridge::MapSet> set;
    std::vector<std::unique_ptr<ridge::DeviceMaps>> maps;
    std::vector<std::unique_ptr<runtime::FillPass>> fills;
    std::map<std::string, Case> cases;
    std::map<std::string, Figures> figures;
  };
  static Shared* shared_;
};
NegativeControlTest::Shared* NegativeControlTest::shared_ = nullptr;

TEST_F(NegativeControlTest, TheFillItselfCostsLittle) {
  const Figures& f = Of("fitted");
  EXPECT_LT(f.kl, 0.2);
  EXPECT_LT(f.first_kl, 0.4);
  EXPECT_GT(f.cosine, 0.93);
  EXPECT_LT(std::fabs(f.dnll), 0.2);
}

TEST_F(NegativeControlTest, KeysOfAnotherHeadDoNot) { EXPECT_FALSE(Meets("keys of the next head")); }

// The loss hardly sees it, as all filled keys move together; the keys themselves do.
TEST_F(NegativeControlTest, PositionsOffByOneDoNot) { EXPECT_FALSE(Meets("positions off by one")); }

TEST_F(NegativeControlTest, RowsAtTheBoundaryLeftUnfilledDoNot) {
  EXPECT_FALSE(Meets("last 8 rows not filled"));
  EXPECT_FALSE(Meets("last 32 rows not filled"));
}

TEST_F(NegativeControlTest, IdentityMapsDoNot) { EXPECT_FALSE(Meets("identity")); }

TEST_F(NegativeControlTest, OutlierRowsFilledDoNot) {
  EXPECT_FALSE(Meets("outlier rows filled"));
  // Without normalised inputs it is tens of nats a token.
  EXPECT_GT(Of("outlier rows filled").dnll, Of("fitted").dnll + 0.1);
}

TEST_F(NegativeControlTest, MapsOfTheNeighbouringSplitDoNot) { EXPECT_FALSE(Meets("maps of split 17")); }

}  // namespace
}  // namespace ridgefill::eval
