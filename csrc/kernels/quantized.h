// Products with weights of eight or four bits, and how these lie in memory. Weights are packed once, on loading, into
// panels of PANEL outputs and steps of two or four inputs (`inputs` padded to GROUP with zeros):
//
//     INT8   [panels, inputs / 2, PANEL, 2]                 int8: two inputs of an output side by side, step by step
//     INT4   [panels, inputs / GROUP, GROUP / 8, PANEL, 4]  bytes: the low half is of one step, the high half of the next
//
// Scales are half precision, [panels, inputs / GROUP, PANEL]; of INT4, with zero points,
// [panels, inputs / GROUP, 2, PANEL]. Activations are rounded to xq · x_scale; sums within a group are exact:
//
//     INT8   w = scale · code, codes -127 … 127           y = Σ over groups of x_scale · scale · Σ xq · code
//     INT4   w = scale · code + zero_point, codes 0 … 15  y = Σ over groups of x_scale · (scale · Σ xq · code
//                                                                                         + zero_point · Σ xq)
//
// A vector of 32 bytes is eight outputs by two inputs of 16 bits, or by four of eight: what a multiply adds up to 32 or
// 16 bits; one of 64 bytes a whole panel of them. A panel is read once and in order, whatever the number of rows.
#pragma once

#include "kernels.h"
