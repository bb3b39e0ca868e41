// The whole way from documents to a map set, on a tiny random checkpoint and the reference backend.
#include "engine/fit/fit.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/float16.h"
#include "engine/base/rng.h"
#include "engine/base/status.h"
#include "engine/fit/collector.h"
#include "engine/fit/held_out_report.h"
#include "engine/fit/row_file.h"
#include "engine/fit/samples.h"
#include "engine/fit/split_fitter.h"
#include "engine/model/weight_source.h"
#include "engine/ridge/device_maps.h"
#include "engine/runtime/host_bytes.h"
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
    folder_ = absl::StrCat(testing::TempDir(), "/fit_test.", getpid(), ".",
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
    options.splits = {kSplit};
    options.rows = 7 * kTokens;
    options.held_out_documents = 2;
    options.out = folder_ + "/" + name;
    options.corpus = "made up";
    options.chunk_rows = 32;
    options.rows_folder = options.out + ".rows";
    options.mixture = 2;
    options.mass_distance = 8;
    return options;
  }
  absl::StatusOr<FitResult> Run(const FitOptions& options) {
    return FitMaps(*model_, identity_, documents_, options);
  }
  RowsKey Key() const {
    const model::ModelConfig& config = model_->config();
    return {identity_, config.layers, config.hidden, config.kv_width(), config.heads_kv, {kSplit}, 8};
  }
  // Rows of all documents in place of the model's: two bundles of directions at scales over three orders of
  // magnitude; K and V are linear in the directions of the row and of the row before, by the bundle's own
  // law.
  void WriteLawfulRows(const FitOptions& options) const;
  // mass [heads_kv, tokens] against a softmax over the cached keys, written out.
  void ExpectMass(runtime::SequencePass& pass, int layer, const std::vector<float>& q,
                  const std::vector<float>& mass) const;

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Model> model_;
  base::ModelIdentity identity_;
  std::vector<Document> documents_;
  std::string folder_;
};

void FitTest::ExpectMass(runtime::SequencePass& pass, int layer, const std::vector<float>& q,
                         const std::vector<float>& mass) const {
  const model::ModelConfig& config = model_->config();
  const int64_t dim = config.head_dim, group = config.heads_q / config.heads_kv, width = config.kv_width();
  std::vector<uint16_t> cached(kTokens * 2 * width);
  ASSERT_TRUE(pass.backend()
                  .ReadKv(pass.stream(), pass.cache(), {layer, pass.block_table(), 0, kTokens},
                          runtime::HostBytes(absl::MakeSpan(cached)))
                  .ok());
  std::vector<double> sum(config.heads_kv * kTokens), asked(kTokens);
  for (int64_t row = 11; row < kTokens; row += 4) {  // every fourth of those with anything 8 rows before
    for (int64_t column = 0; column + 8 <= row; ++column) ++asked[column];
    for (int64_t head = 0; head < config.heads_q; ++head) {
      std::vector<double> p(row + 1);
      double total = 0;
      for (int64_t column = 0; column <= row; ++column) {
        double dot = 0;
        for (int64_t i = 0; i < dim; ++i) {
          dot += double{q[(row * config.heads_q + head) * dim + i]} *
                 base::BF16ToF32(cached[column * width + head / group * dim + i]);
        }
        total += p[column] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
      }
      for (int64_t column = 0; column + 8 <= row; ++column) {
        sum[head / group * kTokens + column] += p[column] / total;
      }
    }
  }
  for (int64_t i = 0; i < config.heads_kv * kTokens; ++i) {
    const double want = asked[i % kTokens] > 0 ? sum[i] / asked[i % kTokens] : 0;
    ASSERT_NEAR(mass[i], want, 1e-5 * (1 + want)) << "layer " << layer << " at " << i;
  }
}

