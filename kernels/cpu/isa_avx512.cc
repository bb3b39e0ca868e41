#define RF_ISA avx512
#define RF_ISA_NAME "avx512"
#define RF_TABLE kAvx512Kernels
#define RF_DOT_BF16 0
#include "kernels/cpu/kernels-inl.h"
