#include "services/common/config.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "services/common/call_context.h"
#include "services/common/memory.h"
#include "services/common/model_files.h"

namespace ridgefill::common {
namespace {

using config::v1::DecodeConfig;
using config::v1::PrefillConfig;
using config::v1::RouterConfig;
using config::v1::ServeConfig;
using testing::HasSubstr;

std::string FieldOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail.has_value() ? detail->field : "";
}

TEST(ConfigTest, DefaultsAreThoseOfTheProtoAndAreValid) {
  DecodeConfig decode;
  decode.mutable_source()->set_model("m");
  FillDefaults(decode);
  EXPECT_EQ(decode.listen().address(), "127.0.0.1:7402");
  EXPECT_EQ(decode.kv_memory_mb(), 1024);
  EXPECT_EQ(decode.max_running(), 32);
  EXPECT_EQ(decode.transport(), "grpc");
  EXPECT_TRUE(Validate(decode).ok()) << Validate(decode);

  RouterConfig router;
  router.mutable_source()->set_model("m");
  router.add_decode_workers("localhost:1");
  FillDefaults(router);
  EXPECT_EQ(router.policy().auto_min_tokens(), 2048);
  EXPECT_EQ(router.policy().share(), 0.25f);
  EXPECT_EQ(router.policy().max_share(), 0.25f);
  EXPECT_EQ(router.policy().wire_form(), "kv");
  EXPECT_TRUE(Validate(router).ok()) << Validate(router);
  RouterConfig strict;
  strict.mutable_policy()->set_max_share(0.1f);
  FillDefaults(strict);
  EXPECT_EQ(strict.policy().share(), 0.1f);

  ServeConfig serve;
  serve.mutable_router()->mutable_source()->set_model("m");
  FillDefaults(serve);
  EXPECT_EQ(LocalDecode(serve).transport(), "local");
  EXPECT_EQ(LocalDecode(serve).listen().max_message_mb(), 64);
  EXPECT_TRUE(Validate(serve).ok()) << Validate(serve);
}

TEST(ConfigTest, JsonIsReadAndUnknownFieldsAreNamed) {
  PrefillConfig config;
  ASSERT_TRUE(ParseConfig(R"({"source": {"model": "m"}, "chunk_tokens": 128})", config).ok());
  EXPECT_EQ(config.chunk_tokens(), 128);
  EXPECT_EQ(config.source().model(), "m");

  const absl::Status unknown = ParseConfig(R"({"source": {"modle": "m"}})", config);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("modle"));
  const absl::Status type = ParseConfig(R"({"chunk_tokens": "many"})", config);
  EXPECT_THAT(std::string(type.message()), HasSubstr("chunk_tokens"));
  EXPECT_FALSE(ParseConfig("{", config).ok());
}

TEST(ConfigTest, WhatIsPrintedCanBeReadAgain) {
  PrefillConfig config;
  config.mutable_source()->set_model("m");
  FillDefaults(config);
  PrefillConfig again;
  ASSERT_TRUE(ParseConfig(PrintConfig(config), again).ok());
  EXPECT_EQ(again.SerializeAsString(), config.SerializeAsString());
}

TEST(ConfigTest, ViolationsNameTheirField) {
  PrefillConfig good;
  good.mutable_source()->set_model("m");
  FillDefaults(good);
  PrefillConfig bad = good;
  bad.mutable_source()->clear_model();
  EXPECT_EQ(FieldOf(Validate(bad)), "source.model");
  bad = good;
  bad.set_chunk_tokens(100);
  EXPECT_EQ(FieldOf(Validate(bad)), "chunk_tokens");
  bad = good;
  bad.mutable_listen()->set_drain_seconds(-1);
  EXPECT_EQ(FieldOf(Validate(bad)), "listen.drain_seconds");
  bad = good;
  bad.mutable_backend()->set_kind("tpu");
  EXPECT_EQ(FieldOf(Validate(bad)), "backend.kind");

  RouterConfig router;
  router.mutable_source()->set_model("m");
  FillDefaults(router);
  EXPECT_EQ(FieldOf(Validate(router)), "decode_workers");
  router.add_decode_workers("nowhere");
  EXPECT_EQ(FieldOf(Validate(router)), "decode_workers");
}

