#include "model_config.h"

#include <stdexcept>
#include <string>

namespace postroad {
namespace {

constexpr int64_t kLargest = int64_t{1} << 24;  // keeps every product of two sizes far from overflow

void require_size(const char* name, int64_t value) {
    if (value < 1 || value > kLargest) {
        throw std::invalid_argument(std::string(name) + " must lie between 1 and 2^24, not " + std::to_string(value));
    }
}

}  // namespace

void ModelConfig::validate() const {
    require_size("hidden_size", hidden_size);
    require_size("intermediate_size", intermediate_size);
    require_size("num_layers", num_layers());
    require_size("num_heads", num_heads);
    require_size("num_kv_heads", num_kv_heads);
    require_size("head_dim", head_dim);
    require_size("vocab_size", vocab_size);
    if (num_heads % num_kv_heads != 0) throw std::invalid_argument("num_heads must be a multiple of num_kv_heads");
    if (head_dim % 2 != 0) throw std::invalid_argument("head_dim must be even: rotary embedding needs pairs");
    for (const RopeConfig& rope : ropes) {
        if (rope.half() < 1 || rope.half() > head_dim / 2) {
            throw std::invalid_argument("rope_inv_freqs must have 1 to head_dim / 2 = " +
                                        std::to_string(head_dim / 2) + " numbers each, not " +
                                        std::to_string(rope.half()));
        }
    }
    for (const LayerConfig& layer : layers) {
        if (layer.window < 1 || layer.window > kNoWindow) {
            throw std::invalid_argument("layer_windows holds " + std::to_string(layer.window));
        }
        if (layer.rope < kNoRope || layer.rope >= static_cast<int64_t>(ropes.size())) {
            throw std::invalid_argument("layer_ropes holds " + std::to_string(layer.rope) + ", which names no rope");
        }
    }
    if (!(attention_scale > 0.0f)) throw std::invalid_argument("attention_scale must be positive");
    if (!(attention_softcap >= 0.0f)) throw std::invalid_argument("attention_softcap must not be negative");
    if (!(final_softcap >= 0.0f)) throw std::invalid_argument("final_softcap must not be negative");
}

}  // namespace postroad
