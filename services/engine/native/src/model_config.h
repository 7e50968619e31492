// What the step must know of a model: a Llama-like decoder.
#pragma once

#include <cstdint>
#include <vector>

namespace postroad {

enum class Activation { kSilu, kGeluTanh };

// Sizes are counts of elements.
struct ModelConfig {
    int64_t hidden_size = 0;
    int64_t intermediate_size = 0;
    int64_t num_layers = 0;
    int64_t num_heads = 0;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    int64_t vocab_size = 0;
    float rms_norm_eps = 0.0f;
    bool tie_word_embeddings = false;
    bool qkv_bias = false;
    bool o_bias = false;
    bool mlp_bias = false;
    bool qk_norm = false;
    Activation activation = Activation::kSilu;
    std::vector<float> rope_inv_freq;   // [head_dim / 2], radians per position
    float rope_attention_scale = 1.0f;  // of cosines and sines

    int64_t q_size() const { return num_heads * head_dim; }
    int64_t kv_size() const { return num_kv_heads * head_dim; }

    // Throws std::invalid_argument where sizes make no sense together.
    void validate() const;
};

}  // namespace postroad
