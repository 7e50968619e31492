// Included before everything else when llama.cpp is built.
// GCC before 13 believes that _tile_loadconfig reads 8 of its 64 bytes, and drops the stores to the others.
#pragma once
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#endif
