// RF_CHECK: for mistakes of our own, never for input. Stays on in every build; prints and aborts.
#pragma once

#include <cstdio>
#include <cstdlib>

#define RF_CHECK(condition)                                                              \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (0)
