#include "kernels/simd_avx2.h"

#include "kernels/kernel_table.h"

namespace postroad {

const Kernels& avx2_kernels(Format format) {
    static constexpr Kernels kBf16Kernels = kernel_table<Bf16>("avx2", Format::kBf16);
    static constexpr Kernels kF32Kernels = kernel_table<F32>("avx2", Format::kF32);
    return format == Format::kBf16 ? kBf16Kernels : kF32Kernels;
}

}  // namespace postroad
