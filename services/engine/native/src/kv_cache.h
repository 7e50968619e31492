// Keys and values of all sequences, in blocks of 16 tokens; a page of the scheduler is one or more blocks.
#pragma once

#include "elements.h"
#include "huge_pages.h"
#include "kernels/kernels.h"
#include "model_config.h"

namespace postroad {

// Layout: [layer][block][KV head][keys, then values, and behind them the scales of int8], see kernels.h.
class KvCache {
public:
    KvCache(const ModelConfig& config, Format format, KvFormat kv_format, int64_t num_pages, int64_t page_size)
        : format_(kv_format),
          blocks_per_page_(page_size / kBlock),
          num_layers_(config.num_layers()),
          num_blocks_(num_pages * blocks_per_page_),
          num_kv_heads_(config.num_kv_heads),
          value_stride_(round_up(config.head_dim, kBlock)) {
        const int64_t per_word = elements_per_word(format);
        const int64_t shrink = kv_format == KvFormat::kInt8 ? int64_t{sizeof(uint32_t)} / per_word : 1;
        key_words_ = ceil_div(config.head_dim, per_word) * kBlock / shrink;
        value_words_ = kBlock / per_word * value_stride_ / shrink;
        head_words_ = key_words_ + value_words_ + (kv_format == KvFormat::kInt8 ? 2 * kBlock : 0);
        memory_ = HugePages(num_layers_ * num_blocks_ * block_bytes());
    }

    KvFormat format() const { return format_; }
    int64_t num_layers() const { return num_layers_; }
    int64_t num_blocks() const { return num_blocks_; }
    int64_t head_words() const { return head_words_; }      // from one KV head to the next
    int64_t value_stride() const { return value_stride_; }  // words of a row of values, were they elements
    int64_t block_stride() const { return num_kv_heads_ * head_words_; }
    int64_t block_bytes() const { return block_stride() * int64_t{sizeof(uint32_t)}; }  // of one layer

    uint32_t* keys(int64_t layer, int64_t block, int64_t kv_head) const {
        return memory_.as<uint32_t>() + (layer * num_blocks_ + block) * block_stride() + kv_head * head_words_;
    }
    uint32_t* values(int64_t layer, int64_t block, int64_t kv_head) const {
        return keys(layer, block, kv_head) + key_words_;
    }
    // Those of int8.
    float* scales(int64_t layer, int64_t block, int64_t kv_head) const {
        return reinterpret_cast<float*>(values(layer, block, kv_head) + value_words_);
    }

private:
    KvFormat format_;
    int64_t blocks_per_page_;
    int64_t num_layers_;
    int64_t num_blocks_;
    int64_t num_kv_heads_;
    int64_t value_stride_;
    int64_t key_words_;
    int64_t value_words_;
    int64_t head_words_;
    HugePages memory_;
};

}  // namespace postroad
