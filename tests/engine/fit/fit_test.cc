// The whole way from documents to a map set, on a tiny random checkpoint and the reference backend.
#include "engine/fit/fit.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/base/status.h"
#include "engine/fit/accumulator.h"
#include "engine/fit/held_out_report.h"
#include "engine/fit/sums.h"
#include "engine/model/weight_source.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/fill_plan.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::fit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string ReasonOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

class FitTest : public testing::Test {
 public:
  ~FitTest() override { std::filesystem::remove_all(folder_); }

 protected:
  static constexpr int kSplit = 1;        // of 4 layers
  static constexpr int64_t kTokens = 48;  // of a document

  FitTest() : backend_(kernels::MakeReferenceBackend()) {
    const auto source = model::WeightSource::Open("tests/data/golden/tiny/llama").value();
    model_ = model::Model::Load(*source, *backend_, {}).value();
    identity_ = model::MakeIdentity("tiny", source->config(), "tok", source->weights_digest());
    folder_ = absl::StrCat(testing::TempDir(), "/fit_test.",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    documents_ = MakeDocuments(kTokens);
  }

  std::vector<Document> MakeDocuments(int64_t tokens) const {
    base::Rng rng(11);
    std::vector<Document> documents(9, {"made up", 0, {}});
    for (Document& document : documents) {
      for (int64_t i = 0; i < tokens; ++i) {
        document.ids.push_back(static_cast<int32_t>(rng.NextBelow(model_->config().vocab)));
      }
    }
    return documents;
  }

  FitOptions Options(const std::string& name) const {
    FitOptions options;
    options.split = kSplit;
    options.rows = 7 * kTokens;
    options.held_out_documents = 2;
    options.out = folder_ + "/" + name;
    options.corpus = "made up";
    options.chunk_rows = 32;
    options.save_every = 1;
    return options;
  }
  absl::StatusOr<FitResult> Run(const FitOptions& options) {
    return FitMaps(*model_, identity_, documents_, options);
  }
  static SumsFile SumsOf(const FitOptions& options) {
    return LoadSums(options.out + "/sums.safetensors").value();
  }

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Model> model_;
  base::ModelIdentity identity_;
  std::vector<Document> documents_;
  std::string folder_;
};

// The sums, from one plain pass over all rows of a document and loops over what it shows.
TEST_F(FitTest, SumsAreThoseOfAPlainForwardWithoutOutliers) {
  const model::ModelConfig& config = model_->config();
  const int64_t d = config.hidden, columns = 2 * config.kv_width(), tokens = kTokens;
  const auto pass = runtime::SequencePass::Create(*model_, tokens, tokens).value();
  const auto device = backend_->Allocate(kernels::DType::kF32, {tokens, d}).value();
  const std::vector<int32_t>& ids = documents_[0].ids;
  const std::vector<int32_t> positions = runtime::Positions(0, tokens);
  ASSERT_TRUE(pass->Embed(ids, device.view()).ok());
  ASSERT_TRUE(pass->Forward({positions, device.view(), 0, kSplit, {}}).ok());
  const std::vector<float> x = pass->Floats(device.view()).value();
  std::vector<float> norms;
  for (int64_t row = 0; row < tokens; ++row) {
    double square = 0;
    for (int64_t i = 0; i < d; ++i) square += double{x[row * d + i]} * x[row * d + i];
    norms.push_back(static_cast<float>(std::sqrt(square)));
  }
  std::vector<std::vector<float>> kv(config.layers);
  ASSERT_TRUE(pass->Forward({positions, device.view(), kSplit, config.layers,
                             [&](int layer, const kernels::TensorView& view) {
                               kv[layer] = pass->Floats(view).value();
                               return absl::OkStatus();
                             }})
                  .ok());

  SumsKey key;
  key.layers = config.layers, key.hidden = config.hidden, key.kv_width = config.kv_width(),
  key.split = kSplit;
  std::vector<float> sorted = norms;
  std::nth_element(sorted.begin(), sorted.begin() + 40, sorted.end());
  key.outlier_threshold = sorted[40];  // about seven rows are outliers
  Sums want(key);
  for (int64_t row = 1; row < tokens; ++row) {
    if (norms[row] > key.outlier_threshold) continue;
    ++want.rows;
    for (int64_t i = 0; i < d; ++i) {
      want.x[i] += x[row * d + i];
      for (int64_t j = 0; j < d; ++j) want.xx[i * d + j] += double{x[row * d + i]} * x[row * d + j];
    }
    for (int layer = kSplit + 1; layer < config.layers; ++layer) {
      LayerSums& late = want.late[layer - kSplit - 1];
      for (int64_t o = 0; o < columns; ++o) {
        const double y = kv[layer][row * columns + o];
        late.y[o] += y;
        late.yy[o] += y * y;
        for (int64_t i = 0; i < d; ++i) late.xy[i * columns + o] += x[row * d + i] * y;
      }
    }
  }
  ASSERT_LE(want.rows, 42);

  const auto expect_near = [](const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    double largest = 0;
    for (double value : b) largest = std::max(largest, std::fabs(value));
    // Block products come as f32.
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6 * largest);
  };
  // In chunks of one row every outlier is a chunk of which nothing is kept; the rows after it attend to it.
  for (int64_t chunk_rows : {32, 1}) {
    Sums got(key), other(key);
    const auto accumulator = SumsAccumulator::Create(*model_, key, tokens, chunk_rows).value();
    ASSERT_TRUE(accumulator->Add(documents_[1].ids, other).ok());  // leaves its K and V behind
    ASSERT_TRUE(accumulator->Add(ids, got).ok());
    EXPECT_EQ(got.rows, want.rows);
    expect_near(got.x, want.x);
    expect_near(got.xx, want.xx);
    for (size_t i = 0; i < want.late.size(); ++i) {
      expect_near(got.late[i].y, want.late[i].y);
      expect_near(got.late[i].yy, want.late[i].yy);
      expect_near(got.late[i].xy, want.late[i].xy);
    }
  }
}

