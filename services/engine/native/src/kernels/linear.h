// Linear layers: rows of activations times packed panels of weights.
#pragma once

#include "kernels/functions.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"

namespace postroad {
namespace {

constexpr int kLine = 16;  // words of a cache line
// How far ahead weights are fetched, in words: the best of what was measured.
constexpr int64_t kPairAhead = 32 * kPanel;
constexpr int64_t kSingleAhead = 96 * kPanel;

// Columns of kPanels packed panels that lie one after another. With each word of the product, kLines cache lines are
// fetched per panel, from `upcoming` on: whatever the processor does by itself, it stops at the end of a page.
template <int kPanels, int kLines>
struct PanelColumns {
    const uint32_t* first;
    int64_t panel_words;
    const uint32_t* upcoming;

    const uint32_t* address(int64_t, int column) const {
        return first + column / kPanel * panel_words + column % kPanel;
    }
    static constexpr int64_t stride() { return kPanel; }
    void prefetch(int64_t word) const {
        for (int panel = 0; panel < kPanels; ++panel) {
            const uint32_t* lines = upcoming + panel * panel_words + word * kLines * kLine;
            for (int line = 0; line < kLines; ++line) simd::prefetch(lines + line * kLine);
        }
    }
};

// What becomes of rows of a panel's product. Vectors beyond the last feature are cut.
template <class Fmt>
struct PanelOutput {
    using Element = typename Fmt::Element;
    static constexpr int kVectors = kPanel / simd::kWidth;
    using Product = simd::Floats[kVectors];  // of a row

    const LinearCall& call;
    int64_t panel;

    void row(int64_t row, const float* product) const { rows(row, 1, product); }

    // product: [count][kPanel], of rows from `first` on.
    void rows(int64_t first, int count, const float* product) const {
        with_put([&](const auto& put) {
            for (int r = 0; r < count; ++r) {
                Product vectors;
                for (int v = 0; v < kVectors; ++v) vectors[v] = simd::load(product + r * kPanel + v * simd::kWidth);
                put(first + r, vectors);
            }
        });
    }

    // Calls body(put). put(row, product) does what the epilogue says.
    template <class Body>
    void with_put(const Body& body) const {
        const auto gated_by = [&](const auto& activation) {
            body([&](int64_t row, const Product& product) { gated(row, product, activation); });
        };
        switch (call.epilogue) {
            case Epilogue::kStore:
                return body([&](int64_t row, const Product& product) { floats<false>(row, product); });
            case Epilogue::kAccumulate:
                return body([&](int64_t row, const Product& product) { floats<true>(row, product); });
            case Epilogue::kSiluMul:
                return gated_by(silu);
            case Epilogue::kGeluMul:
                return gated_by(gelu_tanh);
        }
    }

    // Fetches where the row goes.
    void fetch(int64_t row) const {
        if (call.epilogue == Epilogue::kStore || call.epilogue == Epilogue::kAccumulate) {
            for (int column = 0; column < kPanel; column += kLine) simd::prefetch(floats_of(row) + column);
        } else {
            simd::prefetch(elements_of(row));
        }
    }

private:
    float* floats_of(int64_t row) const {
        return static_cast<float*>(call.output) + row * call.output_stride + panel * kPanel;
    }

    Element* elements_of(int64_t row) const {
        return static_cast<Element*>(call.output) + row * call.output_stride + panel * (kPanel / 2);
    }

    simd::Floats biased(const Product& product, int vector) const {
        if (!call.linear.bias) return product[vector];
        return simd::add(product[vector], simd::load(call.linear.bias + panel * kPanel + vector * simd::kWidth));
    }

    template <bool kAccumulate>
    void floats(int64_t row, const Product& product) const {
        float* output = floats_of(row);
        const int64_t features = call.linear.out_features - panel * kPanel;
        for (int v = 0; v < kVectors; ++v, output += simd::kWidth) {
            const simd::Floats x = biased(product, v);
            const int64_t left = features - v * simd::kWidth;
            if (left >= simd::kWidth) {
                simd::store(output, kAccumulate ? simd::add(simd::load(output), x) : x);
            } else {
                cut<kAccumulate>(output, x, static_cast<int>(left));
            }
        }
    }

