// The figures that the method is judged by, on a real model, against those of a plain PyTorch version over
// the same documents (tests/data/eval/quality_reference.json). Minutes of two cores, so only when asked for,
// with a folder for maps and rows (3 GB), where an interrupted fit goes on:
//   RIDGEFILL_SLOW_TESTS=/tmp/quality build/release/tests/quality_test
#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "engine/base/file.h"
#include "engine/eval/bootstrap.h"
#include "engine/eval/text.h"
#include "engine/fit/fit.h"
#include "engine/formats/json.h"
#include "engine/ridge/device_maps.h"
#include "tests/engine/eval/smollm.h"

namespace ridgefill {
namespace {

using testing_support::ListedWindows;

class QualityTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("RIDGEFILL_SLOW_TESTS") == nullptr)
      GTEST_SKIP() << "minutes long: set RIDGEFILL_SLOW_TESTS to a folder";
    if (!testing_support::SmolLmIsThere()) GTEST_SKIP() << "no " << testing_support::SmolLmPath();
    reference_ = formats::ParseJson(base::ReadFile("tests/data/eval/quality_reference.json").value()).value();
    model_ = testing_support::LoadSmolLm();
  }

  std::string Out(const std::string& name) const {
    return std::string(std::getenv("RIDGEFILL_SLOW_TESTS")) + "/" + name;
  }

  // One ridge of one row without weights, as the reference's.
  static fit::FitOptions Plain() {
    fit::FitOptions options;
    options.mixture = 1, options.previous_row = false, options.normalise = false, options.weigh_rows = false;
    return options;
  }

  fit::FitResult Fit(const std::vector<fit::Document>& documents, fit::FitOptions options,
                     const std::string& rows, const std::string& out) {
    options.splits = {18};
    options.out = Out(out);
    options.rows_folder = Out(rows);
    const auto start = std::chrono::steady_clock::now();
    options.progress = [&](const fit::FitProgress& p) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      std::fprintf(stderr, "%8.1f s  %s %d/%d  %d tokens\n", elapsed.count(),
                   std::string(fit::Name(p.stage)).c_str(), static_cast<int>(p.done),
                   static_cast<int>(p.total), static_cast<int>(p.tokens));
      return absl::OkStatus();
    };
    auto result = fit::FitMaps(*model_.model, model_.identity, documents, options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : fit::FitResult();
  }

  // Records of the paired loss over the reference's documents.
  std::vector<eval::Record> Evaluate(const ridge::MapSet& set, const std::vector<eval::Fill>& fills) {
    const auto maps = ridge::DeviceMaps::Load(set, *model_.backend).value();
    std::vector<std::vector<int32_t>> documents;
    for (fit::Document& document : ListedWindows(*model_.tokenizer, "heldout", "nll")) {
      documents.push_back(std::move(document.ids));
    }
    eval::TextOptions options;
    options.variants.clear();
    for (eval::Fill fill : fills) options.variants.push_back({fill});
    options.distant = options.novel = false;
    const auto subject = eval::Subject::Create(*model_.model, *maps, {.max_tokens = 4096}).value();
    std::vector<eval::Record> records;
    eval::RunOptions run;
    run.progress = [](const eval::Progress& progress) {
      std::fprintf(stderr, "paired NLL: %d documents\n", static_cast<int>(progress.done));
      return absl::OkStatus();
    };
    run.emit = [&](const eval::Record& record) {
      std::printf("%s\n", record.dump().c_str());
      records.push_back(record);
      return absl::OkStatus();
    };
    const absl::Status status =
        eval::RunMeasure(eval::TextMeasure::Create(std::move(documents), options).value(), *subject, run);
    EXPECT_TRUE(status.ok()) << status;
    return records;
  }

  formats::Json reference_;
  testing_support::SmolLm model_;
};

