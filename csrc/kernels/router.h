// Which experts a row goes to and with what weight: `choose_experts` of engine/layers/router.py, whose names these are.
#pragma once

#include <cstdint>

namespace shoal {

constexpr std::int64_t MAX_EXPERTS = 1024;

struct Router {
    const float* weight;      // [experts, hidden]
    const float* bias;        // [experts]; null: none
    const float* correction;  // [experts]; null: none
    std::int64_t experts, top_k, groups, top_groups;
    float scaling;
    std::int32_t sigmoid;              // scores are sigmoids of the logits, else a softmax
    std::int32_t softmax_after_top_k;  // scores are the logits, and weights a softmax of those chosen
    std::int32_t normalize;
    std::int32_t best_two;  // a group's score is the sum of its best two, else its best
    std::int32_t unused;
};

// Rows sorted by expert, in their own order within one.
struct Routing {
    float* weights;         // [rows, top_k], a row's best expert first
    std::int32_t* experts;  // [rows, top_k]
    std::int64_t* at;       // [rows, top_k]: where its row is among the sorted ones
    std::int64_t* counts;   // [experts]
};

float sigmoid(float x);

// Of logits [rows, experts], which are changed.
void route(const Router& router, float* logits, std::int64_t rows, const Routing& to);

}  // namespace shoal