void FitTest::WriteLawfulRows(const FitOptions& options) const {
  const RowsKey key = Key();
  const int64_t d = key.hidden, outputs = 2 * int64_t{key.kv_width};
  base::Rng rng(5);
  const auto random = [&](int64_t count) {
    std::vector<float> out(count);
    for (float& value : out) value = static_cast<float>(rng.NextDouble() - 0.5);
    return out;
  };
  const std::vector<float> centre = random(d), laws = random(2 * 2 * d * outputs);
  std::filesystem::create_directories(options.rows_folder);
  for (size_t i = 0; i < documents_.size(); ++i) {
    DocumentRows rows;
    rows.digest = TokensDigest(documents_[i].ids);
    rows.held_out = static_cast<int64_t>(i) < options.held_out_documents;
    rows.tokens = static_cast<int64_t>(documents_[i].ids.size());
    std::vector<std::vector<float>> unit(rows.tokens);  // of root mean square 1
    for (int64_t row = 0; row < rows.tokens; ++row) {
      const int64_t bundle = static_cast<int64_t>(rng.NextBelow(2));
      std::vector<float>& x = unit[row] = random(d);
      float square = 0;
      for (int64_t j = 0; j < d; ++j) {
        x[j] += (bundle == 0 ? 1.0f : -1.0f) * centre[j];
        square += x[j] * x[j];
      }
      const float scale = std::pow(10.0f, static_cast<float>(3 * rng.NextDouble() - 1));
      for (float& value : x) value /= std::sqrt(square / static_cast<float>(d));
      for (const float value : x) rows.hidden[kSplit].push_back(scale * value);
      const std::vector<float>& before = unit[std::max<int64_t>(0, row - 1)];
      for (int64_t o = 0; o < outputs; ++o) {
        const float* const law = &laws[(bundle * outputs + o) * 2 * d];
        float y = 1;
        for (int64_t j = 0; j < d; ++j) y += law[j] * x[j] + law[d + j] * before[j];
        rows.kv[kSplit + 1].push_back(base::F32ToBF16(y));
      }
    }
    rows.mass[kSplit + 1] = random(key.heads_kv * rows.tokens);
    for (float& mass : rows.mass[kSplit + 1]) mass += 0.6f;
    rows.kv[kSplit + 2] = rows.kv[kSplit + 1];
    rows.mass[kSplit + 2] = rows.mass[kSplit + 1];
    const std::string name = absl::StrCat("/", absl::Dec(i, absl::kZeroPad5), ".safetensors");
    ASSERT_TRUE(SaveRows(options.rows_folder + name, key, rows).ok());
  }
}

// h_S, K and V from one plain pass, and where queries look from scores over the keys in the cache.
TEST_F(FitTest, RowsAreThoseOfAPlainForward) {
  const model::ModelConfig& config = model_->config();
  const int64_t d = config.hidden, tokens = kTokens;
  const auto pass = runtime::SequencePass::Create(*model_, tokens, tokens).value();
  const auto device = backend_->Allocate(kernels::DType::kF32, {tokens, d}).value();
  const std::vector<int32_t>& ids = documents_[0].ids;
  const std::vector<int32_t> positions = runtime::Positions(0, tokens);
  std::vector<std::vector<float>> kv(config.layers), q(config.layers);
  runtime::SequencePass::Layers lower{positions, device.view(), 0, kSplit}, upper = lower;
  upper.begin = kSplit, upper.end = config.layers;
  upper.on_kv = [&](int layer, const kernels::TensorView& view) {
    kv[layer] = pass->Floats(view).value();
    return absl::OkStatus();
  };
  upper.on_query = [&](int layer, const kernels::TensorView& view) {
    q[layer] = pass->Floats(view).value();
    return absl::OkStatus();
  };
  ASSERT_TRUE(pass->Embed(ids, device.view()).ok());
  ASSERT_TRUE(pass->Forward(lower).ok());
  const std::vector<float> hidden = pass->Floats(device.view()).value();
  ASSERT_TRUE(pass->Forward(upper).ok());

  for (int64_t chunk_rows : {32, 5}) {
    const auto collector = Collector::Create(*model_, Key(), tokens, chunk_rows).value();
    ASSERT_TRUE(collector->Collect(documents_[1].ids).ok());  // leaves its K and V behind
    const DocumentRows rows = collector->Collect(ids).value();
    EXPECT_EQ(rows.tokens, tokens);
    EXPECT_EQ(rows.hidden.at(kSplit), hidden);
    for (int layer = kSplit + 1; layer < config.layers; ++layer) {
      ASSERT_EQ(rows.kv.at(layer).size(), kv[layer].size());
      for (size_t i = 0; i < kv[layer].size(); ++i) {
        ASSERT_EQ(rows.kv.at(layer)[i], base::F32ToBF16(kv[layer][i]));
      }
      ExpectMass(*pass, layer, q[layer], rows.mass.at(layer));
    }
  }
}

