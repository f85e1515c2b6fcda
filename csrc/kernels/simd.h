// One vector type per instruction set, under the same name in a namespace of its own: the kernels are written once and
// compiled once for each. Included by kernels_*.cpp after SHOAL_ISA and, for x86, the target pragma.
//
//     Vec          SHOAL_ISA::Vec, N floats
//     load, load_n from float, bfloat16 or int8 (as fp32); load_n reads n < N numbers and gives zeros for the rest
//     store, store_n
//     fma(a, b, c) a · b + c
//     sum          of all lanes, in one fixed order
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(SHOAL_EMULATE_AVX512)
#include "../emulated/avx512.h"
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shoal {

struct bf16 {
    std::uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(std::int8_t x) { return x; }
inline float widen(bf16 x) {
    const std::uint32_t bits = std::uint32_t{x.bits} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// To the nearest, ties to even; NaN stays NaN.
inline void narrow(float x, float* out) { *out = x; }
inline void narrow(float x, bf16* out) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    out->bits = x != x ? std::uint16_t{0x7fc0} : static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace shoal
