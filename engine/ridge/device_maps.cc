#include "engine/ridge/device_maps.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/ridge/map_tensors.h"

namespace ridgefill::ridge {
namespace {

using kernels::PackedLinear;
using kernels::TensorView;

class PackedMaps : public DeviceMaps {
 public:
  PackedMaps(const MapSet& maps, kernels::Backend& backend) : manifest_(maps.manifest()), backend_(backend) {}

  absl::Status Pack(const MapSet& maps) {
    for (int layer = manifest_.split + 1; layer < manifest_.layers; ++layer) {
      RF_ASSIGN_OR_RETURN(const LayerMap map, maps.ReadLayer(layer));
      for (int component = 0; component < manifest_.mixture; ++component) {
        RF_RETURN_IF_ERROR(PackComponent(map, component));
      }
    }
    if (manifest_.mixture == 1) return absl::OkStatus();
    RF_ASSIGN_OR_RETURN(const Gate gate, maps.ReadGate());
    RF_ASSIGN_OR_RETURN(gate_, PackSlice(gate.weight.data(), manifest_.hidden, manifest_.mixture, gate.bias));
    return absl::OkStatus();
  }

  const MapSetManifest& manifest() const override { return manifest_; }
  int64_t bytes() const override { return bytes_; }

  absl::Status Apply(kernels::Stream& stream, int layer, int component, const Inputs& inputs,
                     const TensorView& y) const override {
    RF_CHECK(layer > manifest_.split && layer < manifest_.layers);
    RF_CHECK(component >= 0 && component < manifest_.mixture);
    const Component& map = packed_[(layer - manifest_.split - 1) * manifest_.mixture + component];
    RF_RETURN_IF_ERROR(backend_.Linear(stream, {.x = inputs.hidden, .weight = map.hidden.get(), .y = y}));
    if (map.previous == nullptr) return absl::OkStatus();
    return backend_.Linear(stream,
                           {.x = inputs.previous, .weight = map.previous.get(), .y = y, .accumulate = true});
  }

  absl::Status Score(kernels::Stream& stream, const TensorView& hidden,
                     const TensorView& scores) const override {
    RF_CHECK(gate_ != nullptr);
    return backend_.Linear(stream, {.x = hidden, .weight = gate_.get(), .y = scores});
  }

 private:
  struct Component {
    std::unique_ptr<PackedLinear> hidden, previous;
  };

  absl::Status PackComponent(const LayerMap& map, int component) {
    const int64_t rows = MapRows(manifest_), inputs = MapInputs(manifest_);
    const float* const weight = map.weight.data() + component * rows * inputs;
    Component packed;
    const auto bias = absl::MakeConstSpan(map.bias).subspan(component * rows, rows);
    RF_ASSIGN_OR_RETURN(packed.hidden, PackSlice(weight, inputs, rows, bias));
    if (manifest_.previous_row) {
      RF_ASSIGN_OR_RETURN(packed.previous, PackSlice(weight + manifest_.hidden, inputs, rows, {}));
    }
    packed_.push_back(std::move(packed));
    return absl::OkStatus();
  }

  // The first d columns of some rows of a matrix with `stride` columns.
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackSlice(const float* weight, int64_t stride, int64_t rows,
                                                          absl::Span<const float> bias) {
    kernels::LinearSource source;
    source.out_features = rows;
    source.in_features = manifest_.hidden;
    source.read_rows = [weight, stride, d = source.in_features](int64_t begin, int64_t count, float* out) {
      for (int64_t row = begin; row < begin + count; ++row, out += d) {
        std::memcpy(out, weight + row * stride, d * sizeof(float));
      }
    };
    source.bias = bias;
    source.for_decode = false;  // only prompt rows are ever filled
    RF_ASSIGN_OR_RETURN(auto packed, backend_.PackLinear(source));
    bytes_ += packed->bytes();
    return packed;
  }

  const MapSetManifest manifest_;
  kernels::Backend& backend_;
  std::vector<Component> packed_;  // layers split + 1 .. L - 1, the maps of a mixture side by side
  std::unique_ptr<PackedLinear> gate_;
  int64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMaps>> DeviceMaps::Load(const MapSet& maps, kernels::Backend& backend) {
  auto packed = std::make_unique<PackedMaps>(maps, backend);
  RF_RETURN_IF_ERROR(packed->Pack(maps));
  return packed;
}

const DeviceMaps* FindSplit(MapSets sets, int split) {
  for (const DeviceMaps* maps : sets) {
    if (maps->manifest().split == split) return maps;
  }
  return nullptr;
}

std::string SplitNames(MapSets sets) {
  return absl::StrJoin(sets, ", ", [](std::string* out, const DeviceMaps* maps) {
    absl::StrAppend(out, maps->manifest().split);
  });
}

}  // namespace ridgefill::ridge