TEST_F(FitTest, WeightsHaveMeanOneOverADocumentAndAreNothingAtItsEnd) {
  const FitOptions options = Options("maps");
  ASSERT_TRUE(Run(options).ok());
  const auto file = RowFile::Open(options.rows_folder + "/00003.safetensors").value();
  const RowFile* const files[] = {file.get()};
  const Samples samples = MakeSamples(files, kSplit, 0, false);  // no threshold: row 0 alone is left out
  ASSERT_EQ(samples.rows.size(), kTokens - 1);
  const std::vector<float> weights = Weights(samples.rows, 2);
  double sum = 0;
  for (int64_t i = 0; i < kTokens - 1; ++i) {
    const int64_t row = i + 1;
    if (row + 8 >= kTokens) {
      EXPECT_EQ(weights[i], 0) << row;
    }
    sum += weights[i];
  }
  EXPECT_NEAR(sum / (kTokens - 8 - 1), 1, 1e-5);
}

TEST_F(FitTest, SamplesTakeTheRowBeforeUnlessItIsAnOutlier) {
  const FitOptions options = Options("maps");
  ASSERT_TRUE(Run(options).ok());
  const auto file = RowFile::Open(options.rows_folder + "/00003.safetensors").value();
  const RowFile* const files[] = {file.get()};
  const int64_t d = model_->config().hidden;
  const float threshold = OutlierThreshold(files, kSplit, 1.05f);
  const Samples samples = MakeSamples(files, kSplit, threshold, true);
  ASSERT_EQ(samples.inputs, 2 * d);
  ASSERT_LT(samples.rows.size(), kTokens - 1) << "a ratio near 1 leaves rows out";
  EXPECT_EQ(samples.x.capacity(), samples.x.size()) << "held once";
  std::set<int32_t> kept;
  for (const RowRef& ref : samples.rows) kept.insert(ref.row);
  const absl::Span<const float> hidden = file->Hidden(kSplit);
  int after_outlier = 0;
  for (size_t i = 0; i < samples.rows.size(); ++i) {
    const int32_t row = samples.rows[i].row;
    const bool before_is_kept = kept.count(row - 1) > 0;
    after_outlier += !before_is_kept;
    const int64_t before = before_is_kept ? row - 1 : row;
    const auto x = absl::MakeConstSpan(samples.x).subspan(i * 2 * d, 2 * d);
    EXPECT_EQ(x.subspan(0, d), hidden.subspan(row * d, d));
    EXPECT_EQ(x.subspan(d, d), hidden.subspan(before * d, d)) << row;
  }
  EXPECT_GT(after_outlier, 0);
}

