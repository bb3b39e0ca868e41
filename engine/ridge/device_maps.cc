#include "engine/ridge/device_maps.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/ridge/map_tensors.h"

namespace ridgefill::ridge {
namespace {

class PackedMaps : public DeviceMaps {
 public:
  PackedMaps(const MapSet& maps, kernels::Backend& backend) : manifest_(maps.manifest()), backend_(backend) {}

  absl::Status Pack(const MapSet& maps) {
    for (int layer = manifest_.split + 1; layer < manifest_.layers; ++layer) {
      RF_ASSIGN_OR_RETURN(const LayerMap map, maps.ReadLayer(layer));
      kernels::LinearSource source;
      source.out_features = MapRows(manifest_);
      source.in_features = manifest_.hidden;
      source.read_rows = [&map, d = source.in_features](int64_t begin, int64_t count, float* out) {
        std::memcpy(out, map.weight.data() + begin * d, count * d * sizeof(float));
      };
      source.bias = map.bias;
      source.for_decode = false;  // only prompt rows are ever filled
      RF_ASSIGN_OR_RETURN(auto packed, backend_.PackLinear(source));
      bytes_ += packed->bytes();
      packed_.push_back(std::move(packed));
    }
    return absl::OkStatus();
  }

  const MapSetManifest& manifest() const override { return manifest_; }
  int64_t bytes() const override { return bytes_; }

  absl::Status Apply(kernels::Stream& stream, int layer, const kernels::TensorView& x,
                     const kernels::TensorView& y) const override {
    RF_CHECK(layer > manifest_.split && layer < manifest_.layers);
    kernels::LinearArgs args;
    args.x = x;
    args.weight = packed_[layer - manifest_.split - 1].get();
    args.y = y;
    args.phase = kernels::Phase::kPrompt;
    return backend_.Linear(stream, args);
  }

 private:
  const MapSetManifest manifest_;
  kernels::Backend& backend_;
  std::vector<std::unique_ptr<kernels::PackedLinear>> packed_;  // layers split + 1 .. L - 1
  int64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMaps>> DeviceMaps::Load(const MapSet& maps, kernels::Backend& backend) {
  auto packed = std::make_unique<PackedMaps>(maps, backend);
  RF_RETURN_IF_ERROR(packed->Pack(maps));
  return packed;
}

}  // namespace ridgefill::ridge