// 0 is what was asked for, not the default: it is in no range that has one.
TEST(ConfigTest, AnExplicitZeroIsNotLeftOut) {
  const auto field = [](auto config, const std::string& json) {
    auto parsed = config;
    EXPECT_TRUE(ParseConfig(json, parsed).ok()) << json;
    config.MergeFrom(parsed);
    FillDefaults(config);
    return FieldOf(Validate(config));
  };
  PrefillConfig prefill;
  prefill.mutable_source()->set_model("m");
  for (const char* name : {"chunk_tokens", "max_queued", "sink_buffer_mb"}) {
    EXPECT_EQ(field(prefill, absl::StrCat("{\"", name, "\": 0}")), name);
  }
  for (const char* name : {"drain_seconds", "max_message_mb"}) {
    EXPECT_EQ(field(prefill, absl::StrCat(R"({"listen": {")", name, "\": 0}}")),
              absl::StrCat("listen.", name));
  }
  EXPECT_EQ(field(prefill, R"({"kv_memory_mb": 0, "context_tokens": 0})"), "") << "documented: the default";

  DecodeConfig decode;
  decode.mutable_source()->set_model("m");
  for (const char* name : {"kv_memory_mb", "max_running", "max_queued", "queue_timeout_seconds",
                           "piece_tokens", "receive_buffer_mb"}) {
    EXPECT_EQ(field(decode, absl::StrCat("{\"", name, "\": 0}")), name);
  }
  RouterConfig router;
  router.mutable_source()->set_model("m");
  router.add_decode_workers("localhost:1");
  for (const char* name : {"max_in_flight", "max_queued", "queue_timeout_seconds", "default_deadline_seconds",
                           "max_prompt_bytes", "worker_check_ms"}) {
    EXPECT_EQ(field(router, absl::StrCat("{\"", name, "\": 0}")), name);
  }
  for (const char* name : {"auto_min_tokens", "local_max_tokens"}) {
    EXPECT_EQ(field(router, absl::StrCat(R"({"policy": {")", name, "\": 0}}")),
              absl::StrCat("policy.", name));
  }
  EXPECT_EQ(field(router, R"({"policy": {"share": 0.3}})"), "policy.share") << "above max_share";
  EXPECT_EQ(field(router, R"({"policy": {"share": -0.1}})"), "policy.share");
  EXPECT_EQ(field(router, R"({"policy": {"max_share": 1.5}})"), "policy.max_share");
  EXPECT_EQ(field(router, R"({"policy": {"speed_split": -1}})"), "policy.speed_split");
  EXPECT_EQ(field(router, R"({"policy": {"quality_split": 10001}})"), "policy.quality_split");
  EXPECT_EQ(field(router, R"({"policy": {"wire_form": "HIDDEN"}})"), "policy.wire_form");
  EXPECT_EQ(field(router, R"({"policy": {"wire_form": "hidden"}})"), "");
}

