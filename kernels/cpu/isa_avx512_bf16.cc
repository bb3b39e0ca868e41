#define RF_ISA avx512_bf16
#define RF_ISA_NAME "avx512_bf16"
#define RF_TABLE kAvx512Bf16Kernels
#define RF_DOT_BF16 1
#include "kernels/cpu/kernels-inl.h"
