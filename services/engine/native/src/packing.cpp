#include "packing.h"

#include <cstring>

namespace postroad {
namespace {

// The three types of a checkpoint's numbers. bf16 stays as it is; everything else is rounded from float32.
struct F32Source {
    const float* data;

    float value(int64_t i) const { return data[i]; }
    uint16_t bf16(int64_t i) const { return bf16_from_float(data[i]); }
};

struct F16Source {
    const uint16_t* data;

    float value(int64_t i) const { return float_from_half(data[i]); }
    uint16_t bf16(int64_t i) const { return bf16_from_float(value(i)); }
};

struct Bf16Source {
    const uint16_t* data;

    float value(int64_t i) const { return float_from_bf16(data[i]); }
    uint16_t bf16(int64_t i) const { return data[i]; }
};

template <class Body>
void with_source(const SourceTensor& tensor, int64_t first, const Body& body) {
    switch (tensor.type) {
        case SourceType::kF32:
            return body(F32Source{static_cast<const float*>(tensor.data) + first});
        case SourceType::kF16:
            return body(F16Source{static_cast<const uint16_t*>(tensor.data) + first});
        case SourceType::kBf16:
            return body(Bf16Source{static_cast<const uint16_t*>(tensor.data) + first});
    }
}

template <class Source>
void pack_floats(const Source& source, int64_t columns, uint32_t* words) {
    for (int64_t i = 0; i < columns; ++i) words[i] = float_bits(source.value(i));
}

template <class Source>
void pack_pairs(const Source& source, int64_t columns, uint32_t* words) {
    for (int64_t pair = 0; pair < columns / 2; ++pair) {
        words[pair] = source.bf16(2 * pair) | static_cast<uint32_t>(source.bf16(2 * pair + 1)) << 16;
    }
    if (columns % 2 != 0) words[columns / 2] = source.bf16(columns - 1);
}

// On little-endian machines, which all of ours are, neighbours in memory are a word.
void pack_pairs(const Bf16Source& source, int64_t columns, uint32_t* words) {
    std::memcpy(words, source.data, sizeof(uint16_t) * columns);
}

}  // namespace

void pack_vector(const SourceTensor& tensor, int64_t size, float* values) {
    with_source(tensor, 0, [&](const auto& source) {
        for (int64_t i = 0; i < size; ++i) values[i] = source.value(i);
    });
}

void pack_row(const SourceTensor& tensor, int64_t row, int64_t columns, Format format, uint32_t* words) {
    with_source(tensor, row * columns, [&](const auto& source) {
        format == Format::kF32 ? pack_floats(source, columns, words) : pack_pairs(source, columns, words);
    });
}

}  // namespace postroad
