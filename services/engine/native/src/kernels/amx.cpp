// AMX for linear layers and attention in bf16. Everything else is AVX-512's: groups of 32 integers fill half a tile, and
// one tile of sums for each group costs more than the products (measured: 0.93 of VNNI's speed).

#include "kernels/simd_avx512.h"

#include "kernels/amx_attention.h"
#include "kernels/amx_linear.h"
#include "kernels/kernel_table.h"

namespace postroad {
namespace {

constexpr Kernels amx_bf16_table() {
    Kernels kernels = kernel_table<Bf16>("amx", Format::kBf16);
    kernels.linears[static_cast<int>(WeightFormat::kElements)] = {amx::linear, amx::kLinearRows};
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
