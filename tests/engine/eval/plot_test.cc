#include "engine/eval/plot.h"

#include <gmock/gmock.h>

#include "absl/strings/str_split.h"

namespace ridgefill::eval {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

int Count(const std::string& text, const std::string& part) {
  return static_cast<int>(std::vector<std::string>(absl::StrSplit(text, part)).size()) - 1;
}

Record Needle(const char* mode, const char* fill, int length, double mean) {
  return {{"measure", "needle"},
          {"model", "m"},
          {"maps", "abc"},
          {"split", 18},
          {"tail", 512},
          {"mode", mode},
          {"fill", fill},
          {"selection", "none"},
          {"task", "single"},
          {"evidence", "bulk"},
          {"length", length},
          {"mean", mean},
          {"low", mean / 2},
          {"high", 1.0},
          {"by_depth",
           {{{"from", 0.0}, {"to", 0.2}, {"items", 0}, {"mean", 0.0}, {"low", 0.0}, {"high", 0.0}},
            {{"from", 0.2}, {"to", 0.4}, {"items", 3}, {"mean", mean}, {"low", 0.0}, {"high", 1.0}}}}};
}

TEST(Plot, AChartHasAMarkForEachPointAndANameForEachSeries) {
  const Chart chart = {
      "Title <&>", "x", "y", {{"one", {{"a", 1, 0.5, 1.5}, {"b", 2, 1, 3}}}, {"two", {{"b", -1, -2, 0}}}}};
  const std::string svg = ToSvg(chart);
  EXPECT_EQ(svg, ToSvg(chart));
  EXPECT_THAT(svg, HasSubstr("Title &lt;&amp;&gt;"));
  EXPECT_EQ(Count(svg, "r=\"3.5\""), 3) << "points";
  EXPECT_EQ(Count(svg, ">one<"), 1);
  EXPECT_EQ(Count(svg, ">a<"), 1);
  EXPECT_EQ(Count(svg, ">b<"), 1) << "one category for both series";
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(ToSvg({"empty", "x", "y", {{"one", {{"a", 0, 0, 0}}}}}), Not(HasSubstr("nan")));
}

TEST(Plot, ReadsWholeLinesAlone) {
  EXPECT_THAT(ParseRecords("{\"a\":1}\n{\"a\":2}\n{\"a\":").value(), SizeIs(2));
  EXPECT_THAT(std::string(ParseRecords("{}\nnonsense\n").status().message()), testing::HasSubstr("line 2"));
}

TEST(Plot, RecordsOfOneTaskMakeOneChart) {
  const Record records[] = {Needle("EXACT", "none", 1024, 1), Needle("SPEED", "ridge", 1024, 0.9),
                            Needle("EXACT", "none", 2048, 0.8), Needle("SPEED", "ridge", 2048, 0.7)};
  const auto charts = ChartsOf(records);
  ASSERT_THAT(charts, SizeIs(3)) << "by length, and by depth for each of two lengths";
  EXPECT_EQ(charts[0].first, "needle-single-bulk-s18");
  ASSERT_THAT(charts[0].second.series, SizeIs(2));
  EXPECT_EQ(charts[0].second.series[0].name, "exact");
  EXPECT_EQ(charts[0].second.series[1].name, "ridge");
  EXPECT_EQ(charts[0].second.series[1].points[1].x, "2048/512");
  EXPECT_THAT(ToSvg(charts[0].second), HasSubstr(">maps abc<"));
  EXPECT_EQ(charts[1].first, "needle-single-bulk-s18-t512-n1024");
  EXPECT_EQ(charts[0].second.series[1].points[1].mean, 0.7);
  ASSERT_THAT(charts[1].second.series[0].points, SizeIs(1)) << "no item lies in the first fifth";
}

Record Swept(int split, const char* fill, double share, double ratio, double mean) {
  return {{"measure", "sweep"},  {"model", "m"},
          {"split", split},      {"mode", share == 0 ? "SPEED" : "QUALITY"},
          {"fill", fill},        {"selection", share == 0 ? "none" : "attention"},
          {"share", share},      {"tail", 512},
          {"length", 4096},      {"window", "continuation"},
          {"mean", mean},        {"low", mean - 0.25},
          {"high", mean + 0.25}, {"ttft_ratio", ratio}};
}

const Series* Find(const Chart& chart, const std::string& name) {
  for (const Series& series : chart.series) {
    if (series.name == name) return &series;
  }
  return nullptr;
}

TEST(Plot, ASweepIsDrawnAsLossAgainstTimeWithTheBestJoined) {
  Record untimed = Swept(14, "ridge", 0, 0.1, 0);
  untimed.erase("ttft_ratio");
  const Record records[] = {Swept(15, "ridge", 0, 0.5, 1),         Swept(18, "ridge", 0, 0.625, 0.5),
                            Swept(18, "identity", 0, 0.6, 8),      Swept(15, "ridge", 0.05, 0.75, 0.75),
                            Swept(18, "ridge", 0.05, 0.875, 0.25), untimed};
  const auto charts = ChartsOf(records);
  ASSERT_THAT(charts, SizeIs(2));
  EXPECT_EQ(charts[0].first, "pareto-continuation-n4096");
  EXPECT_EQ(charts[1].first, "pareto-continuation-n4096-identity");
  const Chart& chart = charts[0].second;
  EXPECT_TRUE(chart.numeric);
  EXPECT_EQ(Find(chart, "identity"), nullptr) << "its loss dwarfs the rest";
  const Series* const best = Find(chart, "best");
  ASSERT_NE(best, nullptr);
  ASSERT_THAT(best->points, SizeIs(3)) << "split 15 with a share is beaten by split 18 without";
  EXPECT_EQ(best->points[0].x, "15/512");
  EXPECT_EQ(best->points[1].x, "18/512");
  EXPECT_EQ(best->points[2].x, "18/512 +0.05");
  EXPECT_EQ(best->points[2].at, 0.875);
  ASSERT_NE(Find(chart, "ridge, attention 0.05"), nullptr);
  EXPECT_THAT(Find(chart, "ridge, attention 0.05")->points, SizeIs(2));
  EXPECT_FALSE(Find(chart, "ridge")->line);
  EXPECT_EQ(Find(chart, "exact")->points[0].at, 1);
  ASSERT_NE(Find(charts[1].second, "identity"), nullptr);
  EXPECT_THAT(Find(charts[1].second, "best")->points, SizeIs(3));
}

// Times of another program, machine or prompt are not to be compared.
TEST(Plot, SweepsOfDifferentMachinesAreDrawnApart) {
  const auto charts = [](auto change) {
    Record records[] = {Swept(15, "ridge", 0, 0.5, 1), Swept(18, "ridge", 0, 0.1, 0.1)};
    for (Record& r : records) {
      r["backend"] = "cpu", r["isa"] = "avx512", r["commit"] = "abc";
      r["ttft"] = {{"threads", 2}, {"prompt_tokens", 3840}};
    }
    change(records[1]);
    return ChartsOf(records).size();
  };
  EXPECT_EQ(charts([](Record&) {}), 1u);
  EXPECT_EQ(charts([](Record& r) { r["backend"] = "cuda"; }), 2u);
  EXPECT_EQ(charts([](Record& r) { r["isa"] = "avx2"; }), 2u);
  EXPECT_EQ(charts([](Record& r) { r["commit"] = "def"; }), 2u);
  EXPECT_EQ(charts([](Record& r) { r["ttft"]["threads"] = 16; }), 2u);
  EXPECT_EQ(charts([](Record& r) { r["ttft"]["prompt_tokens"] = 1000; }), 2u);
}

// From 0.5 to 1 on the x axis: 80 to 550 on paper.
TEST(Plot, NumbersStandWhereTheyBelong) {
  const Record records[] = {Swept(15, "ridge", 0, 0.5, 1), Swept(18, "ridge", 0, 0.75, 0.5)};
  const std::string svg = ToSvg(ChartsOf(records)[0].second);
  EXPECT_EQ(Count(svg, "<circle cx=\"80.0\""), 2) << "once by itself, once among the best";
  EXPECT_EQ(Count(svg, "<circle cx=\"315.0\""), 2);
  EXPECT_EQ(Count(svg, "<circle cx=\"550.0\""), 1) << "exact";
  EXPECT_EQ(Count(svg, ">15/512<"), 1) << "named where it is joined alone";
  EXPECT_EQ(Count(svg, "stroke-width=\"2\""), 1) << "one line";
  EXPECT_EQ(Count(svg, ">0.7<"), 1) << "a mark of the axis";
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(Plot, DistanceAndSpliceAreDrawnFromTheirOwnFigures) {
  const Record figures = {{"mean", 0.5}, {"low", 0.4}, {"high", 0.6}};
  Record bucket = figures, next = figures;
  bucket["from"] = 64, next["from"] = 128;
  const Record nll = {{"measure", "nll"},    {"split", 18},
                      {"tail", 512},         {"length", 4096},
                      {"mode", "SPEED"},     {"fill", "ridge"},
                      {"selection", "none"}, {"model", "m"},
                      {"window", "tail"},    {"by_distance", {bucket, next}}};
  const Record splice = {{"measure", "splice"}, {"split", 18},         {"length", 2048}, {"window", "tail"},
                         {"model", "m"},        {"layers", 20},        {"half", "k"},    {"mean", 9.0},
                         {"low", 8.0},          {"high", 10.0},        {"kl", figures},  {"tail", 256},
                         {"mode", "SPEED"},     {"selection", "none"}, {"fill", "ridge"}};
  const Record records[] = {nll, splice};
  const auto charts = ChartsOf(records);
  ASSERT_THAT(charts, SizeIs(2));
  EXPECT_EQ(charts[0].first, "distance-s18-t512-n4096");
  EXPECT_THAT(charts[0].second.series[0].points, SizeIs(2));
  EXPECT_EQ(charts[1].first, "splice-tail-s18-t256-n2048");
  EXPECT_EQ(charts[1].second.series[0].points[0].mean, 0.5);
  EXPECT_EQ(charts[1].second.series[0].name, "k");
}

// Of another map set, model or choice of items: a chart of its own; of another share: a series; once more:
// the later one.
TEST(Plot, WhatCannotBeComparedIsNotJoined) {
  Record other_maps = Needle("SPEED", "ridge", 1024, 0.5), other_seed = other_maps, other_tail = other_maps;
  other_maps["maps"] = "def";
  other_seed["seed"] = 8;
  other_tail["tail"] = 256;
  Record five = Needle("QUALITY", "ridge", 1024, 0.6), ten = five;
  five["selection"] = ten["selection"] = "attention";
  five["share"] = 0.05, ten["share"] = 0.1;
  const Record records[] = {
      Needle("SPEED", "ridge", 1024, 0.9), other_maps, other_seed, other_tail, five, ten,
      Needle("SPEED", "ridge", 1024, 0.8)};
  std::vector<std::string> by_length;
  for (const auto& [name, chart] : ChartsOf(records)) {
    if (name.find("-n1024") == std::string::npos) by_length.push_back(name);
    if (name != "needle-single-bulk-s18") continue;
    ASSERT_THAT(chart.series, SizeIs(3));
    EXPECT_EQ(chart.series[1].name, "ridge, attention 0.05");
    EXPECT_EQ(chart.series[2].name, "ridge, attention 0.1");
    ASSERT_THAT(chart.series[0].points, SizeIs(2)) << "two tails";
    EXPECT_EQ(chart.series[0].points[0].mean, 0.8) << "the last record of a point";
  }
  EXPECT_THAT(by_length, testing::ElementsAre("needle-single-bulk-s18", "needle-single-bulk-s18-2",
                                              "needle-single-bulk-s18-3"));
}

TEST(Plot, NamesTheLineAndTheFieldThatItCannotDraw) {
  const Record good = Needle("SPEED", "ridge", 1024, 0.9);
  const auto refused = [&](auto change) {
    Record bad = good;
    change(bad);
    const absl::Status status = ParseRecords(good.dump() + "\n" + bad.dump() + "\n").status();
    return std::string(status.message());
  };
  EXPECT_TRUE(ParseRecords(good.dump() + "\n").ok());
  EXPECT_THAT(refused([](Record& r) { r.erase("mean"); }), HasSubstr("line 2 is no record of a measure: its "
                                                                     "field mean"));
  EXPECT_THAT(refused([](Record& r) { r["low"] = nullptr; }), HasSubstr("field low"));
  EXPECT_THAT(refused([](Record& r) { r["length"] = Record::array(); }), HasSubstr("field length"));
  EXPECT_THAT(refused([](Record& r) { r["by_depth"] = 3; }), HasSubstr("field by_depth"));
  EXPECT_THAT(refused([](Record& r) { r["by_depth"][1].erase("high"); }), HasSubstr("field by_depth/high"));
  EXPECT_THAT(refused([](Record& r) { r["by_depth"][1] = 7; }), HasSubstr("field by_depth/mean"));
  EXPECT_THAT(refused([](Record& r) {
                r["measure"] = "splice", r["window"] = "tail", r["layers"] = 1, r["half"] = "k";
              }),
              HasSubstr("field kl"));
  EXPECT_THAT(refused([](Record& r) { r["measure"] = "nll", r["by_distance"] = Record::array({1}); }),
              HasSubstr("field by_distance/mean"));
}

}  // namespace
}  // namespace ridgefill::eval