TEST_F(FitTest, FitsBetterThanIdentityAndStoresItsReport) {
  constexpr int64_t kLonger = 100;
  documents_ = MakeDocuments(kLonger);
  FitOptions options = Options("maps");
  options.rows = 7 * kLonger;
  std::vector<std::string> stages;
  FitOptions watched = options;
  watched.progress = [&](const FitProgress& p) {
    if (stages.empty() || stages.back() != Name(p.stage)) stages.emplace_back(Name(p.stage));
    EXPECT_LE(p.done, p.total);
    return absl::OkStatus();
  };
  const auto result = Run(watched);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(stages, ElementsAre("outliers", "sums", "solve", "report"));
  ASSERT_THAT(result->warnings, SizeIs(1));
  EXPECT_THAT(result->warnings[0], HasSubstr("2560")) << "40 rows for each of 64 inputs";

  const auto set = ridge::MapSet::Load(options.out);
  ASSERT_TRUE(set.ok()) << set.status();
  const ridge::MapSetManifest& m = (*set)->manifest();
  EXPECT_EQ(m.digest, result->manifest.digest);
  EXPECT_EQ(m.split, kSplit);
  EXPECT_EQ(m.fit_corpus, "made up");
  EXPECT_GT(m.outlier_threshold, 0);
  EXPECT_LE(m.fit_rows, 7 * (kLonger - 1)) << "row 0 of each document is never fitted";
  std::string warning;
  EXPECT_TRUE(ridge::CheckCompatible(m, identity_, kSplit, &warning).ok());
  ASSERT_THAT(m.report, SizeIs(2));
  for (const ridge::LayerReport& r : m.report) {
    EXPECT_GT(r.k_cosine, r.identity_k_cosine);
    EXPECT_LT(r.v_error, r.identity_v_error);
    EXPECT_GT(r.k_penalty, 0);
    EXPECT_GT(r.v_penalty, 0);
  }
  // The report is that of the stored file.
  const auto maps = ridge::DeviceMaps::Load(**set, *backend_).value();
  const auto again =
      HeldOutReport(*model_, *maps, absl::MakeConstSpan(documents_).subspan(0, 2), {.chunk_rows = 64});
  ASSERT_TRUE(again.ok()) << again.status();
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR((*again)[i].k_cosine, m.report[i].k_cosine, 1e-6);
}

