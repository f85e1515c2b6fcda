// Products with quantized weights for avx2; see quantized.h.
#include "quantized.h"

#if defined(__x86_64__)
#include "begin_avx2.inc"

namespace shoal {
namespace {
#include "simd_avx2.inc"

#include "simd_common.inc"

#include "rows.inc"

#include "bytes_avx2.inc"

// Their sums fit in registers; see below.
constexpr std::int64_t TILE = 4;

inline __m256 halves_at(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// a += w0 · x and b += w1 · x, x the same four bytes for all outputs: pairs of 16-bit numbers added up in 32 bits, or of
// bytes in 16. Sums of four rows, weights and what lies between fit in twelve of sixteen registers, but compilers left to
// choose bring loads forward and put sums into memory, which takes half of the speed.
inline void add_pairs(__m256i& a, __m256i& b, __m256i w0, __m256i w1, const std::int8_t* x) {
    __m256i four, product;
    asm("vpbroadcastd %[x], %[four]\n\t"
        "vpmaddwd %[four], %[w0], %[product]\n\t"
        "vpmaddwd %[four], %[w1], %[four]\n\t"
        "vpaddd %[product], %[a], %[a]\n\t"
        "vpaddd %[four], %[b], %[b]"
        : [a] "+x"(a), [b] "+x"(b), [four] "=&x"(four), [product] "=&x"(product)
        : [w0] "x"(w0), [w1] "x"(w1), [x] "m"(*reinterpret_cast<const char(*)[4]>(x)));
}

inline void add_bytes(__m256i& a, __m256i& b, __m256i w0, __m256i w1, const std::int8_t* x) {
    __m256i four, product;
    asm("vpbroadcastd %[x], %[four]\n\t"
        "vpmaddubsw %[four], %[w0], %[product]\n\t"
        "vpmaddubsw %[four], %[w1], %[four]\n\t"
        "vpaddw %[product], %[a], %[a]\n\t"
        "vpaddw %[four], %[b], %[b]"
        : [a] "+x"(a), [b] "+x"(b), [four] "=&x"(four), [product] "=&x"(product)
        : [w0] "x"(w0), [w1] "x"(w1), [x] "m"(*reinterpret_cast<const char(*)[4]>(x)));
}

template <int M>
inline void put_sums(const __m256 (&sums)[M][2], float* out) {
    for (int m = 0; m < M; ++m) {
        for (int v = 0; v < 2; ++v) _mm256_storeu_ps(out + m * PANEL + 8 * v, sums[m][v]);
    }
}

// Numbers are widened to 16 bits, whose multiply adds pairs up in 32 bits: sums are exact. The byte multiply would need
// an unsigned operand, and what makes one of a signed number takes the same two ports as the multiply does.
template <int M>
void tile_int8(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    __m256 sums[M][2] = {};
    for (std::int64_t g = 0; g < groups; ++g, codes += GROUP * PANEL, x += 2 * GROUP * M) {
        ask_ahead(codes, GROUP * PANEL);
        __m256i whole[M][2];
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) whole[m][0] = whole[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int k = 0; k < GROUP / 2; ++k) {
            const __m256i w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + k * 32)));
            const __m256i w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + k * 32 + 16)));
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) {
                add_pairs(whole[m][0], whole[m][1], w0, w1, x + (k * M + m) * 4);
            }
        }
        const __m256 scales[2] = {halves_at(halves + g * PANEL), halves_at(halves + g * PANEL + 8)};
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
            const __m256 x_scale = _mm256_broadcast_ss(x_scales + (g * M + m) * 2);
            for (int v = 0; v < 2; ++v) {
                sums[m][v] = _mm256_fmadd_ps(_mm256_mul_ps(scales[v], x_scale), _mm256_cvtepi32_ps(whole[m][v]), sums[m][v]);
            }
        }
    }
    put_sums(sums, out);
}

// Codes are unsigned already. A pair is at most 2 · 15 · 127 and a group adds up eight of them, within 16 bits.
template <int M>
void tile_int4(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    __m256 sums[M][2] = {};
    for (std::int64_t g = 0; g < groups; ++g, codes += 4 * 64, x += GROUP * M) {
        ask_ahead(codes, GROUP * PANEL / 2);
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
                    add_bytes(whole[m][0], whole[m][1], w0, w1, xs + 4 * m);
                }
            };
            add(_mm256_and_si256(both0, low), _mm256_and_si256(both1, low), x + k * 8 * M);
            add(_mm256_and_si256(_mm256_srli_epi16(both0, 4), low), _mm256_and_si256(_mm256_srli_epi16(both1, 4), low),
                x + k * 8 * M + 4 * M);
        }
        const std::uint16_t* at = halves + g * 2 * PANEL;
        const __m256 scales[2] = {halves_at(at), halves_at(at + 8)};
        const __m256 zero_points[2] = {halves_at(at + PANEL), halves_at(at + PANEL + 8)};
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
            const float* of = x_scales + (g * M + m) * 2;
            const __m256 x_scale = _mm256_broadcast_ss(of), x_sum = _mm256_broadcast_ss(of + 1);
            for (int v = 0; v < 2; ++v) {
                const __m256 exact = _mm256_cvtepi32_ps(_mm256_madd_epi16(whole[m][v], ones));
                sums[m][v] = _mm256_fmadd_ps(_mm256_mul_ps(scales[v], x_scale), exact, sums[m][v]);
                sums[m][v] = _mm256_fmadd_ps(zero_points[v], x_sum, sums[m][v]);
            }
        }
    }
    put_sums(sums, out);
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

extern const QuantizedKernels avx2_quantized{quantized_linear, quantized_experts, peak};

}  // namespace shoal

#include "end_target.inc"
#endif
