#include "weights.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "packing.h"

namespace postroad {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

// Feature `row` of a part that is packed from `first_feature` on, `interleave` features in a run.
int64_t packed_feature(int64_t row, int64_t first_feature, int64_t interleave) {
    return interleave == kPanel ? first_feature + row : row / interleave * kPanel + first_feature + row % interleave;
}

}  // namespace

// Hands out the mapping's memory from the front. Its first pass only measures, so that one mapping holds everything.
class Weights::Allocator {
public:
    explicit Allocator(Weights& weights) : weights_(weights) {}

    int64_t used_words() const { return used_; }
    bool measures() const { return weights_.memory_.size() == 0; }

    uint32_t* words(int64_t count) {
        const int64_t first = used_;
        used_ = round_up(used_ + count, 16);  // cache lines
        return measures() ? nullptr : weights_.memory_.as<uint32_t>() + first;
    }

    const float* vector(const std::string& name, int64_t size, float offset) {
        uint32_t* data = words(size);
        place(name, {Place::Kind::kVector, 1, size, data, 0, kPanel, 0, offset});
        return reinterpret_cast<const float*>(data);
    }

    // A packed linear whose features are those of `parts`, one after another or, where interleaved, in half panels.
    Linear linear(const std::vector<Part>& parts, int64_t in_features, bool has_bias, bool interleaved = false) {
        int64_t features = 0;
        for (const Part& part : parts) {
            features += interleaved ? round_up(part.features, kPanel / 2) : part.features;
        }
        Linear linear{};
        linear.out_features = features;
        linear.in_features = in_features;
        linear.format = common_format(parts);
        if (linear.format == WeightFormat::kElements) {
            linear.words = row_words(in_features);
            linear.panel_words = linear.words * kPanel;
        } else {
            linear.words = round_up(ceil_div(in_features, int64_t{sizeof(uint32_t)}), kWordPadding);
            linear.panel_words = linear.words / kGroupWords * block_words(linear.format);
        }
        uint32_t* panels = words(linear.panels() * linear.panel_words);
        uint32_t* bias = has_bias ? words(linear.panels() * kPanel) : nullptr;
        uint32_t* scales = scales_features(linear.format) ? words(linear.panels() * kPanel) : nullptr;
        const int64_t interleave = interleaved ? kPanel / 2 : kPanel;
        int64_t first = 0;
        for (const Part& part : parts) {
            place(part.name + ".weight",
                  {Place::Kind::kPanels, part.features, in_features, panels, first, interleave, linear.words, 0.0f,
                   linear.panel_words, linear.format, scales});
            if (has_bias) {
                place(part.name + ".bias", {Place::Kind::kVector, 1, part.features, bias, first, interleave, 0});
            }
            first += interleaved ? interleave : part.features;
        }
        linear.weights = panels;
        linear.bias = reinterpret_cast<const float*>(bias);
        linear.scales = reinterpret_cast<const float*>(scales);
        return linear;
    }

    const uint32_t* table(const std::string& name, int64_t rows, int64_t columns) {
        uint32_t* data = words(rows * row_words(columns));
        place(name, {Place::Kind::kTable, rows, columns, data, 0, kPanel, row_words(columns)});
        return data;
    }

    // Words of a row of elements.
    int64_t row_words(int64_t features) const {
        return round_up(ceil_div(features, elements_per_word(weights_.format_)), kWordPadding);
    }

private:
    WeightFormat common_format(const std::vector<Part>& parts) const {
        const WeightFormat format = weights_.formats_.of(parts.front().name + ".weight");
        for (const Part& part : parts) {
            if (weights_.formats_.of(part.name + ".weight") != format) return WeightFormat::kElements;
        }
        return format;
    }

    void place(const std::string& name, const Place& place) {
        if (!measures()) weights_.places_.emplace(name, place);
    }

    Weights& weights_;
    int64_t used_ = 0;
};

WeightFormat WeightFormats::of(const std::string& tensor) const {
    const auto found = by_name.find(tensor);
    return found == by_name.end() ? otherwise : found->second;
}

Weights::Weights(const ModelConfig& config, Format format, WeightFormats formats)
    : format_(format), formats_(std::move(formats)), hidden_size_(config.hidden_size), tied_(config.tie_word_embeddings) {
    Allocator measuring(*this);
    lay_out(config, measuring);
    memory_ = HugePages(measuring.used_words() * sizeof(uint32_t));
    Allocator placing(*this);
    lay_out(config, placing);
}

