// Products with quantized weights for AVX-512 with VNNI, whose multiplies add four pairs of bytes, or two of 16 bits, up
// in 32 bits; see quantized.h. Weights lie as they do for AVX2: a step of a panel is a whole vector.
#include "quantized.h"

#if defined(__x86_64__)
#include "begin_avx512.inc"

namespace shoal {
namespace {
#include "simd_avx512.inc"

#include "simd_common.inc"

#include "rows.inc"

#include "bytes_avx2.inc"

// Sums of as many rows as hide the multiply's latency; a row has two.
constexpr std::int64_t TILE = 8;

inline __m512 halves_at(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// The same four bytes for all outputs.
inline __m512i four_at(const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

// Two codes of every output, widened to 16 bits.
inline __m512i pairs_at(const std::uint8_t* codes) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
}

template <int M>
void tile_int8(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    __m512 sums[M];
    for (int m = 0; m < M; ++m) sums[m] = _mm512_setzero_ps();
    for (std::int64_t g = 0; g < groups; ++g, codes += GROUP * PANEL, x += 2 * GROUP * M) {
        ask_ahead(codes, GROUP * PANEL);
        __m512i whole[M][2];
        for (int m = 0; m < M; ++m) whole[m][0] = whole[m][1] = _mm512_setzero_si512();
#pragma GCC unroll 2
        for (int k = 0; k < GROUP / 2; k += 2) {
            const __m512i w[2] = {pairs_at(codes + k * 32), pairs_at(codes + k * 32 + 32)};
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                for (int h = 0; h < 2; ++h) {
                    whole[m][h] = _mm512_dpwssd_epi32(whole[m][h], w[h], four_at(x + ((k + h) * M + m) * 4));
                }
            }
        }
        const __m512 scales = halves_at(halves + g * PANEL);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const __m512 exact = _mm512_cvtepi32_ps(_mm512_add_epi32(whole[m][0], whole[m][1]));
            sums[m] = _mm512_fmadd_ps(_mm512_mul_ps(scales, _mm512_set1_ps(x_scales[(g * M + m) * 2])), exact, sums[m]);
        }
    }
    for (int m = 0; m < M; ++m) _mm512_storeu_ps(out + m * PANEL, sums[m]);
}

template <int M>
void tile_int4(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512 sums[M];
    for (int m = 0; m < M; ++m) sums[m] = _mm512_setzero_ps();
    for (std::int64_t g = 0; g < groups; ++g, codes += 4 * 64, x += GROUP * M) {
        ask_ahead(codes, GROUP * PANEL / 2);
        __m512i whole[M][2];
        for (int m = 0; m < M; ++m) whole[m][0] = whole[m][1] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            const __m512i both = _mm512_loadu_si512(codes + k * 64);
            const __m512i w[2] = {_mm512_and_si512(both, low), _mm512_and_si512(_mm512_srli_epi16(both, 4), low)};
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                for (int h = 0; h < 2; ++h) {
                    whole[m][h] = _mm512_dpbusd_epi32(whole[m][h], w[h], four_at(x + (k * 8 + h * 4) * M + 4 * m));
                }
            }
        }
        const std::uint16_t* at = halves + g * 2 * PANEL;
        const __m512 scales = halves_at(at), zero_points = halves_at(at + PANEL);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const float* of = x_scales + (g * M + m) * 2;
            const __m512 exact = _mm512_cvtepi32_ps(_mm512_add_epi32(whole[m][0], whole[m][1]));
            sums[m] = _mm512_fmadd_ps(_mm512_mul_ps(scales, _mm512_set1_ps(of[0])), exact, sums[m]);
            sums[m] = _mm512_fmadd_ps(zero_points, _mm512_set1_ps(of[1]), sums[m]);
        }
    }
    for (int m = 0; m < M; ++m) _mm512_storeu_ps(out + m * PANEL, sums[m]);
}

#include "quantized.inc"

// Twelve sums, each in a register of its own.
std::int64_t peak(std::int64_t steps) {
    const auto threads = static_cast<std::size_t>(pool_threads());
    parallel(threads, [steps](std::size_t) {
        const __m512i ones = _mm512_set1_epi8(1);
        __m512i sums[12];
        for (auto& sum : sums) sum = ones;
        for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
            for (int s = 0; s < 12; ++s) sums[s] = _mm512_dpbusd_epi32(sums[s], ones, ones);
            // The compiler must not see that nothing ever changes.
            asm volatile("" ::: "memory");
        }
        volatile float seen = 0.0f;
        for (const auto& sum : sums) seen = seen + _mm512_reduce_add_ps(_mm512_cvtepi32_ps(sum));
    });
    return static_cast<std::int64_t>(threads) * steps * 12 * 64;
}
}  // namespace

extern const QuantizedKernels avx512_quantized{quantized_linear, quantized_experts, peak};

}  // namespace shoal

#include "end_target.inc"
#endif
