#include "kernels/simd_portable.h"

#include "kernels/kernel_table.h"

namespace postroad {

const Kernels& portable_kernels(Format format) {
    static constexpr Kernels kBf16Kernels = kernel_table<Bf16>("portable", Format::kBf16);
    static constexpr Kernels kF32Kernels = kernel_table<F32>("portable", Format::kF32);
    return format == Format::kBf16 ? kBf16Kernels : kF32Kernels;
}

}  // namespace postroad