// Points around three directions, far from the origin.
TEST(Clusters, AreFoundByDirectionAroundTheMean) {
  base::Rng rng(3);
  Samples samples;
  samples.inputs = 4;
  std::vector<int> truth;
  for (int i = 0; i < 300; ++i) {
    const int cluster = static_cast<int>(rng.NextBelow(3));
    truth.push_back(cluster);
    samples.rows.push_back({nullptr, i});
    for (int j = 0; j < 4; ++j) {
      samples.x.push_back(
          static_cast<float>(100 + (j == cluster ? 5 + 5 * rng.NextDouble() : 0) + rng.NextDouble()));
    }
  }
  samples.ends = {300};
  const ridge::Gate gate = FindClusters(samples, 4, 3, 1);
  const Samples unsorted = samples;
  const float* const x = samples.x.data();
  ASSERT_EQ(gate.weight.size(), 12u);
  EXPECT_EQ(FindClusters(samples, 4, 3, 1).weight, gate.weight) << "the same seed";
  SortByMap(gate, samples);
  EXPECT_EQ(samples.x.data(), x) << "in place";
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t row = samples.rows[i].row;
    EXPECT_TRUE(
        std::equal(samples.x.begin() + 4 * i, samples.x.begin() + 4 * i + 4, unsorted.x.begin() + 4 * row))
        << "inputs go with their row";
  }
  ASSERT_EQ(samples.ends.size(), 3u);
  EXPECT_EQ(samples.ends.back(), 300);
  int64_t begin = 0;
  for (int64_t end : samples.ends) {
    ASSERT_GT(end, begin);
    std::set<int> in_group;
    for (int64_t i = begin; i < end; ++i) {
      in_group.insert(truth[samples.rows[i].row]);
      if (i > begin) {
        EXPECT_LT(samples.rows[i - 1].row, samples.rows[i].row) << "their order stays";
      }
    }
    EXPECT_EQ(in_group.size(), 1u);
    begin = end;
  }
}

// Sums of a layer of a mixture grow with the square of the inputs: 8 maps of an 8B model with the previous
// row take some 10 GB, and 64 threads must not ask for 64 times that.
TEST(LayersAtOnce, AreAsManyAsTheBudgetHolds) {
  const auto layers = [](int64_t inputs, int maps, int threads, int64_t groups = 0) {
    Samples samples;
    samples.inputs = inputs;
    samples.ends.resize(maps);
    return LayersAtOnce(samples, /*kv_width=*/inputs / 8, groups, threads);
  };
  EXPECT_EQ(layers(2 * 4096, 8, 64), 1);
  EXPECT_EQ(layers(2 * 576, 8, 2), 2) << "a small model: a layer a thread";
  EXPECT_EQ(layers(2 * 576, 8, 0), 1);
  const int some = layers(2 * 2048, 1, 64);
  EXPECT_GT(some, 1);
  EXPECT_LT(some, 64);
  EXPECT_LT(layers(576, 32, 64, 8), layers(576, 32, 64)) << "sums of groups take room too";
  EXPECT_LE(some * (2 * 2048LL * 2 * 2048 * 2 * 8), kSolveBytes) << "the two sums of squares alone";
}

TEST_F(FitTest, FitsBetterThanIdentityAndStoresItsReport) {
  constexpr int64_t kLonger = 100;
  documents_ = MakeDocuments(kLonger);
  FitOptions options = Options("maps");
  options.rows = 7 * kLonger;
  // The fewest parameters: random text has 700 rows to learn from, and nothing that attention would look for.
  options.mixture = 1, options.previous_row = false, options.normalise = false, options.weigh_rows = false;
  std::vector<std::string> stages;
  FitOptions watched = options;
  watched.progress = [&](const FitProgress& p) {
    if (stages.empty() || stages.back() != Name(p.stage)) stages.emplace_back(Name(p.stage));
    EXPECT_LE(p.done, p.total);
    return absl::OkStatus();
  };
  const auto result = Run(watched);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(stages, ElementsAre("rows", "solve", "report"));
  ASSERT_THAT(result->warnings, SizeIs(1));
  EXPECT_THAT(result->warnings[0], HasSubstr("2560")) << "40 rows for each of 64 inputs";

  const auto set = ridge::MapSet::Load(options.out);
  ASSERT_TRUE(set.ok()) << set.status();
  const ridge::MapSetManifest& m = (*set)->manifest();
  EXPECT_EQ(m.digest, result->sets[0].manifest.digest);
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
  const auto first = RowFile::Open(options.rows_folder + "/00000.safetensors").value();
  const auto second = RowFile::Open(options.rows_folder + "/00001.safetensors").value();
  const RowFile* const held_out[] = {first.get(), second.get()};
  const auto again = HeldOutReport(*model_, *maps, held_out, {.chunk_rows = 64});
  ASSERT_TRUE(again.ok()) << again.status();
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR((*again)[i].k_cosine, m.report[i].k_cosine, 1e-6);
}