TEST_F(FitTest, Int8LosesLittle) {
  FitOptions options = Options("int8");
  const auto bf16 = Run(options);
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  options.dtype = "int8";  // from the sums that are there
  const auto int8 = Run(options);
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_EQ(int8->resumed_documents, 9);
  EXPECT_EQ(ridge::MapSet::Load(options.out).value()->manifest().dtype, "int8");
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NE(int8->manifest.report[i].k_cosine, bf16->manifest.report[i].k_cosine);
    EXPECT_NEAR(int8->manifest.report[i].k_cosine, bf16->manifest.report[i].k_cosine, 1e-3);
  }
}

TEST_F(FitTest, ResumedAfterAKillEqualsUninterrupted) {
  const FitOptions whole = Options("whole");
  ASSERT_TRUE(Run(whole).ok());
  for (int64_t stop_at : {1, 5, 9}) {
    FitOptions killed = Options(absl::StrCat("killed", stop_at));
    killed.save_every = 2;  // so that what was done since the last save is lost
    killed.progress = [&](const FitProgress& p) {
      return p.stage == FitStage::kSums && p.done == stop_at ? absl::CancelledError("killed")
                                                             : absl::OkStatus();
    };
    EXPECT_EQ(Run(killed).status().code(), absl::StatusCode::kCancelled);
    EXPECT_FALSE(std::filesystem::exists(killed.out + "/ridgefill.json"));
    killed.progress = nullptr;
    const auto resumed = Run(killed);
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_EQ(resumed->resumed_documents, stop_at == 9 ? 9 : stop_at / 2 * 2);
    EXPECT_EQ(base::ReadFile(killed.out + "/ridgefill.json").value(),
              base::ReadFile(whole.out + "/ridgefill.json").value());
    EXPECT_EQ(base::ReadFile(killed.out + "/sums.safetensors").value(),
              base::ReadFile(whole.out + "/sums.safetensors").value());
  }
}

TEST_F(FitTest, MoreRowsLaterEqualAllAtOnce) {
  const FitOptions whole = Options("whole");
  ASSERT_TRUE(Run(whole).ok());
  FitOptions grown = Options("grown");
  grown.rows = 3 * kTokens;
  ASSERT_TRUE(Run(grown).ok());
  grown.rows = whole.rows;
  const auto result = Run(grown);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->resumed_documents, 5);
  EXPECT_EQ(base::ReadFile(grown.out + "/ridgefill.json").value(),
            base::ReadFile(whole.out + "/ridgefill.json").value());
}

TEST_F(FitTest, MergedSumsEqualASinglePass) {
  const FitOptions whole = Options("whole");
  ASSERT_TRUE(Run(whole).ok());
  // Two runs over halves of the same text, held-out documents apart.
  const std::vector<Document> all = documents_;
  FitOptions first = Options("first"), second = Options("second");
  first.outlier_threshold = second.outlier_threshold = SumsOf(whole).key.outlier_threshold;
  first.held_out_documents = second.held_out_documents = 1;
  documents_ = {all[0], all[2], all[3], all[4]};
  ASSERT_TRUE(Run(first).ok());
  documents_ = {all[1], all[5], all[6], all[7], all[8]};
  second.merge = {first.out + "/sums.safetensors"};
  const auto merged = Run(second);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->manifest.fit_rows, SumsOf(whole).fit.rows);
  EXPECT_EQ(merged->manifest.fit_corpus, "made up + made up");

  SumsFile sums = SumsOf(second);
  EXPECT_LT(sums.fit.rows, merged->manifest.fit_rows) << "a run saves its own sums, not the merged ones";
  ASSERT_TRUE(Add(SumsOf(first).fit, sums.fit).ok());
  const Sums want = SumsOf(whole).fit;
  // Only the order of fp64 additions differs: 2^-53 for each of some tens of blocks.
  for (size_t i = 0; i < want.xx.size(); ++i) {
    ASSERT_NEAR(sums.fit.xx[i], want.xx[i], 1e-14 * (want.xx[0] + std::fabs(want.xx[i])) * 100);
  }
  const auto a = ridge::MapSet::Load(second.out).value(), b = ridge::MapSet::Load(whole.out).value();
  for (int layer : {2, 3}) {
    const std::vector<float> got = a->ReadLayer(layer)->weight, expected = b->ReadLayer(layer)->weight;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], std::fabs(expected[i]) / 128 + 1e-6);  // one step of bf16
    }
  }
}