    // Nothing where `count` is not positive.
    template <bool kAccumulate>
    static void cut(float* output, simd::Floats x, int count) {
        float lanes[simd::kWidth];
        simd::store(lanes, x);
        for (int lane = 0; lane < count; ++lane) output[lane] = kAccumulate ? output[lane] + lanes[lane] : lanes[lane];
    }

    template <class Activation>
    void gated(int64_t row, const Product& product, const Activation& activation) const {
        constexpr int kHalf = kVectors / 2;
        Element* output = elements_of(row);
        for (int v = 0; v < kHalf; ++v) {
            const simd::Floats gate = activation(biased(product, v));
            simd::store_elements(output + v * simd::kWidth, simd::mul(gate, biased(product, kHalf + v)));
        }
    }
};

// kPanels neighbouring panels for kRows rows.
template <class Fmt, int kRows, int kPanels, int kLines>
inline void panel_tile(const LinearCall& call, int64_t row, int64_t panel, const uint32_t* upcoming) {
    constexpr int kColumns = kPanels * kPanel;
    constexpr int kVectors = kPanels == 1 ? simd::kTileVectors : kColumns / simd::kWidth;
    float product[kRows][kColumns];
    const int64_t panel_words = call.linear.panel_words;
    const uint32_t* weights = call.linear.weights + panel * panel_words;
    const uint32_t* input = call.input + row * call.input_stride;
    for (int column = 0; column < kColumns; column += kVectors * simd::kWidth) {
        const PanelColumns<kPanels, kLines> columns{weights + column, panel_words, upcoming};
        tile<Fmt, kRows, kVectors>(input, call.input_stride, columns, 1, call.linear.words, product[0] + column,
                                   kColumns);
    }
    for (int i = 0; i < kPanels; ++i) {
        const PanelOutput<Fmt> output{call, panel + i};
        for (int r = 0; r < kRows; ++r) output.row(row + r, product[r] + i * kPanel);
    }
}

// At most kFewRows rows: two panels at once keep enough sums in flight to hide the latency of the products.
constexpr int kFewRows = 6;

template <class Fmt>
inline void few_rows(const LinearCall& call, int64_t first_row, int rows, int64_t first_panel, int64_t last_panel) {
    const int64_t panel_words = call.linear.panel_words;
    with_count<kFewRows>(rows, [&](auto count) {
        int64_t panel = first_panel;
        for (; panel + 2 <= last_panel; panel += 2) {
            const uint32_t* weights = call.linear.weights + panel * panel_words;
            panel_tile<Fmt, count.value, 2, 2>(call, first_row, panel, weights + kPairAhead);
        }
        const uint32_t* weights = call.linear.weights + panel * panel_words;
        if (panel < last_panel) panel_tile<Fmt, count.value, 1, 2>(call, first_row, panel, weights + kSingleAhead);
    });
}

// More rows: a panel is read once from memory and then, tile by tile, from the second-level cache. Its successor is
// fetched meanwhile.
template <class Fmt>
void linear(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel) {
    const int64_t panel_words = call.linear.panel_words;
    if (simd::kWidth == 16 && last_row - first_row <= kFewRows) {
        return few_rows<Fmt>(call, first_row, static_cast<int>(last_row - first_row), first_panel, last_panel);
    }
    const bool one_tile = last_row - first_row <= simd::kTileRows;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        const uint32_t* weights = call.linear.weights + panel * panel_words;
        int tiles_done = 0;
        for_each_tile<simd::kTileRows>(first_row, last_row, [&](auto rows, int64_t row) {
            const int part = tiles_done++;
            if (one_tile) return panel_tile<Fmt, rows.value, 1, 2>(call, row, panel, weights + kSingleAhead);
            if (part > 1) return panel_tile<Fmt, rows.value, 1, 0>(call, row, panel, nullptr);
            panel_tile<Fmt, rows.value, 1, 1>(call, row, panel, weights + panel_words + part * panel_words / 2);
        });
    }
}

}  // namespace
}  // namespace postroad
