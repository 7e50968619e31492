#include "sampler_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>
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

using RowTuple = std::tuple<float, std::int64_t, double, double, double>;  // as RowParams

std::vector<std::int32_t> sample_rows(const Matrix& logits, const std::vector<RowTuple>& rows,
                                      const std::vector<RowEdit>& edits, int threads, const std::string& isa) {
    const std::size_t count = logits.shape(0), vocab_size = logits.shape(1);
    if (rows.size() != count) throw std::invalid_argument("one temperature, top_k, top_p, min_p and uniform per row");
    std::vector<RowParams> params;
    params.reserve(count);
    for (const auto& [temperature, top_k, top_p, min_p, uniform] : rows) {
        const auto most = std::min(top_k, static_cast<std::int64_t>(vocab_size));
        params.push_back({temperature, static_cast<std::int32_t>(most), top_p, min_p, uniform});
    }
    std::vector<std::int32_t> tokens(count);
    {
        nb::gil_scoped_release release;
        sample(logits.data(), count, vocab_size, params.data(), edits, threads, isa, tokens.data());
    }
    return tokens;
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
    module.def("sample", &sample_rows, "logits"_a, "rows"_a, "edits"_a, "threads"_a, "isa"_a = "auto",
               "Chooses one token per row: a list, -1 where a row's logits are not finite or allow no token.\n\n"
               "logits: float32 [rows, vocab_size], left as they are. rows: of each its temperature, 0 for greedy, top_k,\n"
               "0 for no limit, top_p, min_p, and a uniform number in [0, 1). edits: at most one RowEdit per row.\n"
               "isa: one of supported_isas(), or 'auto'; the tokens do not depend on it.\n"
               "Raises IndexError for a row or token id that there is not, ValueError for an `allowed` of another size.");
}

}  // namespace postroad
