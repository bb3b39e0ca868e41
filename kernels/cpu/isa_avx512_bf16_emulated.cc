#define RF_ISA avx512_bf16_emulated
#define RF_ISA_NAME "avx512_bf16_emulated"
#define RF_TABLE kAvx512Bf16EmulatedKernels
#define RF_DOT_BF16 2
#include "kernels/cpu/kernels-inl.h"
