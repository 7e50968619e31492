// 8-bit numbers in 4 bits each, with a step and a base for some neighbours.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace postroad {

// number = step * code + base: steps from 1 to 17, bases and numbers from -127 to 127, codes from 0 to 15.
struct NibbleFit {
    int step = 1, base = 0;
    uint8_t codes[kGroup] = {};
};

// The fit of least squared error of those near the one that reaches from the smallest number to the largest.
// numbers: from -127 to 127, with fractions.
NibbleFit fit_nibbles(const float (&numbers)[kGroup]);

}  // namespace postroad
