// AMX for linear layers. In bf16 for any number of rows: its sums are not those of AVX-512 to the last bit, so a mix
// would make a row depend on its batch. Everything else is AVX-512's: groups of 32 integers fill half a tile, and one
// tile of sums for each group costs more than the products (measured: 0.93 of VNNI's speed).

#include "kernels/simd_avx512.h"

#include "kernels/amx_attention.h"
#include "kernels/amx_tiles.h"
#include "kernels/kernel_table.h"

namespace postroad {
namespace {

using amx::kTileHeight;
using amx::kTileWords;

constexpr int kAmxRows = 2 * kTileHeight;  // rows computed together
constexpr int64_t kPanelBytes = kPanel * sizeof(uint32_t);
constexpr int64_t kAmxAhead = 96 * kPanel;  // words

// Tiles 0 to 3: sums (2 of rows x 2 of columns), 4 and 5: rows, 6 and 7: weights.
void configure(int num_rows) {
    const int upper = num_rows < kTileHeight ? num_rows : kTileHeight;
    const int lower = num_rows > kTileHeight ? num_rows - kTileHeight : kTileHeight;
    amx::TileConfig config;
    for (const int tile : {0, 1, 4}) config.shape(tile, upper, kTileWords);
    for (const int tile : {2, 3, 5}) config.shape(tile, lower, kTileWords);
    for (const int tile : {6, 7}) config.shape(tile, kTileHeight, kTileWords);
    config.load();
}

// Cache lines to fetch meanwhile: `lines` of them with each step of kTileWords words, from `first` on.
struct Upcoming {
    const uint32_t* first;
    int64_t lines;

    void fetch(int64_t step) const {
        const uint32_t* line = first + step * lines * kLine;
        for (int64_t i = 0; i < lines; ++i) simd::prefetch(line + i * kLine);
    }
};

// Up to 32 rows (up to 16 unless kTwo) of one panel. Tiles are configured.
template <bool kTwo>
void amx_tile(const LinearCall& call, int64_t row, int64_t panel, const Upcoming& upcoming, float* product) {
    const uint32_t* weights = call.linear.weights + panel * call.linear.panel_words;
    const uint32_t* input = call.input + row * call.input_stride;
    const uint32_t* lower_input = input + kTileHeight * call.input_stride;
    const int64_t input_bytes = call.input_stride * int64_t{sizeof(uint32_t)};
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t word = 0; word < call.linear.words; word += kTileWords) {
        upcoming.fetch(word / kTileWords);
        _tile_loadd(6, weights + word * kPanel, kPanelBytes);
        _tile_loadd(7, weights + word * kPanel + kTileWords, kPanelBytes);
        _tile_loadd(4, input + word, input_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
            _tile_loadd(5, lower_input + word, input_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, product, kPanelBytes);
    _tile_stored(1, product + kTileWords, kPanelBytes);
    if constexpr (kTwo) {
        _tile_stored(2, product + kTileHeight * kPanel, kPanelBytes);
        _tile_stored(3, product + kTileHeight * kPanel + kTileWords, kPanelBytes);
    }
}

void amx_linear(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel) {
    alignas(64) float product[kAmxRows * kPanel];
    const int64_t panel_words = call.linear.panel_words;
    const int64_t blocks = ceil_div(last_row - first_row, kAmxRows);
    const int64_t steps = call.linear.words / kTileWords;
    const int64_t panel_lines = panel_words / kLine;
    int configured = 0;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        const uint32_t* weights = call.linear.weights + panel * panel_words;
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t row = first_row + block * kAmxRows;
            const int rows = static_cast<int>(last_row - row < kAmxRows ? last_row - row : kAmxRows);
            if (rows != configured) {
                configure(rows);
                configured = rows;
            }
            // One block: the panel itself, a little ahead. More: each block fetches its share of the next panel.
            const int64_t lines = ceil_div(panel_lines, blocks * steps);
            const Upcoming upcoming{
                blocks == 1 ? weights + kAmxAhead : weights + panel_words + block * steps * lines * kLine, lines};
            (rows > kTileHeight ? amx_tile<true> : amx_tile<false>)(call, row, panel, upcoming, product);
            const PanelOutput<Bf16> output{call, panel};
            for (int r = 0; r < rows; ++r) output.row(row + r, product + r * kPanel);
        }
    }
    _tile_release();
}

constexpr Kernels amx_bf16_table() {
    Kernels kernels = kernel_table<Bf16>("amx", Format::kBf16);
    kernels.linears[static_cast<int>(WeightFormat::kElements)] = {amx_linear, kAmxRows};
    kernels.element_kv.attend = attention::attend_by_tiles<KvFormat::kElements>;
    kernels.int8_kv.attend = attention::attend_by_tiles<KvFormat::kInt8>;
    return kernels;
}

}  // namespace

const Kernels& amx_kernels(Format format) {
    static constexpr Kernels kBf16Kernels = amx_bf16_table();
    static constexpr Kernels kF32Kernels = kernel_table<F32>("amx", Format::kF32);
    return format == Format::kBf16 ? kBf16Kernels : kF32Kernels;
}

}  // namespace postroad