TEST(ConfigTest, ServeRefusesWhatItWouldNotLookAt) {
  const auto refused = [](const std::string& json) {
    ServeConfig config;
    EXPECT_TRUE(ParseConfig(json, config).ok()) << json;
    config.mutable_router()->mutable_source()->set_model("m");
    FillDefaults(config);
    return Validate(config);
  };
  EXPECT_TRUE(
      refused(R"({"prefill": {"kv_memory_mb": 9, "chunk_tokens": 64}, "decode": {"context_tokens": 9}})")
          .ok());
  const std::pair<const char*, const char*> kUnused[] = {
      {"prefill.listen", R"({"prefill": {"listen": {"drain_seconds": 3}}})"},
      {"prefill.source", R"({"prefill": {"source": {"maps": ["none"]}}})"},
      {"prefill.backend", R"({"prefill": {"backend": {"threads": 2}}})"},
      {"prefill.context_tokens", R"({"prefill": {"context_tokens": 100}})"},
      {"prefill.lower_layers_only", R"({"prefill": {"lower_layers_only": true}})"},
      {"decode.listen", R"({"decode": {"listen": {"address": "a:1"}}})"},
      {"decode.source", R"({"decode": {"source": {"model": "m"}}})"},
      {"decode.backend", R"({"decode": {"backend": {"kind": "cuda"}}})"},
      {"decode.transport", R"({"decode": {"transport": "grpc"}})"},
  };
  for (const auto& [field, json] : kUnused) EXPECT_EQ(FieldOf(refused(json)), field);
  EXPECT_THAT(std::string(refused(kUnused[0].second).message()), HasSubstr("router.listen"));

  ServeConfig printed, again;
  printed.mutable_router()->mutable_source()->set_model("m");
  FillDefaults(printed);
  ASSERT_TRUE(ParseConfig(PrintConfig(printed), again).ok());
  FillDefaults(again);
  EXPECT_TRUE(Validate(again).ok()) << Validate(again);
}

TEST(ConfigTest, Addresses) {
  for (const char* good : {"a:1", "127.0.0.1:0", "[::1]:65535", "host.example:80"}) {
    EXPECT_TRUE(CheckAddress("x", good).ok()) << good;
  }
  for (const char* bad : {"", "a", ":1", "a:", "a:65536", "a:-1", "a: 1", "a:1b"}) {
    EXPECT_FALSE(CheckAddress("x", bad).ok()) << bad;
  }
}

TEST(MemoryTest, RefusalHasTheArithmetic) {
  MemoryNeed need;
  need.parts = {{"weights", int64_t{300} << 20}, {"KV cache", int64_t{1024} << 20}};
  EXPECT_TRUE(CheckFits(need, int64_t{1324} << 20).ok());
  EXPECT_TRUE(CheckFits(need, -1).ok()) << "unknown: anything goes";
  const absl::Status refused = CheckFits(need, int64_t{1323} << 20);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("weights 300 MB + KV cache 1024 MB = 1324 MB, but 1323 MB are available"));
}

TEST(MemoryTest, ReadsWhatTheSystemSays) {
  EXPECT_EQ(ParseMemAvailable("MemTotal: 9 kB\nMemAvailable:    1234 kB\nBuffers: 3 kB\n"), 1234 * 1024);
  EXPECT_EQ(ParseMemAvailable("MemTotal: 9 kB\n"), -1);
  EXPECT_EQ(ParseCgroupRoom("1000\n", "400\n", ""), 600);
  EXPECT_EQ(ParseCgroupRoom("1000\n", "1400\n", ""), 0);
  EXPECT_EQ(ParseCgroupRoom("max\n", "400\n", ""), -1);
  EXPECT_EQ(ParseCgroupRoom("", "", ""), -1);
  EXPECT_EQ(ParseCgroupRoom("1000\n", "400\n", "inactive_file 900\n"), 1000) << "counted a moment apart";
  EXPECT_GT(AvailableMemory(), int64_t{1} << 20);
}

// A container that has read a model's file is full of page cache, which the kernel gives back.
TEST(MemoryTest, FilesThatWereReadCountAsFree) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / absl::StrCat("memory_test_root.", getpid());
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  write("proc/meminfo", "MemAvailable: 10000 kB\n");
  write("sys/fs/cgroup/memory.max", "1000000\n");
  write("sys/fs/cgroup/memory.current", "950000\n");
  EXPECT_EQ(AvailableMemory(root.string()), 50000);
  write("sys/fs/cgroup/memory.stat", "anon 100000\nfile 850000\ninactive_file 700000\nactive_file 100000\n");
  EXPECT_EQ(AvailableMemory(root.string()), 850000);

  fs::remove_all(root / "sys");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "950000\n");
  write("sys/fs/cgroup/memory/memory.stat",
        "inactive_file 10000\nactive_file 5000\ntotal_inactive_file 600000\ntotal_active_file 200000\n");
  EXPECT_EQ(AvailableMemory(root.string()), 850000);
  write("proc/meminfo", "MemAvailable: 100 kB\n");
  EXPECT_EQ(AvailableMemory(root.string()), 102400) << "the machine has less";
  fs::remove_all(root);
}

