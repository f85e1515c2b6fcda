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

// Codes are unsigned already. A pair is at most 2 · 15 · 127 and a group adds up eight of them, within 16 bits.
template <int M>
void tile_int4(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    for (int v = 0; v < 2; ++v) {
        __m256 sums[M];
        for (auto& row : sums) row = _mm256_setzero_ps();
        for (std::int64_t g = 0; g < groups; ++g) {
            __m256i whole[M];
            for (auto& row : whole) row = _mm256_setzero_si256();
            for (int k = 0; k < 4; ++k) {
                const auto* at = reinterpret_cast<const __m256i*>(codes + (g * 4 + k) * 64 + 32 * v);
                const __m256i pair = _mm256_loadu_si256(at);
                const __m256i first = _mm256_and_si256(pair, low);
                const __m256i second = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
                const std::int8_t* xs = x + (g * 4 + k) * 8 * M;
                for (int m = 0; m < M; ++m) {
                    whole[m] = _mm256_add_epi16(whole[m], _mm256_maddubs_epi16(first, four_bytes(xs + 4 * m)));
                    whole[m] = _mm256_add_epi16(whole[m], _mm256_maddubs_epi16(second, four_bytes(xs + 4 * (M + m))));
                }
            }
            const __m256 scale = halves_at(halves + g * 2 * PANEL + 8 * v);
            const __m256 least = halves_at(halves + g * 2 * PANEL + PANEL + 8 * v);
            for (int m = 0; m < M; ++m) {
                const float* worth = x_scales + (g * M + m) * 2;
                const __m256 exact = _mm256_cvtepi32_ps(_mm256_madd_epi16(whole[m], ones));
                const __m256 step = _mm256_mul_ps(scale, _mm256_broadcast_ss(worth));
                sums[m] = _mm256_fmadd_ps(step, exact, sums[m]);
                sums[m] = _mm256_fmadd_ps(least, _mm256_broadcast_ss(worth + 1), sums[m]);
            }
        }
        for (int m = 0; m < M; ++m) _mm256_storeu_ps(out + m * PANEL + 8 * v, sums[m]);
    }
}

#include "quantized.inc"

std::int64_t peak(std::int64_t steps) {
    constexpr int SUMS = 8;
    const auto threads = static_cast<std::size_t>(pool_threads());
    parallel(threads, [&](std::size_t) {
        const __m256i ones = _mm256_set1_epi16(1);
        __m256i sums[SUMS], x[2] = {ones, ones};
        for (auto& s : sums) s = _mm256_setzero_si256();
        for (std::int64_t i = 0; i < steps; ++i) {
            // The compiler must not see that the operands never change.
            asm volatile("" : "+x"(x[0]), "+x"(x[1]));
            for (int k = 0; k < SUMS; ++k) {
                const __m256i pairs = _mm256_maddubs_epi16(x[k % 2], ones);
                sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(pairs, ones));
                asm volatile("" : "+x"(sums[k]));
            }
        }
    });
    return static_cast<std::int64_t>(threads) * steps * SUMS * 32;
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
