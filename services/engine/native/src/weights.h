// A model's weights, packed for the kernels as they arrive.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "elements.h"
#include "huge_pages.h"
#include "kernels/kernels.h"
#include "model_config.h"
#include "source_tensor.h"

namespace postroad {

// How matrices are stored, by the tensor's name.
struct WeightFormats {
    WeightFormat otherwise = WeightFormat::kElements;
    std::map<std::string, WeightFormat> by_name;

    WeightFormat of(const std::string& tensor) const;
};

struct LayerWeights {
    const float* attention_norm;  // [hidden_size]
    Linear qkv;                   // features: queries, keys, values
    const float* q_norm;          // [head_dim], null without qk_norm
    const float* k_norm;
    Linear output;
    const float* attention_post_norm;  // [hidden_size], null without post_norms
    const float* mlp_norm;             // [hidden_size]
    Linear gate_up;         // panels of 16 gate and 16 up features, see Epilogue::kSiluMul
    Linear down;
    const float* mlp_post_norm;  // [hidden_size], null without post_norms
};

// Owns all weights in one mapping. Every tensor of the checkpoint has its place before it is read.
class Weights {
public:
    // format: of what is not stored as integers. Linear layers that are computed as one (queries, keys and values; gate
    // and up) are stored as integers where all their parts are to be, in the same format. A table of embeddings of its
    // own is never. Throws std::bad_alloc.
    Weights(const ModelConfig& config, Format format, WeightFormats formats);

    // Packs one tensor. Throws std::invalid_argument for a name that has no place or came before, or another shape.
    void set(const std::string& name, const SourceTensor& tensor);

    // Throws std::invalid_argument naming tensors that have not come.
    void require_complete() const;

    // Writes the embedding of a token as float32. token_id must be valid; output: [hidden_size].
    void embed(int64_t token_id, float* output) const;

    const std::vector<LayerWeights>& layers() const { return layers_; }
    const float* final_norm() const { return final_norm_; }
    const Linear& lm_head() const { return lm_head_; }
    size_t bytes() const { return memory_.size(); }
    int64_t quantized_row_words() const;                // of the longest row that a layer of integers reads, or 0
    std::map<WeightFormat, int64_t> num_linears() const;  // by format

private:
    // Where a tensor goes: a vector of floats, rows of a packed linear, or the table of embeddings.
    struct Place {
        enum class Kind { kVector, kPanels, kTable } kind;
        int64_t rows, columns;  // of the tensor; a vector has 1 row
        uint32_t* words;        // start of the vector, the linear's panels, or the table
        int64_t first_feature;  // of the packed linear
        int64_t interleave;     // kPanel / 2 for gate and up (every other half panel), else kPanel
        int64_t row_words;      // of a packed input row or a row of the table
        float offset = 0.0f;    // added to the numbers of a vector
        int64_t panel_words = 0;
        WeightFormat format = WeightFormat::kElements;
        uint32_t* scales = nullptr;  // of the linear's features, where the format has them
        bool filled = false;
    };
    struct Part {
        std::string name;
        int64_t features;
    };
    class Allocator;

    void lay_out(const ModelConfig& config, Allocator& allocator);
    void fill_vector(const Place& place, const SourceTensor& tensor);
    void fill_panels(const Place& place, const SourceTensor& tensor);
    void fill_blocks(const Place& place, const SourceTensor& tensor);
    void embed_integers(int64_t token_id, float* output) const;
    template <class Visit>
    void for_each_linear(const Visit& visit) const;

    Format format_;
    WeightFormats formats_;
    HugePages memory_;
    std::map<std::string, Place> places_;
    std::vector<LayerWeights> layers_;
    const float* final_norm_ = nullptr;
    Linear lm_head_{};
    const uint32_t* table_ = nullptr;  // [vocab_size][row words], null where lm_head serves for both
    int64_t table_row_words_ = 0;
    int64_t hidden_size_;
    bool tied_;
};

}  // namespace postroad