// The reference's own documents: 21 to fit, 6 held out.
TEST_F(QualityTest, HeldOutErrorsAreWithinFivePercentOfTheReference) {
  std::vector<fit::Document> documents = ListedWindows(*model_.tokenizer, "calibration", "held_out");
  const int64_t held_out = static_cast<int64_t>(documents.size());
  for (fit::Document& document : ListedWindows(*model_.tokenizer, "calibration", "fit")) {
    documents.push_back(std::move(document));
  }
  fit::FitOptions options = Plain();
  options.rows = 1 << 20;
  options.held_out_documents = held_out;
  const fit::FitResult result = Fit(documents, options, "reference_rows", "reference_documents");
  EXPECT_EQ(result.sets[0].manifest.report.size(), 11u);
  for (const ridge::LayerReport& r : result.sets[0].manifest.report) {
    const formats::Json& want = reference_["held_out"][std::to_string(r.layer)];
    std::printf(
        "layer %d  K cos %.4f (%.4f)  V err %.4f (%.4f)  identity %.4f (%.4f) %.4f (%.4f)  penalties %g %g "
        "(%g %g)\n",
        r.layer, r.k_cosine, want["K_cos"].get<double>(), r.v_error, want["V_err"].get<double>(),
        r.identity_k_cosine, want["id_K_cos"].get<double>(), r.identity_v_error,
        want["id_V_err"].get<double>(), r.k_penalty, r.v_penalty, want["lamK"].get<double>(),
        want["lamV"].get<double>());
    EXPECT_LE(1 - r.k_cosine, 1.05 * (1 - want["K_cos"].get<double>())) << "layer " << r.layer;
    EXPECT_LE(r.v_error, 1.05 * want["V_err"].get<double>()) << "layer " << r.layer;
  }
}

// Judged on 16 documents of 4,096 tokens.
TEST_F(QualityTest, PairedNllIsWithinTheReferenceInterval) {
  const auto calibration = fit::LoadCorpus(*model_.tokenizer, "tests/data/corpus/calibration", {});
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  Fit(*calibration, Plain(), "rows", "plain");
  const auto set = ridge::MapSet::Load(Out("plain"));
  ASSERT_TRUE(set.ok()) << set.status();
  for (const ridge::LayerReport& r : (*set)->manifest().report) {
    std::printf("layer %d  K cos %.4f  V err %.4f  identity %.4f %.4f\n", r.layer, r.k_cosine, r.v_error,
                r.identity_k_cosine, r.identity_v_error);
  }
  const std::vector<eval::Record> records = Evaluate(**set, {eval::Fill::kRidge, eval::Fill::kIdentity});
  const formats::Json& want = reference_["paired_dnll"];
  for (const eval::Record& r : records) {
    const std::string fill = r["fill"], window = r["window"];
    const formats::Json& interval = want[fill][window];
    EXPECT_GE(r["mean"].get<double>(), interval[1].get<double>()) << fill << " " << window;
    EXPECT_LE(r["mean"].get<double>(), interval[2].get<double>()) << fill << " " << window;
  }

  // A negative control on the same documents. One position is told for docs/method.md: all filled keys move
  // together, so that only their distance to the tail changes, and the loss hardly sees that.
  for (const int shift : {1, 32}) {
    std::vector<ridge::LayerMap> shifted;
    for (int layer = 19; layer < (*set)->manifest().layers; ++layer) {
      shifted.push_back((*set)->ReadLayer(layer).value());
      testing_support::ShiftKeyPositions(*model_.model, shift, shifted.back());
    }
    ASSERT_TRUE(ridge::SaveMapSet(Out("shifted"), (*set)->manifest(), shifted).ok());
    const auto off = Evaluate(**ridge::MapSet::Load(Out("shifted")), {eval::Fill::kRidge});
    for (size_t w = 0; w < off.size(); ++w) {
      const auto values = records[w]["values"].get<std::vector<double>>();
      auto more = off[w]["values"].get<std::vector<double>>();
      for (size_t i = 0; i < more.size(); ++i) more[i] -= values[i];
      const eval::Interval cost = eval::Bootstrap(more);
      const std::string window = off[w]["window"];
      std::printf("%d positions off cost %+.5f [%+.5f, %+.5f] nats in window %s\n", shift, cost.mean,
                  cost.low, cost.high, window.c_str());
      // The tail's first rows stand next to the bulk; forced tokens are 512 and more away.
      if (shift == 32 && window == "tail") {
        EXPECT_GT(cost.low, 0);
      }
    }
  }
}

// Fitted as `ridgefill fit` does by default: less than 60 % of what plain ridge costs on the tail, 45 %
// behind the prompt.
TEST_F(QualityTest, TheDefaultFitCostsMuchLess) {
  const auto calibration = fit::LoadCorpus(*model_.tokenizer, "tests/data/corpus/calibration", {});
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  Fit(*calibration, {}, "rows", "defaults");
  const auto set = ridge::MapSet::Load(Out("defaults"));
  ASSERT_TRUE(set.ok()) << set.status();
  const formats::Json& plain = reference_["paired_dnll"]["ridge"];
  for (const eval::Record& r : Evaluate(**set, {eval::Fill::kRidge})) {
    const std::string window = r["window"];
    const double share = window == "continuation" ? 0.45 : 0.6;
    EXPECT_LT(r["mean"].get<double>(), share * plain[window][0].get<double>()) << window;
  }
}

}  // namespace
}  // namespace ridgefill
