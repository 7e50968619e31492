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
    require_size("num_layers", num_layers);
    require_size("num_heads", num_heads);
    require_size("num_kv_heads", num_kv_heads);
    require_size("head_dim", head_dim);
    require_size("vocab_size", vocab_size);
    if (num_heads % num_kv_heads != 0) throw std::invalid_argument("num_heads must be a multiple of num_kv_heads");
    if (head_dim % 2 != 0) throw std::invalid_argument("head_dim must be even: rotary embedding needs pairs");
    if (static_cast<int64_t>(rope_inv_freq.size()) != head_dim / 2) {
        throw std::invalid_argument("rope_inv_freq must have head_dim / 2 = " + std::to_string(head_dim / 2) +
                                    " numbers, not " + std::to_string(rope_inv_freq.size()));
    }
}

}  // namespace postroad
