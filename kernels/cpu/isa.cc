#include "kernels/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::kernels::cpu {
namespace {

// F16C came before AVX2, and not every compiler can ask for it.
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
bool HasAvx512Bf16() { return HasAvx512() && __builtin_cpu_supports("avx512bf16"); }

// Not every compiler knows them by name.
bool CpuHasAmxBf16() {
  constexpr unsigned kLeaf = 7, kTile = 1u << 24, kBf16 = 1u << 22;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(kLeaf, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTile) != 0 && (edx & kBf16) != 0;
}

// The kernel gives tiles to a process that asks for them; later threads have them as well.
bool HasAmxBf16() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool has =
      HasAvx512Bf16() && CpuHasAmxBf16() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return has;
}

struct Isa {
  const KernelTable* kernels;
  bool (*supported)();
  bool automatic;
};
// Best first.
constexpr std::array<Isa, 6> kIsas = {{{&kAmxBf16Kernels, HasAmxBf16, true},
                                       {&kAvx512Bf16Kernels, HasAvx512Bf16, true},
                                       {&kAvx512Kernels, HasAvx512, true},
                                       {&kAvx2Kernels, HasAvx2, true},
                                       {&kAvx512Bf16EmulatedKernels, HasAvx512, false},
                                       {&kAmxBf16EmulatedKernels, HasAvx512, false}}};

absl::Status Unknown(absl::string_view isa, absl::string_view problem) {
  return base::Error(
      absl::StatusCode::kInvalidArgument, "ISA_UNAVAILABLE",
      absl::StrCat("cpu backend: instruction set '", isa, "' ", problem,
                   "; known: avx2, avx512, avx512_bf16, amx_bf16 (empty: the best this machine has)"));
}

}  // namespace

absl::StatusOr<const KernelTable*> KernelsFor(absl::string_view isa) {
  for (const Isa& candidate : kIsas) {
    const bool named = isa == candidate.kernels->isa;
    if (!named && !(isa.empty() && candidate.automatic)) continue;
    if (candidate.supported()) return candidate.kernels;
    if (named) return Unknown(isa, "is not available on this machine");
  }
  return Unknown(isa, isa.empty() ? "cannot be chosen: this machine has none" : "is unknown");
}

}  // namespace ridgefill::kernels::cpu
