// AMX for linear layers of bf16 and of integers whose scales are those of features, and for attention in bf16.
// Everything else is AVX-512's: where weights have a scale per 32 inputs, a group fills half a tile, and one tile of
// sums for each group costs more than the products (measured: 0.93 of VNNI's speed).

#include "kernels/simd_avx512.h"

#include "kernels/amx_attention.h"
#include "kernels/amx_integer_linear.h"
#include "kernels/amx_linear.h"
#include "kernels/kernel_table.h"

namespace postroad {
namespace {

template <class Fmt>
constexpr void use_integer_tiles(Kernels& kernels) {
    kernels.linears[static_cast<int>(WeightFormat::kInt8)] = {amx::integer_linear<Fmt, Int8>, amx::kIntegerRows,
                                                              amx::kFewIntegerRows};
    kernels.linears[static_cast<int>(WeightFormat::kInt4)] = {amx::integer_linear<Fmt, Int4>, amx::kIntegerRows,
                                                              amx::kFewIntegerRows};
}

constexpr Kernels amx_bf16_table() {
    Kernels kernels = kernel_table<Bf16>("amx", Format::kBf16);
    kernels.linears[static_cast<int>(WeightFormat::kElements)] = {amx::linear, amx::kLinearRows};
    use_integer_tiles<Bf16>(kernels);
    kernels.element_kv.attend = attention::attend_by_tiles<KvFormat::kElements>;
    kernels.int8_kv.attend = attention::attend_by_tiles<KvFormat::kInt8>;
    return kernels;
}

constexpr Kernels amx_f32_table() {
    Kernels kernels = kernel_table<F32>("amx", Format::kF32);
    use_integer_tiles<F32>(kernels);
    return kernels;
}

}  // namespace

const Kernels& amx_kernels(Format format) {
    static constexpr Kernels kBf16Kernels = amx_bf16_table();
    static constexpr Kernels kF32Kernels = amx_f32_table();
    return format == Format::kBf16 ? kBf16Kernels : kF32Kernels;
}

}  // namespace postroad