// All that a default fit does, on rows of which nothing is left over when it is done right.
TEST_F(FitTest, TheDefaultsFindALawOfDirections) {
  documents_ = MakeDocuments(200);
  FitOptions options = Options("maps");
  options.rows = 7 * 200;
  options.outlier_threshold = 1e9f;  // scales are as they are
  WriteLawfulRows(options);
  const auto k_residual = [&](auto change) {
    FitOptions changed = options;
    change(changed);
    const auto result = Run(changed);
    EXPECT_TRUE(result.ok()) << result.status();
    return result->sets[0].manifest.report[0].k_residual;
  };
  EXPECT_LT(k_residual([](FitOptions&) {}), 0.01);
  EXPECT_GT(k_residual([](FitOptions& o) { o.normalise = false; }), 0.1);
  EXPECT_GT(k_residual([](FitOptions& o) { o.previous_row = false; }), 0.1);
  EXPECT_GT(k_residual([](FitOptions& o) { o.mixture = 1; }), 0.1);
}

TEST_F(FitTest, RefusesTextThatTheMapsWillBeMeasuredOn) {
  documents_[3].file_digest = "a book";
  FitOptions first = Options("first");
  ASSERT_TRUE(Run(first).ok());
  FitOptions options = first;
  options.measured_text = {{"another", "heldout/another.txt"}, {"a book", "heldout/book.txt"}};
  const absl::Status own = Run(options).status();
  EXPECT_EQ(ReasonOf(own), "FIT_HELDOUT");
  EXPECT_THAT(std::string(own.message()), HasSubstr("heldout/book.txt"));
  documents_ = MakeDocuments(40);
  options.out += "2", options.rows_folder += "2";
  options.merge = {first.rows_folder};
  int steps = 0;
  options.progress = [&](const FitProgress&) { return ++steps, absl::OkStatus(); };
  const absl::Status merged = Run(options).status();
  EXPECT_EQ(ReasonOf(merged), "FIT_HELDOUT");
  EXPECT_EQ(steps, 0) << "refused before the model ran";
  EXPECT_THAT(std::string(merged.message()), HasSubstr("00003.safetensors"));
  options.measured_text.erase("a book");
  EXPECT_TRUE(Run(options).ok());
}

TEST_F(FitTest, Int8LosesLittle) {
  FitOptions options = Options("int8");
  const auto bf16 = Run(options);
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  options.dtype = "int8";  // from the rows that are there
  const auto int8 = Run(options);
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_EQ(int8->resumed_documents, 9);
  EXPECT_EQ(ridge::MapSet::Load(options.out).value()->manifest().dtype, "int8");
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NE(int8->sets[0].manifest.report[i].k_cosine, bf16->sets[0].manifest.report[i].k_cosine);
    EXPECT_NEAR(int8->sets[0].manifest.report[i].k_cosine, bf16->sets[0].manifest.report[i].k_cosine, 1e-3);
  }
}

TEST_F(FitTest, ResumedAfterAKillEqualsUninterrupted) {
  const FitOptions whole = Options("whole");
  ASSERT_TRUE(Run(whole).ok());
  for (int64_t stop_at : {1, 5, 9}) {
    FitOptions killed = Options(absl::StrCat("killed", stop_at));
    killed.rows_folder.clear();
    killed.progress = [&](const FitProgress& p) {
      return p.stage == FitStage::kRows && p.done == stop_at ? absl::CancelledError("killed")
                                                             : absl::OkStatus();
    };
    EXPECT_EQ(Run(killed).status().code(), absl::StatusCode::kCancelled);
    EXPECT_FALSE(std::filesystem::exists(killed.out + "/ridgefill.json"));
    killed.progress = nullptr;
    const auto resumed = Run(killed);
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_EQ(resumed->resumed_documents, stop_at);
    EXPECT_EQ(base::ReadFile(killed.out + "/ridgefill.json").value(),
              base::ReadFile(whole.out + "/ridgefill.json").value());
    EXPECT_FALSE(std::filesystem::exists(killed.out + "/rows")) << "of no use once the maps are there";
  }
}

