#include "ranking.h"

#include <algorithm>
#include <cstring>

namespace postroad {
namespace {

constexpr int kShift = 20;                         // 8 bits of exponent and 3 of mantissa are left
constexpr std::size_t kBuckets = (127u << 3) + 1;  // up to 1.0
constexpr std::size_t kZeros = 0;                  // the bucket of weight 0, which no normal float shares
constexpr std::size_t kCopies = 4;                 // neighbours often go to the same bucket
constexpr std::size_t kFew = 24;                   // are sorted at once

std::uint32_t bits_of(float weight) {
    std::uint32_t bits;
    std::memcpy(&bits, &weight, sizeof(bits));
    return bits;
}

// Keys order as ranks do.
std::uint64_t key_of(float weight, std::size_t id) { return std::uint64_t{~bits_of(weight)} << 32 | id; }

double weight_of(std::uint64_t key) {
    const std::uint32_t bits = ~static_cast<std::uint32_t>(key >> 32);
    float weight;
    std::memcpy(&weight, &bits, sizeof(weight));
    return weight;
}

float weight_at(std::size_t bucket) {
    const auto bits = static_cast<std::uint32_t>(bucket << kShift);
    float weight;
    std::memcpy(&weight, &bits, sizeof(weight));
    return weight;
}

std::int32_t id_of(std::uint64_t key) { return static_cast<std::int32_t>(key & 0xffffffffu); }

}  // namespace

void Ranking::reset(const float* weights, std::size_t n) {
    weights_ = weights;
    n_ = n;
    buckets_.assign(kCopies * kBuckets, Bucket{});
    for (std::size_t id = 0; id < n; ++id) {
        const Bucket one = {weights[id], 1.0};
        buckets_[(id % kCopies) * kBuckets + (bits_of(weights[id]) >> kShift)] += one;
    }
    for (std::size_t copy = 1; copy < kCopies; ++copy) {
        for (std::size_t index = 0; index < kBuckets; ++index) buckets_[index] += buckets_[copy * kBuckets + index];
    }
}

Prefix Ranking::until(std::size_t count, double mass, bool or_equal) {
    const auto reached = [&](std::size_t so_many, double so_heavy) {
        return so_many > 0 && (so_many >= count || so_heavy > mass || (or_equal && so_heavy == mass));
    };
    Prefix prefix;  // all tokens of heavier buckets than the one looked for
    Prefix next;    // that one's tokens, too
    std::size_t found = 0;
    for (std::size_t index = kBuckets - 1; index > kZeros && !reached(next.count, next.mass); --index) {
        if (buckets_[index][1] == 0.0) continue;
        found = index;
        prefix = next;
        next.mass += buckets_[index][0];
        next.count += static_cast<std::size_t>(buckets_[index][1]);
    }
    collect(found);
    std::size_t first = 0;
    std::size_t last = keys_.size();
    while (last - first > kFew) {
        const std::size_t middle = first + (last - first) / 2;
        std::nth_element(keys_.begin() + first, keys_.begin() + middle, keys_.begin() + last);
        const double upper = mass_of(first, middle);
        if (reached(prefix.count + (middle - first), prefix.mass + upper)) {
            last = middle;
        } else {
            prefix.count += middle - first;
            prefix.mass += upper;
            first = middle;
        }
    }
    std::sort(keys_.begin() + first, keys_.begin() + last);
    for (; first < last; ++first) {
        ++prefix.count;
        prefix.mass += weight_of(keys_[first]);
        prefix.last_id = id_of(keys_[first]);
        if (reached(prefix.count, prefix.mass)) break;
    }
    return prefix;
}

void Ranking::collect(std::size_t bucket) {
    ids_.resize(n_);
    keys_.resize(kernels_.between(weights_, n_, weight_at(bucket), weight_at(bucket + 1), ids_.data()));
    for (std::size_t i = 0; i < keys_.size(); ++i) {
        keys_[i] = key_of(weights_[ids_[i]], static_cast<std::size_t>(ids_[i]));
    }
}

double Ranking::mass_of(std::size_t first, std::size_t last) const {
    double mass = 0.0;
    for (std::size_t i = first; i < last; ++i) mass += weight_of(keys_[i]);
    return mass;
}

}  // namespace postroad