TEST(MemoryTest, CountsWeights) {
  model::ModelConfig config;  // SmolLM2-135M, whose packed weights on the CPU backend take 382,346,496 bytes
  config.layers = 30;
  config.hidden = 576;
  config.heads_q = 9;
  config.heads_kv = 3;
  config.head_dim = 64;
  config.ffn = 1536;
  config.vocab = 49152;
  EXPECT_NEAR(static_cast<double>(WeightBytes(config, 30, /*with_head=*/true, 2)), 382346496,
              0.01 * 382346496);
  const int64_t layer = 576 * 576 * 2 + 576 * 192 * 2 + 3 * 576 * 1536;
  EXPECT_EQ(WeightBytes(config, 19, /*with_head=*/false, 2), 19 * layer * 2 + 49152 * 576 * 4);
}

TEST(ModelFilesTest, FindsByPathAndByName) {
  namespace fs = std::filesystem;
  const fs::path home = fs::path(testing::TempDir()) / absl::StrCat("config_test_home.", getpid());
  fs::create_directories(home / "models" / "folder");
  fs::create_directories(home / "maps" / "single");
  fs::create_directories(home / "maps" / "unfinished");
  std::ofstream(home / "maps" / "single" / "ridgefill.json") << "{}";
  std::ofstream(home / "maps" / "unfinished" / "sums.safetensors") << "x";
  std::ofstream(home / "models" / "single.gguf") << "x";
  std::ofstream(home / "models" / "folder" / "config.json") << "{}";

  EXPECT_EQ(*FindModel(home.string(), "single"), (home / "models" / "single.gguf").string());
  EXPECT_EQ(*FindModel(home.string(), "folder"), (home / "models" / "folder").string());
  const std::string path = (home / "models" / "single.gguf").string();
  EXPECT_EQ(*FindModel("/nowhere", path), path);
  const auto missing = FindModel(home.string(), "other");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("folder, single"));

  EXPECT_EQ(ModelName(path), "single");
  EXPECT_EQ(ModelName("/a/b/"), "b");
  EXPECT_EQ(*FindMaps(home.string(), "single", ""), (home / "maps" / "single").string());
  EXPECT_EQ(*FindMaps(home.string(), "folder", ""), "");
  EXPECT_EQ(*FindMaps(home.string(), "single", "none"), "");
  EXPECT_EQ(*FindMaps(home.string(), "folder", "single"), (home / "maps" / "single").string());
  EXPECT_FALSE(FindMaps(home.string(), "folder", "other").ok());
  EXPECT_EQ(*FindMaps(home.string(), "unfinished", ""), "") << "a fit was interrupted there";
  for (const std::string& name : {std::string("unfinished"), (home / "maps" / "unfinished").string()}) {
    const absl::Status unfinished = FindMaps(home.string(), "single", name).status();
    EXPECT_EQ(unfinished.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(unfinished.message()), HasSubstr("(which has: single)"));
  }
}

TEST(ModelFilesTest, HomeFolder) {
  EXPECT_EQ(HomeFolder("/data", "/root"), "/data");
  EXPECT_EQ(HomeFolder("", "/root"), "/root/.cache/ridgefill");
  EXPECT_EQ(HomeFolder(nullptr, "/root"), "/root/.cache/ridgefill");
}

TEST(TraceParentTest, OnlyWellFormedOnesPass) {
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_TRUE(IsTraceParent(good));
  for (const std::string& bad :
       std::vector<std::string>{"", good + "0", "ff" + good.substr(2), std::string(55, '0'),
                                "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                                "00-00000000000000000000000000000000-00f067aa0ba902b7-01"}) {
    EXPECT_FALSE(IsTraceParent(bad)) << bad;
  }
}

}  // namespace
}  // namespace ridgefill::common