// <out>/rows may hold files of someone else, or rows that were kept: they stay.
TEST_F(FitTest, RemovesNoFileThatItDidNotTake) {
  FitOptions options = Options("maps");
  options.rows_folder.clear();
  const std::string rows = options.out + "/rows", mine = rows + "/notes.txt",
                    kept = rows + "/00009.safetensors";
  std::filesystem::create_directories(rows + "/more");
  ASSERT_TRUE(base::WriteFileAtomically(mine, "mine").ok());
  ASSERT_TRUE(base::WriteFileAtomically(kept, "of a longer run").ok());
  ASSERT_TRUE(Run(options).ok());
  EXPECT_EQ(base::ReadFile(mine).value(), "mine");
  EXPECT_EQ(base::ReadFile(kept).value(), "of a longer run");
  EXPECT_TRUE(std::filesystem::exists(rows + "/more"));
  EXPECT_FALSE(std::filesystem::exists(rows + "/00000.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(rows + "/00008.safetensors"));
}

TEST_F(FitTest, RemovesNoRowsOfMoreSplits) {
  FitOptions options = Options("maps");
  options.rows_folder = options.out + "/rows";
  options.splits = {1, 2};
  ASSERT_TRUE(Run(options).ok());
  options.rows_folder.clear();
  options.splits = {1};
  ASSERT_TRUE(Run(options).ok());
  EXPECT_TRUE(std::filesystem::exists(options.out + "/rows/00000.safetensors")) << "they took hours, perhaps";
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

TEST_F(FitTest, MergedRowsEqualASinglePass) {
  const FitOptions whole = Options("whole");
  const auto all_at_once = Run(whole);
  ASSERT_TRUE(all_at_once.ok());
  // Two runs over halves of the same text, held-out documents apart.
  const std::vector<Document> all = documents_;
  FitOptions first = Options("first"), second = Options("second");
  first.held_out_documents = second.held_out_documents = 1;
  second.corpus = "more";
  documents_ = {all[0], all[2], all[3], all[4]};
  ASSERT_TRUE(Run(first).ok());
  documents_ = {all[1], all[5], all[6], all[7], all[8]};
  second.merge = {first.rows_folder};
  const auto merged = Run(second);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->sets[0].manifest.fit_rows, all_at_once->sets[0].manifest.fit_rows);
  EXPECT_EQ(merged->sets[0].manifest.outlier_threshold, all_at_once->sets[0].manifest.outlier_threshold);
  EXPECT_EQ(merged->sets[0].manifest.fit_corpus, "more + made up");
  // Its clusters begin at other rows, so the maps differ; how well they do hardly.
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(merged->sets[0].manifest.report[i].k_cosine, all_at_once->sets[0].manifest.report[i].k_cosine,
                0.02);
  }
}

TEST_F(FitTest, RefusesRowsOfSomethingElse) {
  const FitOptions options = Options("maps");
  ASSERT_TRUE(Run(options).ok());
  const auto refused = [&](auto change, absl::string_view reason) {
    FitOptions other = options;
    change(other);
    const absl::Status status = Run(other).status();
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(".safetensors"));
  };
  refused([](FitOptions& o) { o.splits = {2}; }, "ROWS_OTHER_SPLITS");
  refused([](FitOptions& o) { o.held_out_documents = 3; }, "ROWS_OTHER_DOCUMENTS");
  refused([](FitOptions& o) { o.mass_distance = 9; }, "ROWS_OTHER_DISTANCE");
  refused(
      [&](FitOptions& o) {
        o.out = folder_ + "/fresh";
        o.rows_folder = o.out + ".rows";
        o.splits = {2};
        o.merge = {options.rows_folder};
      },
      "ROWS_OTHER_SPLITS");
  documents_[4].ids[7] ^= 1;
  refused([](FitOptions&) {}, "ROWS_OTHER_DOCUMENTS");
}

