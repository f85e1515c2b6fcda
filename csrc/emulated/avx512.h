// AVX-512 on a processor without: what csrc/kernels uses of it by SIMDe (Debian's libsimde-dev), and here what version 0.7
// doesn't have. Only `make emulate` builds with this, to run the kernels' tests on what it makes; it is slow.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace shoal_emulated {

template <class To, class From>
inline To cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
template <class T>
struct Sixteen {
    T lane[16];
};
using Floats = Sixteen<float>;
using Ints = Sixteen<std::int32_t>;

// Lane by lane.
template <class To, class From, class F>
inline auto each(const From& from, F f) {
    Sixteen<To> to;
    for (int i = 0; i < 16; ++i) to.lane[i] = f(from.lane[i]);
    return to;
}
// Pairs of lanes 8 apart, then 4, 2, 1: the order of the instruction's own reduction.
template <class T, class F>
inline T fold(Sixteen<T> x, F f) {
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; ++i) x.lane[i] = f(x.lane[i], x.lane[i + half]);
    }
    return x.lane[0];
}

inline __m512i cvtps_epi32(__m512 a) {
    return cast<__m512i>(each<std::int32_t>(cast<Floats>(a), [](float x) {
        const float whole = std::nearbyint(x);
        return whole >= -2147483648.0f && whole < 2147483648.0f ? static_cast<std::int32_t>(whole) : INT32_MIN;
    }));
}
inline __m512 cvtepi32_ps(__m512i a) {
    return cast<__m512>(each<float>(cast<Ints>(a), [](std::int32_t x) { return static_cast<float>(x); }));
}
inline __m512i cvtepu16_epi32(__m256i a) {
    return cast<__m512i>(each<std::int32_t>(cast<Sixteen<std::uint16_t>>(a), [](std::uint16_t x) { return std::int32_t{x}; }));
}
inline __m512i cvtepi8_epi32(__m128i a) {
    return cast<__m512i>(each<std::int32_t>(cast<Sixteen<std::int8_t>>(a), [](std::int8_t x) { return std::int32_t{x}; }));
}
inline __m512 cvtph_ps(__m256i a) {
    const __m256 both[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
    return cast<__m512>(both);
}
// Reads and writes the chosen lanes only, so that a sanitizer sees every other.
inline __m512 maskz_loadu_ps(__mmask16 mask, const void* p) {
    Floats out{};
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) out.lane[i] = static_cast<const float*>(p)[i];
    }
    return cast<__m512>(out);
}
inline void mask_storeu_ps(void* p, __mmask16 mask, __m512 a) {
    const auto from = cast<Floats>(a);
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) static_cast<float*>(p)[i] = from.lane[i];
    }
}
inline float reduce_add_ps(__m512 a) { return fold(cast<Floats>(a), [](float x, float y) { return x + y; }); }
inline float reduce_max_ps(__m512 a) { return fold(cast<Floats>(a), [](float x, float y) { return x > y ? x : y; }); }

}  // namespace shoal_emulated

#define _mm512_cvtps_epi32 shoal_emulated::cvtps_epi32
#define _mm512_cvtepi32_ps shoal_emulated::cvtepi32_ps
#define _mm512_cvtepu16_epi32 shoal_emulated::cvtepu16_epi32
#define _mm512_cvtepi8_epi32 shoal_emulated::cvtepi8_epi32
#define _mm512_cvtph_ps shoal_emulated::cvtph_ps
#define _mm512_maskz_loadu_ps shoal_emulated::maskz_loadu_ps
#define _mm512_mask_storeu_ps shoal_emulated::mask_storeu_ps
#define _mm512_reduce_add_ps shoal_emulated::reduce_add_ps
#define _mm512_reduce_max_ps shoal_emulated::reduce_max_ps
