// All kernels of one ISA. The including file says which one: RF_ISA (namespace), RF_TABLE (the table that it
// defines) and RF_DOT_BF16: 0 multiplies in f32, 1 uses the bf16 dot-product instruction, 2 spells that out,
// 3 uses AMX tiles, 4 spells those out.
//
// Compiled with its own -m flags, so it must instantiate nothing that other files share: no standard
// containers or algorithms here, or the linker might pick the copy that only a newer CPU can run.
#include <type_traits>

#include "kernels/cpu/vector-inl.h"  // chooses the vectors for the files below

namespace ridgefill::kernels::cpu::RF_ISA {
inline constexpr bool kDotBf16 = RF_DOT_BF16 != 0;
inline constexpr bool kTiles = RF_DOT_BF16 >= 3;
using Activation = std::conditional_t<kDotBf16, uint16_t, float>;
inline constexpr int64_t kActivationBytes = sizeof(Activation);
}  // namespace ridgefill::kernels::cpu::RF_ISA

// clang-format off
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/attention_mass-inl.h"
#include "kernels/cpu/rows-inl.h"
// clang-format on

namespace ridgefill::kernels::cpu {
const KernelTable RF_TABLE = {
    RF_ISA_NAME,           RF_ISA::kDotBf16,  RF_ISA::ActivationStep::kRows,
    RF_ISA::Gemm,          RF_ISA::Attention, RF_ISA::AttentionSoftmax,
    RF_ISA::AttentionMass, RF_ISA::Rope,      RF_ISA::RmsNorm,
    RF_ISA::SwiGlu,        RF_ISA::Cast,      RF_ISA::RowNorm,
};
}  // namespace ridgefill::kernels::cpu