TEST_F(FitTest, RefusesToCountDocumentsTwice) {
  const FitOptions first = Options("first");
  ASSERT_TRUE(Run(first).ok());
  FitOptions own = Options("own");
  own.merge = {first.rows_folder};
  int steps = 0;
  own.progress = [&](const FitProgress&) { return ++steps, absl::OkStatus(); };
  EXPECT_EQ(ReasonOf(Run(own).status()), "ROWS_SAME_DOCUMENTS");
  documents_[0].ids[0] ^= 1;  // one document of its own does not help
  own.out += "2", own.rows_folder += "2";
  EXPECT_EQ(ReasonOf(Run(own).status()), "ROWS_SAME_DOCUMENTS");
  own.merge = {folder_};
  EXPECT_EQ(ReasonOf(Run(own).status()), "ROWS_EMPTY");
  EXPECT_EQ(steps, 0) << "refused before the model ran";
}

// The same file cut into documents of another length: no two are the same, but their text is.
TEST_F(FitTest, RefusesTextThatIsThereInOtherDocuments) {
  const auto cut = [&](int64_t tokens, int64_t begin, const std::string& digest) {
    std::vector<Document> documents = MakeDocuments(tokens);
    for (size_t i = 0; i < documents.size(); ++i) {
      documents[i].file = "novel.txt";
      documents[i].file_digest = digest;
      documents[i].begin = begin + static_cast<int64_t>(i) * tokens;
      documents[i].ids[0] ^= begin > 0 ? 1 : 0;  // documents of one length are other ones too
    }
    return documents;
  };
  documents_ = cut(kTokens, 0, "a file");
  const FitOptions first = Options("first");
  ASSERT_TRUE(Run(first).ok());
  int steps = 0;
  const auto merged = [&](const std::string& name, int64_t tokens, int64_t begin, const std::string& digest) {
    FitOptions options = Options(name);
    options.merge = {first.rows_folder};
    documents_ = cut(tokens, begin, digest);
    steps = 0;
    options.progress = [&](const FitProgress&) { return ++steps, absl::OkStatus(); };
    return Run(options).status();
  };
  const absl::Status refused = merged("shorter", 40, 0, "a file");
  EXPECT_EQ(ReasonOf(refused), "ROWS_SAME_TEXT");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("novel.txt"));
  EXPECT_EQ(ReasonOf(merged("last_token", kTokens, 9 * kTokens - 1, "a file")), "ROWS_SAME_TEXT");
  EXPECT_EQ(steps, 0) << "refused before the model ran";
  EXPECT_TRUE(merged("behind", kTokens, 9 * kTokens, "a file").ok()) << "the text that follows";
  EXPECT_TRUE(merged("other", 40, 0, "another file of this name").ok());
}

