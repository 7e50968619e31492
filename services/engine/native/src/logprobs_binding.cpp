#include "logprobs_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include "logprobs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace postroad {
namespace {

using Ids = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T, std::size_t Dimensions>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<Dimensions>>;

void require_below(const char* name, const Ids& values, std::size_t end) {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int32_t value = values.data()[i];
        if (value < 0 || static_cast<std::size_t>(value) >= end) {
            throw std::out_of_range(std::string(name) + " holds " + std::to_string(value) + ", not in [0, " +
                                    std::to_string(end) + ")");
        }
    }
}

template <typename T, std::size_t Dimensions>
Output<T, Dimensions> owned(std::unique_ptr<T[]> memory, const std::size_t (&shape)[Dimensions]) {
    T* data = memory.release();
    nb::capsule owner(data, [](void* held) noexcept { delete[] static_cast<T*>(held); });
    return Output<T, Dimensions>(data, Dimensions, shape, owner);
}

auto logprobs_of_rows(const Matrix& logits, const Ids& rows, const Ids& token_ids, std::size_t num_top, int threads,
                      const std::string& isa) {
    const std::size_t count = rows.size(), vocab_size = logits.shape(1);
    if (token_ids.size() != count) throw std::invalid_argument("as many token_ids as rows");
    if (num_top > vocab_size) throw std::invalid_argument("num_top is more than the vocabulary");
    require_below("rows", rows, logits.shape(0));
    require_below("token_ids", token_ids, vocab_size);
    auto values = std::make_unique<float[]>(count), top_values = std::make_unique<float[]>(count * num_top);
    auto ranks = std::make_unique<std::int32_t[]>(count), top_ids = std::make_unique<std::int32_t[]>(count * num_top);
    {
        nb::gil_scoped_release release;
        logprobs({logits.data(), vocab_size, rows.data(), token_ids.data(), count, num_top}, threads, isa,
                 {values.get(), ranks.get(), top_ids.get(), top_values.get()});
    }
    const std::size_t one[] = {count}, two[] = {count, num_top};
    return std::make_tuple(owned(std::move(values), one), owned(std::move(ranks), one),
                           owned(std::move(top_ids), two), owned(std::move(top_values), two));
}

}  // namespace

void register_logprobs(nb::module_& module) {
    module.def("logprobs", &logprobs_of_rows, "logits"_a, "rows"_a, "token_ids"_a, "num_top"_a, "threads"_a,
               "isa"_a = "auto",
               "Log-probabilities (float32 [n]) and ranks (int32 [n], from 1) of token_ids[i] in row rows[i] of logits,\n"
               "and ids (int32 [n, num_top]) and log-probabilities (float32) of each row's most probable tokens, the\n"
               "most probable first, of equal ones the lowest id. A row that is not finite gives NaN.\n\n"
               "logits: float32 [.., vocab_size], left as they are; rows, token_ids: int32 [n].\n"
               "isa: one of supported_isas(), or 'auto'; the figures do not depend on it.\n"
               "Raises IndexError for a row or token id that there is not.");
}

}  // namespace postroad
