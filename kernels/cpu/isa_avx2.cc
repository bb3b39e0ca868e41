#define RF_ISA avx2
#define RF_ISA_NAME "avx2"
#define RF_TABLE kAvx2Kernels
#define RF_DOT_BF16 0
#include "kernels/cpu/kernels-inl.h"
