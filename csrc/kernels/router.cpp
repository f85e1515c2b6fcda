#include "router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "pool.h"

namespace shoal {
namespace {

// x [n] to e^x / Σ e^x.
void softmax(float* x, std::int64_t n) {
    const float highest = *std::max_element(x, x + n);
    float sum = 0.0f;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - highest);
    for (std::int64_t i = 0; i < n; ++i) x[i] /= sum;
}

// The best of n scores that isn't taken yet, the first of equals; whatever the scores, NaN among them, there is one.
std::int64_t best_of(const float* scores, const bool* taken, std::int64_t n) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < n; ++i) {
        if (!taken[i] && (best < 0 || scores[i] > scores[best])) best = i;
    }
    return best;
}

float group_score(const Router& r, const float* choice) {
    float first = -std::numeric_limits<float>::infinity(), second = first;
    for (const float* of = choice; of < choice + r.experts / r.groups; ++of) {
        second = std::max(second, std::min(first, *of));
        first = std::max(first, *of);
    }
    return r.group_score == TOP2 ? first + second : first;
}

// Leaves experts of a row's best groups only.
void keep_best_groups(const Router& r, const float* choice, bool* taken) {
    const std::int64_t size = r.experts / r.groups;
    float scores[MAX_EXPERTS];
    bool kept[MAX_EXPERTS] = {};
    for (std::int64_t g = 0; g < r.groups; ++g) scores[g] = group_score(r, choice + g * size);
    for (std::int64_t i = 0; i < r.top_groups; ++i) kept[best_of(scores, kept, r.groups)] = true;
    for (std::int64_t e = 0; e < r.experts; ++e) taken[e] = !kept[e / size];
}

void choose(const Router& r, float* scores, std::int32_t* experts, float* weights) {
    float choice[MAX_EXPERTS];
    bool taken[MAX_EXPERTS] = {};
    if (!r.softmax_after_top_k) {
        r.scoring == SIGMOID ? void(std::transform(scores, scores + r.experts, scores, sigmoid)) : softmax(scores, r.experts);
    }
    for (std::int64_t e = 0; e < r.experts; ++e) choice[e] = r.correction ? scores[e] + r.correction[e] : scores[e];
    if (r.groups > 1 && !r.softmax_after_top_k) keep_best_groups(r, choice, taken);
    float sum = 0.0f;
    for (std::int64_t i = 0; i < r.top_k; ++i) {
        const std::int64_t best = best_of(choice, taken, r.experts);
        taken[best] = true;
        experts[i] = static_cast<std::int32_t>(best);
        sum += weights[i] = scores[best];
    }
    if (r.softmax_after_top_k) softmax(weights, r.top_k);
    const bool shares = r.normalize && !r.softmax_after_top_k;
    for (std::int64_t i = 0; i < r.top_k; ++i) weights[i] = (shares ? weights[i] / (sum + 1e-20f) : weights[i]) * r.scaling;
}

}  // namespace

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void route(const Router& router, float* logits, std::int64_t rows, const Routing& to) {
    constexpr std::int64_t WORK_OF_A_SCORE = 16;  // what a score takes, in numbers that are only moved
    each_row(rows, router.experts * WORK_OF_A_SCORE, [&](std::int64_t row) {
        choose(router, logits + row * router.experts, to.experts + row * router.top_k, to.weights + row * router.top_k);
    });
    std::fill_n(to.counts, router.experts, 0);
    for (std::int64_t i = 0; i < rows * router.top_k; ++i) ++to.counts[to.experts[i]];
    std::int64_t next[MAX_EXPERTS], before = 0;
    for (std::int64_t e = 0; e < router.experts; before += to.counts[e++]) next[e] = before;
    for (std::int64_t i = 0; i < rows * router.top_k; ++i) to.at[i] = next[to.experts[i]]++;
}

}  // namespace shoal
