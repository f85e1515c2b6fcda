// Products with quantized weights in plain C++; see quantized.h.
#include "quantized.h"

namespace shoal {
namespace {
#include "simd_portable.inc"

#include "simd_common.inc"

#include "rows.inc"

// IEEE half precision to float.
inline float half_at(const std::uint16_t* p) {
    const std::uint32_t sign = static_cast<std::uint32_t>(*p & 0x8000) << 16, rest = *p & 0x7fff;
    if (rest < 0x400) {
        const float tiny = std::ldexp(static_cast<float>(rest), -24);
        return sign ? -tiny : tiny;
    }
    const std::uint32_t bits = sign | (rest >= 0x7c00 ? 0x7f800000u | ((rest & 0x3ff) << 13) : (rest << 13) + 0x38000000u);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The nearest whole numbers to x · scale of a group, which are bytes; returns their sum.
inline std::int32_t put_bytes(const float* x, float scale, std::int8_t* q) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < GROUP; ++i) {
        // Of what isn't a number the outcome doesn't matter, but it has to be one.
        const float whole = std::nearbyint(x[i] * scale);
        q[i] = static_cast<std::int8_t>(std::fabs(whole) <= 127.0f ? whole : 0.0f);
        sum += q[i];
    }
    return sum;
}

template <int M>
void tile_int8(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    const auto* weights = reinterpret_cast<const std::int8_t*>(codes);
    std::fill_n(out, M * PANEL, 0.0f);
    for (std::int64_t g = 0; g < groups; ++g) {
        std::int32_t whole[M][PANEL] = {};
        for (std::int64_t k = g * GROUP / 2; k < (g + 1) * GROUP / 2; ++k) {
            for (int m = 0; m < M; ++m) {
                std::int16_t two[2];
                std::memcpy(two, x + (k * M + m) * 4, sizeof two);
                for (int n = 0; n < PANEL; ++n) {
                    const std::int8_t* w = weights + (k * PANEL + n) * 2;
                    whole[m][n] += w[0] * two[0] + w[1] * two[1];
                }
            }
        }
        for (int m = 0; m < M; ++m) {
            const float x_scale = x_scales[(g * M + m) * 2];
            for (int n = 0; n < PANEL; ++n) {
                out[m * PANEL + n] += half_at(halves + g * PANEL + n) * x_scale * static_cast<float>(whole[m][n]);
            }
        }
    }
}

template <int M>
void tile_int4(const std::uint8_t* codes, const std::uint16_t* halves, const std::int8_t* x, const float* x_scales,
               std::int64_t groups, float* out) {
    std::fill_n(out, M * PANEL, 0.0f);
    for (std::int64_t g = 0; g < groups; ++g) {
        std::int32_t whole[M][PANEL] = {};
        for (int k = 0; k < 4; ++k) {
            for (int m = 0; m < M; ++m) {
                const std::int8_t* first = x + (g * 4 + k) * 8 * M + 4 * m;
                const std::int8_t* second = first + 4 * M;
                for (int n = 0; n < PANEL; ++n) {
                    const std::uint8_t* pair = codes + (g * 4 + k) * 64 + 4 * n;
                    for (int i = 0; i < 4; ++i) whole[m][n] += (pair[i] & 15) * first[i] + (pair[i] >> 4) * second[i];
                }
            }
        }
        for (int m = 0; m < M; ++m) {
            const float* of = x_scales + (g * M + m) * 2;
            for (int n = 0; n < PANEL; ++n) {
                const float scale = half_at(halves + g * 2 * PANEL + n);
                const float zero_point = half_at(halves + g * 2 * PANEL + PANEL + n);
                out[m * PANEL + n] += scale * of[0] * static_cast<float>(whole[m][n]);
                out[m * PANEL + n] += zero_point * of[1];
            }
        }
    }
}

constexpr std::int64_t TILE = 4;

#include "quantized.inc"

std::int64_t peak(std::int64_t steps) {
    const auto threads = static_cast<std::size_t>(pool_threads());
    parallel(threads, [&](std::size_t) {
        const std::uint8_t codes[GROUP * PANEL] = {};
        const std::uint16_t halves[PANEL] = {};
        const std::int8_t x[2 * GROUP] = {};
        const float scales[2] = {};
        float sums[PANEL];
        for (std::int64_t i = 0; i < steps; ++i) tile_int8<1>(codes, halves, x, scales, 1, sums);
    });
    return static_cast<std::int64_t>(threads) * steps * GROUP * PANEL;
}
}  // namespace

namespace {
template <class T>
void put_rows(const QuantizedRows& a) {
    const std::int64_t groups = (a.inputs + GROUP - 1) / GROUP;
    for (std::int64_t r = 0; r < a.count; ++r) {
        const std::int64_t panel = a.rows[r] / PANEL, lane = a.rows[r] % PANEL;
        const auto* codes = reinterpret_cast<const std::int8_t*>(a.codes) + panel * PANEL * groups * GROUP;
        const auto* scales = static_cast<const std::uint16_t*>(a.scales) + panel * groups * PANEL;
        T* out = static_cast<T*>(a.out) + r * a.inputs;
        for (std::int64_t i = 0; i < a.inputs; ++i) {
            const float scale = half_at(scales + i / GROUP * PANEL + lane);
            narrow(scale * codes[(i / 2 * PANEL + lane) * 2 + i % 2], out + i);
        }
    }
}
}  // namespace

void quantized_rows(const QuantizedRows& a) { a.dtype == FLOAT32 ? put_rows<float>(a) : put_rows<bf16>(a); }

extern const QuantizedKernels portable_quantized{quantized_linear, quantized_experts, peak};

}  // namespace shoal
