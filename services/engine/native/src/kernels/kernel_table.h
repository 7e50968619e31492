// Included once per instruction set, after its simd_*.h: all kernels in terms of its vectors, with internal linkage,
// so that no function compiled for one instruction set is ever called for another.
#pragma once

#include "kernels/attention.h"
#include "kernels/heads.h"
#include "kernels/kernels.h"
#include "kernels/integer_linear.h"
#include "kernels/linear.h"
#include "kernels/quantize.h"
#include "kernels/rows.h"

namespace postroad {
namespace {

template <class Fmt, KvFormat kKv, class Products>
constexpr KvKernels kv_kernels() {
    return {heads<Fmt, kKv>, attention::attend<Fmt, kKv, Products>};
}

template <class Fmt>
constexpr Kernels kernel_table(const char* isa, Format format) {
    return Kernels{isa,
                   format,
                   {{linear<Fmt>, simd::kTileRows},
                    {integer_linear<Fmt, Int8>, simd::kIntegerTileRows},
                    {integer_linear<Fmt, Int8Groups>, simd::kIntegerTileRows},
                    {integer_linear<Fmt, Int4>, simd::kIntegerTileRows},
                    {integer_linear<Fmt, Int4Groups>, simd::kIntegerTileRows}},
                   quantize<Fmt>,
                   rms_norm<Fmt>,
                   add_rms_norm,
                   kv_kernels<Fmt, KvFormat::kElements, attention::VectorProducts<Fmt>>(),
                   kv_kernels<Fmt, KvFormat::kInt8, attention::VectorProducts<Fmt>>(),
                   attention::fold_partials<Fmt>,
                   soften};
}

}  // namespace
}  // namespace postroad
