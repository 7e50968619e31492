#include "sampler_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace postroad {
namespace {

template <typename T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::vector<T> copied(const Vector<T>& array) {
    return std::vector<T>(array.data(), array.data() + array.size());
}

RowEdit make_edit(std::int32_t row, double repetition_penalty, double frequency_penalty, double presence_penalty,
                  const Vector<std::int32_t>& prompt_ids, const Vector<std::int32_t>& output_ids,
                  const Vector<std::int32_t>& bias_ids, const Vector<float>& bias_values,
                  const Vector<std::int32_t>& forbidden_ids, const std::optional<Vector<std::int32_t>>& allowed) {
    if (bias_ids.size() != bias_values.size()) throw std::invalid_argument("as many bias_values as bias_ids");
    return {row,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            copied(prompt_ids),
            copied(output_ids),
            copied(bias_ids),
            copied(bias_values),
            copied(forbidden_ids),
            allowed ? std::vector<std::uint32_t>(allowed->data(), allowed->data() + allowed->size())
                    : std::vector<std::uint32_t>()};
}

nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> sample_rows(
    const Matrix& logits, const Vector<float>& temperatures, const Vector<std::int32_t>& top_k,
    const Vector<double>& top_p, const Vector<double>& min_p, const Vector<double>& uniforms,
    const std::vector<RowEdit>& edits, int threads, const std::string& isa) {
    const std::size_t rows = logits.shape(0);
    for (const std::size_t size : {temperatures.size(), top_k.size(), top_p.size(), min_p.size(), uniforms.size()}) {
        if (size != rows) throw std::invalid_argument("one temperature, top_k, top_p, min_p and uniform per row");
    }
    std::vector<RowParams> params(rows);
    for (std::size_t row = 0; row < rows; ++row) {
        params[row] = {temperatures.data()[row], top_k.data()[row], top_p.data()[row], min_p.data()[row],
                       uniforms.data()[row]};
    }
    auto tokens = std::make_unique<std::int32_t[]>(rows);
    {
        nb::gil_scoped_release release;
        sample(logits.data(), rows, logits.shape(1), params.data(), edits, threads, isa, tokens.get());
    }
    std::int32_t* data = tokens.release();
    nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<std::int32_t*>(memory); });
    return {data, {rows}, owner};
}

}  // namespace

void register_sampler(nb::module_& module) {
    nb::class_<RowEdit>(module, "RowEdit", "What changes a row's logits before it is sampled.")
        .def("__init__",
             [](RowEdit* self, std::int32_t row, double repetition_penalty, double frequency_penalty,
                double presence_penalty, const Vector<std::int32_t>& prompt_ids,
                const Vector<std::int32_t>& output_ids, const Vector<std::int32_t>& bias_ids,
                const Vector<float>& bias_values, const Vector<std::int32_t>& forbidden_ids,
                const std::optional<Vector<std::int32_t>>& allowed) {
                 new (self) RowEdit(make_edit(row, repetition_penalty, frequency_penalty, presence_penalty, prompt_ids,
                                              output_ids, bias_ids, bias_values, forbidden_ids, allowed));
             },
             "row"_a, nb::kw_only(), "repetition_penalty"_a, "frequency_penalty"_a, "presence_penalty"_a,
             "prompt_ids"_a, "output_ids"_a, "bias_ids"_a, "bias_values"_a, "forbidden_ids"_a, "allowed"_a = nb::none(),
             "Ids are int32 arrays, bias_values a float32 one; all are copied.\n"
             "allowed: int32 [ceil(vocab_size / 32)]; with bit i of word w the id 32 w + i may be chosen. None: all may.");
    module.def("sample", &sample_rows, "logits"_a, "temperatures"_a, "top_k"_a, "top_p"_a, "min_p"_a, "uniforms"_a,
               "edits"_a, "threads"_a, "isa"_a = "auto",
               "Chooses one token per row: int32 [rows], -1 where a row's logits are not finite or allow no token.\n\n"
               "logits: float32 [rows, vocab_size], left as they are; temperatures: float32, 0 for greedy; top_k: int32,\n"
               "0 for no limit; top_p, min_p, uniforms: float64; one each per row. edits: at most one RowEdit per row.\n"
               "isa: one of supported_isas(), or 'auto'; the tokens do not depend on it.\n"
               "Raises IndexError for a row or token id that there is not, ValueError for an `allowed` of another size.");
}

}  // namespace postroad
