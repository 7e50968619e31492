#include "kernels/simd_avx512.h"

#include "kernels/kernel_table.h"

namespace postroad {

const Kernels& avx512_kernels(Format format) {
    static constexpr Kernels kBf16Kernels = kernel_table<Bf16>("avx512", Format::kBf16);
    static constexpr Kernels kF32Kernels = kernel_table<F32>("avx512", Format::kF32);
    return format == Format::kBf16 ? kBf16Kernels : kF32Kernels;
}

}  // namespace postroad