void Weights::lay_out(const ModelConfig& config, Allocator& allocator) {
    const int64_t hidden = config.hidden_size;
    const auto norm = [&](const std::string& name, int64_t size) {
        return allocator.vector(name + ".weight", size, config.norm_offset);
    };
    layers_.clear();
    for (int64_t index = 0; index < config.num_layers(); ++index) {
        const std::string layer = "model.layers." + std::to_string(index);
        const std::string attention = layer + ".self_attn";
        LayerWeights weights{};
        weights.attention_norm = norm(layer + ".input_layernorm", hidden);
        weights.qkv = allocator.linear({{attention + ".q_proj", config.q_size()},
                                        {attention + ".k_proj", config.kv_size()},
                                        {attention + ".v_proj", config.kv_size()}},
                                       hidden, config.qkv_bias);
        if (config.qk_norm) {
            weights.q_norm = norm(attention + ".q_norm", config.head_dim);
            weights.k_norm = norm(attention + ".k_norm", config.head_dim);
        }
        weights.output = allocator.linear({{attention + ".o_proj", hidden}}, config.q_size(), config.o_bias);
        if (config.post_norms) {
            weights.attention_post_norm = norm(layer + ".post_attention_layernorm", hidden);
            weights.mlp_post_norm = norm(layer + ".post_feedforward_layernorm", hidden);
        }
        // Where there is a norm behind attention, it has the name that is otherwise that of the norm before the MLP.
        weights.mlp_norm =
            norm(layer + (config.post_norms ? ".pre_feedforward_layernorm" : ".post_attention_layernorm"), hidden);
        weights.gate_up = allocator.linear(
            {{layer + ".mlp.gate_proj", config.intermediate_size}, {layer + ".mlp.up_proj", config.intermediate_size}},
            hidden, config.mlp_bias, /*interleaved=*/true);
        weights.down =
            allocator.linear({{layer + ".mlp.down_proj", hidden}}, config.intermediate_size, config.mlp_bias);
        layers_.push_back(weights);
    }
    final_norm_ = norm("model.norm", hidden);
    const std::string head = tied_ ? "model.embed_tokens" : "lm_head";
    lm_head_ = allocator.linear({{head, config.vocab_size}}, hidden, false);
    table_row_words_ = allocator.row_words(hidden);
    if (!tied_) table_ = allocator.table("model.embed_tokens.weight", config.vocab_size, hidden);
}

void Weights::set(const std::string& name, const SourceTensor& tensor) {
    const auto found = places_.find(name);
    if (found == places_.end()) throw std::invalid_argument("unexpected tensor " + name);
    Place& place = found->second;
    if (place.filled) throw std::invalid_argument("tensor " + name + " came twice");
    const bool is_vector = place.kind == Place::Kind::kVector;
    const std::vector<int64_t> expected =
        is_vector ? std::vector<int64_t>{place.columns} : std::vector<int64_t>{place.rows, place.columns};
    if (tensor.shape != expected) {
        throw std::invalid_argument("tensor " + name + " has shape " + shape_text(tensor.shape) +
                                    ", the config calls for " + shape_text(expected));
    }
    place.filled = true;
    switch (place.kind) {
        case Place::Kind::kVector:
            return fill_vector(place, tensor);
        case Place::Kind::kPanels:
            return place.format == WeightFormat::kElements ? fill_panels(place, tensor) : fill_blocks(place, tensor);
        case Place::Kind::kTable:
            for (int64_t row = 0; row < place.rows; ++row) {
                pack_row(tensor, row, place.columns, format_, place.words + row * place.row_words);
            }
    }
}

void Weights::fill_vector(const Place& place, const SourceTensor& tensor) {
    std::vector<float> values(place.columns);
    source_row(tensor, 0, place.columns, values.data());
    for (int64_t i = 0; i < place.columns; ++i) {
        place.words[packed_feature(i, place.first_feature, place.interleave)] = float_bits(values[i] + place.offset);
    }
}

