// A prefill engine and a decode engine with a transport between them, on the tiny model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "tests/engine/runtime/collector.h"
#include "tests/engine/runtime/direct_transport.h"
#include "tests/engine/runtime/tiny_models.h"

namespace ridgefill::runtime {

inline std::string ReasonOf(const absl::Status& status) {
  if (status.ok()) return "OK";
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

// Loaded once a test program. On the CPU backend, whose kernels stay optimised in sanitizer builds.
inline const TinyModel& Tiny() {
  static const TinyModel* const tiny = new TinyModel(*kernels::MakeCpuBackend({.threads = 1}));
  return *tiny;
}

struct TrioOptions {
  const TinyModel* tiny = &Tiny();
  const base::Clock* clock = nullptr;  // null: the system's
  PrefillEngineOptions prefill{.chunk_tokens = 64, .context_tokens = 512, .frame_bytes = 16 << 10};
  DecodeEngineOptions decode{.context_tokens = 512, .cache_blocks = 64, .piece_tokens = 48};
  DirectOptions transport;
  std::vector<const ridge::DeviceMaps*> maps;            // of both workers ...
  bool prefill_has_maps = true, decode_has_maps = true;  // ... unless one goes without
};

class Trio {
 public:
  explicit Trio(const TrioOptions& options = {}) : own_clock_(base::MakeSystemClock()) {
    const base::Clock& clock = options.clock != nullptr ? *options.clock : *own_clock_;
    const Hello hello = options.tiny->MakeHello();
    const ridge::MapSets maps = options.maps, none;
    auto prefill = PrefillEngine::Create(options.tiny->model(), options.prefill_has_maps ? maps : none, hello,
                                         clock, options.prefill);
    if (!prefill.ok()) std::fprintf(stderr, "%s\n", prefill.status().ToString().c_str());
    prefill_ = *std::move(prefill);
    directory_ =
        std::make_unique<DirectDirectory>(std::make_shared<DirectSource>(*prefill_, options.transport));
    auto decode = DecodeEngine::Create(options.tiny->model(), options.decode_has_maps ? maps : none, hello,
                                       directory_.get(), clock, options.decode);
    if (!decode.ok()) std::fprintf(stderr, "%s\n", decode.status().ToString().c_str());
    decode_ = *std::move(decode);
  }
  ~Trio() {
    StopDecode();
    if (prefill_ != nullptr) RF_CHECK(prefill_->Drain(absl::InfiniteFuture()));
  }

  PrefillEngine& prefill() { return *prefill_; }
  DecodeEngine& decode() { return *decode_; }
  void StopDecode() { decode_.reset(); }
  void StopPrefill() { prefill_.reset(); }

  Submitted Start(DecodeCall call, Submitted as = {}) {
    absl::StatusOr<Submitted> submitted = Submit(*decode_, std::move(call), std::move(as));
    if (!submitted.ok()) std::fprintf(stderr, "%s\n", submitted.status().ToString().c_str());
    return *submitted;
  }
  // The whole answer, which must come without an error.
  Answer Run(DecodeCall call, StartedEvent* started = nullptr) {
    const Submitted submitted = Start(std::move(call));
    const FinishedEvent end = submitted.out->Wait();
    if (!end.status.ok()) std::fprintf(stderr, "%s\n", end.status.ToString().c_str());
    RF_CHECK(end.status.ok());
    if (started != nullptr) *started = *submitted.out->started();
    return submitted.out->answer();
  }
  // Both engines at rest with every block free.
  bool AllFree() {
    for (int i = 0; i < 1000; ++i) {
      const DecodeStats d = decode_->Stats();
      const PrefillStats p = prefill_->Stats();
      if (d.blocks_free == d.blocks_total && p.blocks_free == p.blocks_total && p.queued + p.running == 0)
        return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

 private:
  std::unique_ptr<base::Clock> own_clock_;
  std::unique_ptr<PrefillEngine> prefill_;
  std::unique_ptr<DirectDirectory> directory_;
  std::unique_ptr<DecodeEngine> decode_;
};

}  // namespace ridgefill::runtime
