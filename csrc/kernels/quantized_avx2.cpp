// Products with quantized weights for avx2; see quantized.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "pool.h"
#include "quantized.h"
#include "scratch.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace shoal {
namespace {
#include "simd_avx2.inc"

#include "simd_common.inc"

#include "rows.inc"

inline __m256i four_bytes(const std::int8_t* p) {
    std::int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

inline __m256 halves_at(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// The byte multiply takes an unsigned and a signed operand and adds pairs in 16 bits, saturating. |x| · (w with x's
// sign) is x · w, and twice 127 · 127 fits, so that nothing saturates and sums are exact.
template <int M>
void tile_int8(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 sums[M][2];
    for (auto& row : sums) row[0] = row[1] = _mm256_setzero_ps();
    for (std::int64_t g = 0; g < groups; ++g) {
        __m256i whole[M][2];
        for (auto& row : whole) row[0] = row[1] = _mm256_setzero_si256();
        for (std::int64_t k = g * 8; k < g * 8 + 8; ++k) {
            const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + k * 64));
            const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + k * 64 + 32));
            for (int m = 0; m < M; ++m) {
                const __m256i size = four_bytes(x + k * 8 * M + 8 * m), sign = four_bytes(x + k * 8 * M + 8 * m + 4);
                const __m256i p0 = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w0, sign));
                const __m256i p1 = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w1, sign));
                whole[m][0] = _mm256_add_epi32(whole[m][0], _mm256_madd_epi16(p0, ones));
                whole[m][1] = _mm256_add_epi32(whole[m][1], _mm256_madd_epi16(p1, ones));
            }
        }
        for (int v = 0; v < 2; ++v) {
            const __m256 scale = halves_at(halves + g * PANEL + 8 * v);
            for (int m = 0; m < M; ++m) {
                const __m256 step = _mm256_mul_ps(scale, _mm256_broadcast_ss(x_scales + (g * M + m) * 2));
                sums[m][v] = _mm256_fmadd_ps(step, _mm256_cvtepi32_ps(whole[m][v]), sums[m][v]);
            }
        }
    }
    for (int m = 0; m < M; ++m) {
        for (int v = 0; v < 2; ++v) _mm256_storeu_ps(out + m * PANEL + 8 * v, sums[m][v]);
    }
}

// Keeps the sums of a row in registers, and what is loaded for the next row behind them: left to itself the compiler
// brings loads forward until registers run out, which takes a third of the speed.
inline void settle(__m256i& a, __m256i& b) { asm volatile("" : "+x"(a), "+x"(b) : : "memory"); }

// Codes are unsigned already. A pair is at most 2 · 15 · 127 and a group adds up eight of them, within 16 bits.
template <int M>
void tile_int4(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    for (int i = 0; i < 2 * M; ++i) _mm256_storeu_ps(out + 8 * i, _mm256_setzero_ps());
    for (std::int64_t g = 0; g < groups; ++g, codes += 4 * 64, x += GROUP * M) {
        __m256i whole[M][2];
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) whole[m][0] = whole[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 2
        for (int k = 0; k < 4; ++k) {
            const __m256i both0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + k * 64));
            const __m256i both1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + k * 64 + 32));
            const auto add = [&](__m256i w0, __m256i w1, const std::int8_t* xs) __attribute__((always_inline)) {
#pragma GCC unroll 4
                for (int m = 0; m < M; ++m) {
                    const __m256i four = four_bytes(xs + 4 * m);
                    whole[m][0] = _mm256_add_epi16(whole[m][0], _mm256_maddubs_epi16(w0, four));
                    whole[m][1] = _mm256_add_epi16(whole[m][1], _mm256_maddubs_epi16(w1, four));
                    settle(whole[m][0], whole[m][1]);
                }
            };
            add(_mm256_and_si256(both0, low), _mm256_and_si256(both1, low), x + k * 8 * M);
            add(_mm256_and_si256(_mm256_srli_epi16(both0, 4), low), _mm256_and_si256(_mm256_srli_epi16(both1, 4), low),
                x + k * 8 * M + 4 * M);
        }
        for (int v = 0; v < 2; ++v) {
            const __m256 scale = halves_at(halves + g * 2 * PANEL + 8 * v);
            const __m256 least = halves_at(halves + g * 2 * PANEL + PANEL + 8 * v);
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) {
                const float* worth = x_scales + (g * M + m) * 2;
                float* sums = out + m * PANEL + 8 * v;
                const __m256 exact = _mm256_cvtepi32_ps(_mm256_madd_epi16(whole[m][v], ones));
                const __m256 step = _mm256_mul_ps(scale, _mm256_broadcast_ss(worth));
                const __m256 sum = _mm256_fmadd_ps(step, exact, _mm256_loadu_ps(sums));
                _mm256_storeu_ps(sums, _mm256_fmadd_ps(least, _mm256_broadcast_ss(worth + 1), sum));
            }
        }
    }
}

#include "quantized.inc"

// Six sums, each in a register of its own.
std::int64_t peak(std::int64_t steps) {
    const auto threads = static_cast<std::size_t>(pool_threads());
    parallel(threads, [steps](std::size_t) {
        const __m256i ones = _mm256_set1_epi16(1);
        __m256i x = ones, a = ones, b = ones, c = ones, d = ones, e = ones, f = ones;
        const auto add = [&](__m256i& sum) __attribute__((always_inline)) {
            const __m256i pairs = _mm256_maddubs_epi16(x, ones);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
            // The compiler must not see that nothing ever changes.
            asm volatile("" : "+x"(sum), "+x"(x));
        };
        for (std::int64_t i = 0; i < steps; ++i) add(a), add(b), add(c), add(d), add(e), add(f);
    });
    return static_cast<std::int64_t>(threads) * steps * 6 * 32;
}
}  // namespace

extern const QuantizedKernels avx2_quantized{"avx2", quantized_linear, quantized_experts, peak};

}  // namespace shoal

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
