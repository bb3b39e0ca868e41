#define RF_ISA amx_bf16
#define RF_ISA_NAME "amx_bf16"
#define RF_TABLE kAmxBf16Kernels
#define RF_DOT_BF16 3
#include "kernels/cpu/kernels-inl.h"