TEST_F(FitTest, RefusesSumsOfSomethingElse) {
  const FitOptions options = Options("maps");
  ASSERT_TRUE(Run(options).ok());
  const auto refused = [&](auto change, absl::string_view reason) {
    FitOptions other = options;
    change(other);
    const absl::Status status = Run(other).status();
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("sums.safetensors"));
  };
  refused([](FitOptions& o) { o.split = 2; }, "SUMS_OTHER_SPLIT");
  refused([](FitOptions& o) { o.held_out_documents = 3; }, "SUMS_OTHER_DOCUMENTS");
  refused([](FitOptions& o) { o.outlier_threshold = 1; }, "SUMS_OTHER_OUTLIERS");
  refused([](FitOptions& o) { o.outlier_ratio = 4; }, "SUMS_OTHER_OUTLIER_RATIO");
  refused(
      [&](FitOptions& o) {
        o.out = folder_ + "/fresh";
        o.split = 2;
        o.merge = {options.out + "/sums.safetensors"};
      },
      "SUMS_OTHER_SPLIT");
  documents_[4].ids[7] ^= 1;
  refused([](FitOptions&) {}, "SUMS_OTHER_DOCUMENTS");
}

TEST_F(FitTest, RefusesToCountDocumentsTwice) {
  const FitOptions first = Options("first");
  ASSERT_TRUE(Run(first).ok());
  const std::string sums = first.out + "/sums.safetensors";
  FitOptions own = Options("own");
  own.outlier_threshold = SumsOf(first).key.outlier_threshold;
  own.merge = {sums};
  EXPECT_EQ(ReasonOf(Run(own).status()), "SUMS_SAME_DOCUMENTS");

  FitOptions other = own;
  other.out = folder_ + "/other";
  other.merge = {sums, sums};
  documents_.pop_back();
  const absl::Status twice = Run(other).status();
  EXPECT_EQ(ReasonOf(twice), "SUMS_SAME_DOCUMENTS");
  EXPECT_THAT(std::string(twice.message()), HasSubstr(sums));
  other.merge = {sums};
  EXPECT_TRUE(Run(other).ok());
}

TEST_F(FitTest, RefusesOptionsThatMakeNoSense) {
  const auto reason = [&](auto change) {
    FitOptions options = Options("never");
    change(options);
    return ReasonOf(Run(options).status());
  };
  EXPECT_EQ(reason([](FitOptions& o) { o.split = 0; }), "FIT_SPLIT");
  EXPECT_EQ(reason([](FitOptions& o) { o.split = 3; }), "FIT_SPLIT");
  EXPECT_EQ(reason([](FitOptions& o) { o.dtype = "f16"; }), "FIT_DTYPE");
  EXPECT_EQ(reason([](FitOptions& o) { o.out = ""; }), "FIT_OUT");
  EXPECT_EQ(reason([](FitOptions& o) { o.rows = 0; }), "FIT_ROWS");
  EXPECT_EQ(reason([](FitOptions& o) { o.held_out_documents = 0; }), "FIT_CORPUS");
  EXPECT_EQ(reason([](FitOptions& o) { o.held_out_documents = 9; }), "FIT_CORPUS");
  EXPECT_EQ(reason([](FitOptions& o) { o.outlier_ratio = 0.5f; }), "FIT_OUTLIER_RATIO");
  EXPECT_EQ(reason([](FitOptions& o) { o.outlier_threshold = NAN; }), "FIT_OUTLIER_THRESHOLD");
  EXPECT_EQ(reason([](FitOptions& o) { o.tail_default = 3; }), "FIT_TAIL");
  EXPECT_EQ(reason([](FitOptions& o) { o.min_bulk = -1; }), "FIT_TAIL");
  documents_[3].ids.resize(1);
  EXPECT_EQ(reason([](FitOptions&) {}), "FIT_DOCUMENT_TOKENS");
  documents_[3].ids.resize(model_->config().context + 1);
  EXPECT_EQ(reason([](FitOptions&) {}), "FIT_DOCUMENT_TOKENS");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/never"));
}

}  // namespace
}  // namespace ridgefill::fit