// A few features at a time, so that what is written side by side stays in the cache until its line is full.
void Weights::fill_panels(const Place& place, const SourceTensor& tensor) {
    constexpr int64_t kAtOnce = 16;
    std::vector<uint32_t> rows(kAtOnce * place.row_words);  // zero where a row is padded, and in half a last pair
    uint32_t* columns[kAtOnce];
    for (int64_t first = 0; first < place.rows; first += kAtOnce) {
        const int64_t count = std::min(kAtOnce, place.rows - first);
        for (int64_t i = 0; i < count; ++i) {
            pack_row(tensor, first + i, place.columns, format_, rows.data() + i * place.row_words);
            const int64_t feature = packed_feature(first + i, place.first_feature, place.interleave);
            columns[i] = place.words + feature / kPanel * place.row_words * kPanel + feature % kPanel;
        }
        for (int64_t word = 0; word < place.row_words; ++word) {
            for (int64_t i = 0; i < count; ++i) columns[i][word * kPanel] = rows[i * place.row_words + word];
        }
    }
}

// As fill_panels. A linear's groups are filled side by side.
void Weights::fill_blocks(const Place& place, const SourceTensor& tensor) {
    constexpr int64_t kAtOnce = 16;
    const int64_t groups = place.row_words / kGroupWords;
    IntegerRow rows[kAtOnce];
    for (IntegerRow& row : rows) row.groups.resize(groups);
    for (int64_t first = 0; first < place.rows; first += kAtOnce) {
        const int64_t count = std::min(kAtOnce, place.rows - first);
        int64_t features[kAtOnce];
        for (int64_t i = 0; i < count; ++i) {
            features[i] = packed_feature(first + i, place.first_feature, place.interleave);
            quantize_row(tensor, first + i, place.columns, place.format, rows[i]);
            if (place.scales) place.scales[features[i]] = float_bits(rows[i].scale);
        }
        for (int64_t g = 0; g < groups; ++g) {
            for (int64_t i = 0; i < count; ++i) {
                uint32_t* block =
                    place.words + features[i] / kPanel * place.panel_words + g * block_words(place.format);
                store_group(rows[i].groups[g], place.format, block, static_cast<int>(features[i] % kPanel));
            }
        }
    }
}

template <class Visit>
void Weights::for_each_linear(const Visit& visit) const {
    for (const LayerWeights& layer : layers_) {
        for (const Linear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) visit(*linear);
    }
    visit(lm_head_);
}

int64_t Weights::quantized_row_words() const {
    int64_t longest = 0;
    for_each_linear([&](const Linear& linear) {
        if (linear.format == WeightFormat::kElements) return;
        longest = std::max(longest, postroad::quantized_row_words(linear.format, linear.words));
    });
    return longest;
}

std::map<WeightFormat, int64_t> Weights::num_linears() const {
    std::map<WeightFormat, int64_t> numbers;
    for_each_linear([&](const Linear& linear) { ++numbers[linear.format]; });
    return numbers;
}

void Weights::require_complete() const {
    std::string missing;
    int count = 0;
    for (const auto& [name, place] : places_) {
        if (!place.filled && ++count <= 3) missing += (count > 1 ? ", " : "") + name;
    }
    if (count == 0) return;
    if (count > 3) missing += " and " + std::to_string(count - 3) + " more";
    throw std::invalid_argument("missing tensors: " + missing);
}

void Weights::embed(int64_t token_id, float* output) const {
    if (!table_ && lm_head_.format != WeightFormat::kElements) return embed_integers(token_id, output);
    const int64_t row_words = table_ ? table_row_words_ : lm_head_.words;
    const int64_t stride = table_ ? 1 : kPanel;
    const uint32_t* row = table_ ? table_ + token_id * row_words
                                 : lm_head_.weights + token_id / kPanel * row_words * kPanel + token_id % kPanel;
    if (format_ == Format::kF32) {
        for (int64_t i = 0; i < hidden_size_; ++i) output[i] = bits_float(row[i * stride]);
        return;
    }
    for (int64_t i = 0; i < hidden_size_; ++i) {
        output[i] = float_from_bf16(static_cast<uint16_t>(row[i / 2 * stride] >> (i % 2 * 16)));
    }
}

void Weights::embed_integers(int64_t token_id, float* output) const {
    const uint32_t* panel = lm_head_.weights + token_id / kPanel * lm_head_.panel_words;
    const auto column = static_cast<int>(token_id % kPanel);
    const float scale = lm_head_.scales ? lm_head_.scales[token_id] : 1.0f;
    for (int64_t i = 0; i < hidden_size_; ++i) {
        const uint32_t* block = panel + i / kGroup * block_words(lm_head_.format);
        output[i] = scale * block_weight(block, lm_head_.format, column, static_cast<int>(i % kGroup));
    }
}

}  // namespace postroad
