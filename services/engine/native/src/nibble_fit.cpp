#include "nibble_fit.h"

#include <algorithm>
#include <limits>

namespace postroad {
namespace {

constexpr int kLargestNumber = 127;
constexpr int kLargestCode = 15;
constexpr int kLargestStep = 17;  // times the largest code it is a byte
constexpr int kBasesBeside = 2;   // that are tried above and below the middle one
constexpr int kUnitBits = 5;
constexpr int kUnit = 1 << kUnitBits;  // parts of a whole number: numbers and their errors fit 16 bits
constexpr int kInverseBits = 3;        // of precision more for the inverse of a step

using Shorts = int16_t[kGroup];

struct Step {
    int whole;
    int16_t inverse;  // times 2^(16 + kInverseBits) / kUnit

    explicit Step(int step)
        : whole(step), inverse(static_cast<int16_t>((1 << (16 + kInverseBits - kUnitBits)) / step + 1)) {}
};

// The closest codes for a base. Loops, here and below, are such that compilers make vectors of them.
void fill_codes(const Shorts& numbers, const Step& step, int base, Shorts& codes) {
    const auto zero = static_cast<int16_t>(base * kUnit - step.whole * kUnit / 2);  // what is rounded down to code 0
    const int highest = ((kLargestNumber - base) * kUnit * step.inverse) >> (16 + kInverseBits);
    const auto last = static_cast<int16_t>(std::min(kLargestCode, highest));
    for (int i = 0; i < kGroup; ++i) codes[i] = std::max<int16_t>(static_cast<int16_t>(numbers[i] - zero), 0);
    for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<int16_t>((codes[i] * step.inverse) >> 16);
    for (int i = 0; i < kGroup; ++i) codes[i] = std::min<int16_t>(codes[i] >> kInverseBits, last);
}

int32_t squared_error(const Shorts& numbers, const Step& step, int base, const Shorts& codes) {
    const auto unit = static_cast<int16_t>(step.whole * kUnit), first = static_cast<int16_t>(base * kUnit);
    int32_t sum = 0;
    for (int i = 0; i < kGroup; ++i) {
        const auto error = static_cast<int16_t>(codes[i] * unit + first - numbers[i]);
        sum += error * error;
    }
    return sum;
}

}  // namespace

NibbleFit fit_nibbles(const float (&numbers)[kGroup]) {
    Shorts parts, codes;
    int16_t smallest = std::numeric_limits<int16_t>::max(), largest = std::numeric_limits<int16_t>::min();
    for (int i = 0; i < kGroup; ++i) {
        constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: a sum with it has no fraction
        parts[i] = static_cast<int16_t>(static_cast<int32_t>(numbers[i] * kUnit + kRounder - kRounder));
    }
    for (const int16_t part : parts) {
        smallest = std::min(smallest, part);
        largest = std::max(largest, part);
    }
    const int shorter = (largest - smallest) / (kLargestCode * kUnit);
    NibbleFit best;
    int32_t least = std::numeric_limits<int32_t>::max();
    for (const int some : {shorter, shorter + 1}) {
        const Step step(std::min(std::max(some, 1), kLargestStep));
        const int middle = (smallest + largest - kLargestCode * step.whole * kUnit + kUnit) >> (kUnitBits + 1);
        for (int beside = -kBasesBeside; beside <= kBasesBeside; ++beside) {
            const int base = std::max(middle + beside, -kLargestNumber);
            fill_codes(parts, step, base, codes);
            const int32_t error = squared_error(parts, step, base, codes);
            if (error >= least) continue;
            least = error;
            best.step = step.whole;
            best.base = base;
        }
    }
    fill_codes(parts, Step(best.step), best.base, codes);
    std::copy_n(codes, kGroup, best.codes);
    return best;
}

}  // namespace postroad
