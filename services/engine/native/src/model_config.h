// What the step must know of a model: a Llama-like decoder.
#pragma once

#include <cstdint>
#include <vector>

namespace postroad {

enum class Activation { kSilu, kGeluTanh };

// Rotary position embedding of the first elements of a head, twice as many as there are frequencies.
struct RopeConfig {
    std::vector<float> inv_freq;  // radians per position
    float attention_factor;       // of cosines and sines

    int64_t half() const { return static_cast<int64_t>(inv_freq.size()); }
};

constexpr int64_t kNoWindow = int64_t{1} << 32;  // keys: more than any sequence has
constexpr int64_t kNoRope = -1;

struct LayerConfig {
    int64_t window;  // keys that a token sees, itself included
    int64_t rope;    // index into ModelConfig::ropes, or kNoRope
};

// Sizes are counts of elements.
struct ModelConfig {
    int64_t hidden_size = 0;
    int64_t intermediate_size = 0;
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
    bool post_norms = false;   // what attention and MLP give is normalised before it is added to the residual
    float norm_offset = 0.0f;  // added to the weights of all norms
    float embedding_scale = 1.0f;
    float attention_scale = 0.0f;    // of the products of queries and keys
    float attention_softcap = 0.0f;  // scores s become c * tanh(s / c); 0: they do not
    float final_softcap = 0.0f;      // likewise logits
    Activation activation = Activation::kSilu;
    std::vector<LayerConfig> layers;
    std::vector<RopeConfig> ropes;

    int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
    int64_t group_size() const { return num_heads / num_kv_heads; }  // query heads per KV head
    int64_t q_size() const { return num_heads * head_dim; }
    int64_t kv_size() const { return num_kv_heads * head_dim; }

    // Throws std::invalid_argument where sizes make no sense together.
    void validate() const;
};

}  // namespace postroad
