// Tiles of AMX: eight registers of up to 16 rows of 64 bytes. An operand has 16 words per row at most; the right operand
// of a product has a row per word of the left one's.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace postroad {
namespace {
namespace amx {

constexpr int kTileHeight = 16;  // rows of a tile
constexpr int kTileWords = 16;   // words of a row of a tile

// The operand of ldtilecfg: the shape of each register.
struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void shape(int tile, int num_rows, int words) {
        rows[tile] = static_cast<uint8_t>(num_rows);
        row_bytes[tile] = static_cast<uint16_t>(words * static_cast<int>(sizeof(uint32_t)));
    }
    // By hand: the intrinsic of g++ 12 tells the compiler that 8 bytes of the operand are read.
    void load() const { asm volatile("ldtilecfg %0" : : "m"(*this)); }
};

}  // namespace amx
}  // namespace
}  // namespace postroad
