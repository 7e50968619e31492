// The Python module: arguments checked and converted, the GIL released, nothing else.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "isa.h"
#include "logprobs_binding.h"
#include "model.h"
#include "sampler_binding.h"

namespace nb = nanobind;

namespace postroad {
namespace {

using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::array_api, const float, nb::ndim<2>, nb::c_contig>;  // made faster than one of numpy

nb::object required(const nb::dict& config, const char* key) {
    if (!config.contains(key)) throw nb::value_error((std::string("config lacks ") + key).c_str());
    return config[key];
}

template <class T>
T field(const nb::dict& config, const char* key) {
    T value;
    if (!nb::try_cast<T>(required(config, key), value)) {
        throw nb::value_error((std::string("config: ") + key + " has the wrong type").c_str());
    }
    return value;
}

Activation activation(const std::string& name) {
    if (name == "silu") return Activation::kSilu;
    if (name == "gelu_tanh") return Activation::kGeluTanh;
    throw nb::value_error(("activation must be silu or gelu_tanh, not " + name).c_str());
}

Format weight_format(const std::string& name) {
    if (name == "bf16") return Format::kBf16;
    if (name == "f32") return Format::kF32;
    throw nb::value_error(("weight_format must be bf16 or f32, not " + name).c_str());
}

KvFormat kv_format(const std::string& name) {
    if (name == "auto") return KvFormat::kElements;
    if (name == "int8") return KvFormat::kInt8;
    throw nb::value_error(("kv_format must be auto or int8, not " + name).c_str());
}

constexpr std::pair<const char*, WeightFormat> kQuantizations[] = {
    {"none", WeightFormat::kElements},
    {"int8", WeightFormat::kInt8},
    {"int8_group32", WeightFormat::kInt8Groups},
    {"int4", WeightFormat::kInt4},
    {"int4_group32", WeightFormat::kInt4Groups},
};

WeightFormat quantization(const std::string& name) {
    std::string known;
    for (const auto& [known_name, format] : kQuantizations) {
        if (name == known_name) return format;
        known += (known.empty() ? "" : ", ") + std::string(known_name);
    }
    throw nb::value_error(("quantization must be one of " + known + ", not " + name).c_str());
}

WeightFormats weight_formats(const std::string& otherwise, const std::map<std::string, std::string>& by_name) {
    WeightFormats formats;
    formats.otherwise = quantization(otherwise);
    for (const auto& [tensor, name] : by_name) formats.by_name[tensor] = quantization(name);
    return formats;
}

std::map<std::string, int64_t> num_linears(const Model& model) {
    const auto by_format = model.num_linears();
    std::map<std::string, int64_t> numbers;
    for (const auto& [name, format] : kQuantizations) {
        if (const auto found = by_format.find(format); found != by_format.end()) numbers[name] = found->second;
    }
    return numbers;
}

std::vector<RopeConfig> ropes(const nb::dict& config) {
    using Frequencies = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    const auto frequencies = field<std::vector<Frequencies>>(config, "rope_inv_freqs");
    const auto factors = field<std::vector<float>>(config, "rope_attention_factors");
    if (factors.size() != frequencies.size()) {
        throw nb::value_error("rope_attention_factors must have one number per array of rope_inv_freqs");
    }
    std::vector<RopeConfig> ropes;
    for (size_t i = 0; i < factors.size(); ++i) {
        const Frequencies& array = frequencies[i];
        ropes.push_back({{array.data(), array.data() + array.size()}, factors[i]});
    }
    return ropes;
}

std::vector<LayerConfig> layers(const nb::dict& config) {
    const auto windows = field<std::vector<std::optional<int64_t>>>(config, "layer_windows");
    const auto ropes = field<std::vector<std::optional<int64_t>>>(config, "layer_ropes");
    if (windows.size() != ropes.size()) throw nb::value_error("layer_ropes must be as long as layer_windows");
    std::vector<LayerConfig> layers;
    for (size_t i = 0; i < windows.size(); ++i) {
        layers.push_back({windows[i].value_or(kNoWindow), ropes[i].value_or(kNoRope)});
    }
    return layers;
}

ModelConfig model_config(const nb::dict& fields) {
    ModelConfig config;
    config.hidden_size = field<int64_t>(fields, "hidden_size");
    config.intermediate_size = field<int64_t>(fields, "intermediate_size");
    config.num_heads = field<int64_t>(fields, "num_heads");
    config.num_kv_heads = field<int64_t>(fields, "num_kv_heads");
    config.head_dim = field<int64_t>(fields, "head_dim");
    config.vocab_size = field<int64_t>(fields, "vocab_size");
    config.rms_norm_eps = field<float>(fields, "rms_norm_eps");
    config.tie_word_embeddings = field<bool>(fields, "tie_word_embeddings");
    config.qkv_bias = field<bool>(fields, "qkv_bias");
    config.o_bias = field<bool>(fields, "o_bias");
    config.mlp_bias = field<bool>(fields, "mlp_bias");
    config.qk_norm = field<bool>(fields, "qk_norm");
    config.activation = activation(field<std::string>(fields, "activation"));
    config.post_norms = field<bool>(fields, "post_norms");
    config.norm_offset = field<float>(fields, "norm_offset");
    config.embedding_scale = field<float>(fields, "embedding_scale");
    config.attention_scale = field<float>(fields, "attention_scale");
    config.attention_softcap = field<std::optional<float>>(fields, "attention_softcap").value_or(0.0f);
    config.final_softcap = field<std::optional<float>>(fields, "final_softcap").value_or(0.0f);
    config.layers = layers(fields);
    config.ropes = ropes(fields);
    return config;
}

constexpr std::pair<const char*, SourceType> kBlocks[] = {
    {"q4_0", SourceType::kQ4_0}, {"q4_1", SourceType::kQ4_1}, {"q8_0", SourceType::kQ8_0}};

// uint8 [rows, bytes] -> [rows, numbers]
SourceTensor source_blocks(const Array& array, const std::string& name) {
    for (const auto& [known, type] : kBlocks) {
        if (name != known) continue;
        const int64_t block = source_block_bytes(type);
        if (array.dtype() != nb::dtype<uint8_t>()) throw nb::type_error("blocks must be uint8");
        if (array.ndim() != 2 || static_cast<int64_t>(array.shape(1)) % block != 0) {
            throw nb::value_error(("rows of " + name + " have a multiple of " + std::to_string(block) + " bytes").c_str());
        }
        const auto bytes = static_cast<int64_t>(array.shape(1));
        return {array.data(), type, {static_cast<int64_t>(array.shape(0)), bytes / block * kSourceBlock}};
    }
    throw nb::value_error(("blocks must be q4_0, q4_1 or q8_0, not " + name).c_str());
}

SourceTensor source_tensor(const Array& array) {
    SourceTensor tensor{array.data(), SourceType::kF32, {}};
    if (array.dtype() == nb::dtype<float>()) {
        tensor.type = SourceType::kF32;
    } else if (array.dtype() == nb::dlpack::dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1}) {
        tensor.type = SourceType::kF16;
    } else if (array.dtype() == nb::dtype<uint16_t>()) {
        tensor.type = SourceType::kBf16;
    } else {
        throw nb::type_error("a weight must be float32, float16 or uint16 (the bits of bfloat16)");
    }
    for (size_t i = 0; i < array.ndim(); ++i) tensor.shape.push_back(static_cast<int64_t>(array.shape(i)));
    return tensor;
}

using Indices = std::vector<int32_t>;  // a list: converted faster than an array is made of one

IndexSpan span(const Indices& indices) { return {indices.data(), static_cast<int64_t>(indices.size())}; }

Logits step(Model& model, const Indices& token_ids, const Indices& positions, const Indices& sequence_offsets,
            const Indices& context_lengths, const Indices& page_table, const Indices& page_table_offsets,
            const Indices& logit_rows, const Indices& state_rows) {
    const StepArguments arguments{span(token_ids),       span(positions),  span(sequence_offsets),
                                  span(context_lengths), span(page_table), span(page_table_offsets),
                                  span(logit_rows),      span(state_rows)};
    using Owner = std::shared_ptr<const float>;
    Owner logits;
    {
        const nb::gil_scoped_release release;
        logits = model.step(arguments);
    }
    const float* data = logits.get();
    nb::capsule owner(new Owner(std::move(logits)), [](void* held) noexcept { delete static_cast<Owner*>(held); });
    return Logits(
        data, {static_cast<size_t>(arguments.logit_rows.size), static_cast<size_t>(model.config().vocab_size)}, owner);
}

using FloatMatrix = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

// A new array [rows][columns] that `fill` has written.
template <class Fill>
FloatMatrix filled(int64_t rows, int64_t columns, const Fill& fill) {
    auto memory = std::make_unique<float[]>(static_cast<size_t>(std::max<int64_t>(rows, 0) * columns));
    {
        const nb::gil_scoped_release release;
        fill(memory.get());
    }
    float* data = memory.release();
    nb::capsule owner(data, [](void* held) noexcept { delete[] static_cast<float*>(held); });
    return FloatMatrix(data, {static_cast<size_t>(rows), static_cast<size_t>(columns)}, owner);
}

FloatMatrix states(Model& model) {
    return filled(model.num_states(), model.config().hidden_size, [&](float* output) { model.states(output); });
}

FloatMatrix state_logits(Model& model, int64_t first, int64_t count) {
    return filled(count, model.config().vocab_size,
                  [&](float* output) { model.state_logits(first, count, output); });
}

void register_model(nb::module_& module) {
    nb::class_<Model>(module, "Model",
                      "A decoder's weights, KV cache and threads. Calls from several threads come one after another.")
        .def(
            "__init__",
            [](Model* self, const nb::dict& config, int64_t num_pages, int64_t page_size, int threads,
               const std::string& format, const std::string& kv, const std::string& quantization,
               const std::map<std::string, std::string>& tensor_quantization, const std::string& isa) {
                new (self)
                    Model(model_config(config), {num_pages, page_size, threads, weight_format(format), kv_format(kv),
                                                 weight_formats(quantization, tensor_quantization), isa});
            },
            nb::arg("config"), nb::kw_only(), nb::arg("num_pages"), nb::arg("page_size"), nb::arg("threads"),
            nb::arg("weight_format") = "bf16", nb::arg("kv_format") = "auto", nb::arg("quantization") = "none",
            nb::arg("tensor_quantization") = std::map<std::string, std::string>{}, nb::arg("isa") = "auto",
            "config: hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size, rms_norm_eps,\n"
            "tie_word_embeddings, qkv_bias, o_bias, mlp_bias, qk_norm, activation ('silu' or 'gelu_tanh'),\n"
            "post_norms, norm_offset, embedding_scale, attention_scale, attention_softcap and final_softcap\n"
            "(None: no cap); per layer: layer_windows (keys that a token sees, None: all) and layer_ropes (which\n"
            "rope turns queries and keys, None: none does); per rope: rope_inv_freqs (float32 [turned / 2], scaled)\n"
            "and rope_attention_factors (of cosines and sines).\n"
            "page_size: tokens, a multiple of 16. weight_format: 'bf16' or 'f32'. kv_format: of cached keys and\n"
            "values; 'auto', as the weights, or 'int8', with a scale per token and KV head.\n"
            "quantization: how matrices are stored: 'none', as weight_format says; 'int8', a scale per output; 'int4',\n"
            "as that, with 4 bits for each of the 8-bit numbers, a step and a base per output and 32 inputs; their\n"
            "inputs are rounded to 8 bits in groups of up to 256. 'int8_group32', a scale per output and 32 inputs;\n"
            "'int4_group32', a scale and a minimum likewise; their inputs are rounded 32 by 32. tensor_quantization:\n"
            "the same for some of the tensors, by name. Matrices that are computed together are stored as 'none' where\n"
            "they differ.\n"
            "isa: one of supported_isas(), or 'auto'. Raises ValueError for what makes no sense.")
        .def_prop_ro("isa", &Model::isa, "The instruction set in use.")
        .def_prop_ro("num_linears", &num_linears, "Number of linear layers by how they are stored.")
        .def_prop_ro("weight_bytes", &Model::weight_bytes, "Memory that the packed weights take.")
        .def(
            "set_weight",
            [](Model& model, const std::string& name, const Array& array, const std::string& blocks) {
                const SourceTensor tensor = blocks.empty() ? source_tensor(array) : source_blocks(array, blocks);
                const nb::gil_scoped_release release;
                model.set_weight(name, tensor);
            },
            nb::arg("name"), nb::arg("array").noconvert(), nb::arg("blocks") = "",
            "Packs one tensor, by its Hugging Face name: float32, float16 or uint16 (bfloat16 bits), C-contiguous.\n"
            "With blocks 'q4_0', 'q4_1' or 'q8_0': uint8 [rows, bytes], GGUF blocks of 32 numbers.\n"
            "Raises ValueError for a name without a place, one that came before, or another shape.")
        .def("finish", &Model::finish, "Raises ValueError naming the tensors that are missing.")
        .def(
            "step", &step, nb::arg("token_ids"), nb::arg("positions"), nb::arg("sequence_offsets"),
            nb::arg("context_lengths"), nb::arg("page_table"), nb::arg("page_table_offsets"), nb::arg("logit_rows"),
            nb::arg("state_rows") = Indices{},
            "One engine step over n tokens of s sequences; all arguments are lists of integers.\n"
            "token_ids, positions: [n]; sequence_offsets: [s + 1]; context_lengths: [s], this step's tokens included;\n"
            "page_table: [total], page_table_offsets: [s + 1]; logit_rows: [m], rows of token_ids; state_rows: [k],\n"
            "rows whose last states are kept until the next step, for `states` and `state_logits`.\n"
            "Returns float32 [m, vocab_size] as a buffer, valid until the next step. Raises ValueError for arguments that\n"
            "do not fit together, TypeError for numbers beyond int32, IndexError for ids, pages or rows out of range,\n"
            "RuntimeError before finish.")
        .def("states", &states, "Of the last step's state rows what the head takes: float32 [k, hidden_size].")
        .def("state_logits", &state_logits, nb::arg("first"), nb::arg("count"),
             "Logits of `count` of the last step's state rows, from `first` on: float32 [count, vocab_size].\n"
             "Raises IndexError for rows that there are not.");
}

}  // namespace
}  // namespace postroad

NB_MODULE(_native, module) {
    module.doc() = "Whole steps of decoder models on CPUs.";
    postroad::register_model(module);
    module.def("supported_isas", &postroad::supported_isas,
               "Instruction sets that this build has kernels for and this machine runs, the fastest first.");
    postroad::register_sampler(module);
    postroad::register_logprobs(module);
}
