// Which experts a row goes to, and with what weight.
#pragma once

#include "interface.h"

namespace shoal {

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