TEST_F(FitTest, SeveralSplitsFromOnePassEqualEachAlone) {
  const FitOptions alone = Options("alone");
  ASSERT_TRUE(Run(alone).ok());
  FitOptions both = Options("both");
  both.splits = {1, 2};
  std::map<FitStage, FitProgress> last;
  both.progress = [&](const FitProgress& p) {
    EXPECT_GT(p.done, last[p.stage].done) << Name(p.stage);
    if (last[p.stage].total > 0) {
      EXPECT_EQ(p.total, last[p.stage].total);
    }
    last[p.stage] = p;
    return absl::OkStatus();
  };
  const auto result = Run(both);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_THAT(result->sets, SizeIs(2));
  for (const auto& [stage, progress] : last) EXPECT_EQ(progress.done, progress.total) << Name(stage);
  EXPECT_EQ(last[FitStage::kSolve].total, 2 + 1) << "the late layers of both splits";
  EXPECT_EQ(result->sets[0].folder, both.out + "/split-1");
  EXPECT_EQ(result->sets[1].manifest.split, 2);
  EXPECT_EQ(base::ReadFile(both.out + "/split-1/ridgefill.json").value(),
            base::ReadFile(alone.out + "/ridgefill.json").value());
  std::string warning;
  const auto second = ridge::MapSet::Load(result->sets[1].folder).value();
  EXPECT_TRUE(ridge::CheckCompatible(second->manifest(), identity_, 2, &warning).ok());
  // Rows of both serve a run of one of them.
  FitOptions later = Options("later");
  later.splits = {2};
  later.rows_folder = both.rows_folder;
  const auto of_kept = Run(later);
  ASSERT_TRUE(of_kept.ok()) << of_kept.status();
  EXPECT_EQ(of_kept->resumed_documents, static_cast<int64_t>(documents_.size()));
  EXPECT_EQ(base::ReadFile(later.out + "/ridgefill.json").value(),
            base::ReadFile(both.out + "/split-2/ridgefill.json").value());
}

TEST_F(FitTest, DocumentsTooShortToWeighRowsAreRefusedNotFitted) {
  FitOptions options = Options("maps");
  options.mass_distance = kTokens;
  EXPECT_EQ(ReasonOf(Run(options).status()), "FIT_NO_ROWS");
  options.weigh_rows = false;
  EXPECT_TRUE(Run(options).ok());
}

TEST_F(FitTest, RefusesOptionsThatMakeNoSense) {
  const auto reason = [&](auto change) {
    FitOptions options = Options("never");
    change(options);
    return ReasonOf(Run(options).status());
  };
  EXPECT_EQ(reason([](FitOptions& o) { o.splits = {0}; }), "FIT_SPLIT");
  EXPECT_EQ(reason([](FitOptions& o) { o.splits = {3}; }), "FIT_SPLIT");
  EXPECT_EQ(reason([](FitOptions& o) { o.splits = {}; }), "FIT_SPLIT");
  EXPECT_EQ(reason([](FitOptions& o) { o.splits = {2, 1}; }), "FIT_SPLIT");
  EXPECT_EQ(reason([](FitOptions& o) { o.dtype = "f16"; }), "FIT_DTYPE");
  EXPECT_EQ(reason([](FitOptions& o) { o.out = ""; }), "FIT_OUT");
  EXPECT_EQ(reason([](FitOptions& o) { o.rows = 0; }), "FIT_ROWS");
  EXPECT_EQ(reason([](FitOptions& o) { o.held_out_documents = 0; }), "FIT_CORPUS");
  EXPECT_EQ(reason([](FitOptions& o) { o.held_out_documents = 9; }), "FIT_CORPUS");
  EXPECT_EQ(reason([](FitOptions& o) { o.outlier_ratio = 0.5f; }), "FIT_OUTLIER_RATIO");
  EXPECT_EQ(reason([](FitOptions& o) { o.outlier_threshold = NAN; }), "FIT_OUTLIER_THRESHOLD");
  EXPECT_EQ(reason([](FitOptions& o) { o.tail_default = 3; }), "FIT_TAIL");
  EXPECT_EQ(reason([](FitOptions& o) { o.min_bulk = -1; }), "FIT_TAIL");
  EXPECT_EQ(reason([](FitOptions& o) { o.mixture = 0; }), "FIT_MIXTURE");
  documents_[3].ids.resize(1);
  EXPECT_EQ(reason([](FitOptions&) {}), "FIT_DOCUMENT_TOKENS");
  documents_[3].ids.resize(model_->config().context + 1);
  EXPECT_EQ(reason([](FitOptions&) {}), "FIT_DOCUMENT_TOKENS");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/never"));
}

}  // namespace
}  // namespace ridgefill::fit
