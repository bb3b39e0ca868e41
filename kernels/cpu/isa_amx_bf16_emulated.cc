#define RF_ISA amx_bf16_emulated
#define RF_ISA_NAME "amx_bf16_emulated"
#define RF_TABLE kAmxBf16EmulatedKernels
#define RF_DOT_BF16 4
#include "kernels/cpu/kernels-inl.h"
