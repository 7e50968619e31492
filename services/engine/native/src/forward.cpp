#include "forward.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "parallel_linear.h"

namespace postroad {

namespace {

constexpr int64_t kOwnRows = 128;  // rows per thread from which on each thread keeps to its own
constexpr int64_t kRowsOfOne = 2;  // short work on so few rows is done by one thread before several have met

}  // namespace

void Head::run(Worker& worker, int64_t first_row, int64_t count, float* logits) const {
    const ElementRows& normed = workspace.normed;
    const LinearCall call{weights.lm_head(), normed.row(first_row), normed.stride_words, logits,
                          config.vocab_size, Epilogue::kStore};
    parallel_linear(worker, kernels, workspace.quantized, call, 0, count);
    if (config.final_softcap == 0.0f) return;
    constexpr int64_t kAtOnce = 4096;
    const int64_t size = count * config.vocab_size;
    worker.parallel_for(ceil_div(size, kAtOnce), 1, [&](int64_t first, int64_t last) {
        const int64_t begin = first * kAtOnce, end = std::min(size, last * kAtOnce);
        kernels.soften(logits + begin, end - begin, config.final_softcap);
    });
}

// Few rows: the threads share out the features of each linear layer, and meet after it. Many: each thread computes all
// of its own rows, whose activations stay in its caches, and they meet where rows attend to each other's keys.
void Forward::run(Worker& worker) const {
    Worker own = worker.alone();
    const bool is_long = by_rows(worker);
    Worker& hands = is_long ? own : worker;
    const Rows rows = is_long ? rows_of(worker) : all_rows();
    embed(hands, rows);
    const auto& layers = weights.layers();
    const auto last = static_cast<int64_t>(layers.size()) - 1;
    for (int64_t index = 0; index <= last; ++index) {
        project(hands, layers[index], index, rows);
        if (is_long) worker.barrier();
        if (index == last && batch.wanted_rows.empty()) return;
        StepAttention{config, kernels, cache, batch, plans, workspace}.run(worker, index);
        if (is_long) worker.barrier();
        if (index == last) break;
        finish_layer(hands, layers[index], rows);
        expect_linear(hands, layers[index + 1].qkv);
    }
    const Rows wanted = select_rows(worker);
    finish_layer(worker, layers[last], wanted);
    expect_linear(worker, weights.lm_head());
    norm(worker, wanted, weights.final_norm());
    Head{config, kernels, weights, workspace}.run(worker, 0, batch.num_logit_rows, logits);
}

bool Forward::by_rows(const Worker& worker) const {
    return worker.team_size() > 1 && batch.num_tokens() >= kOwnRows * worker.team_size();
}

// Nearly equal shares of all rows.
Forward::Rows Forward::rows_of(const Worker& worker) const {
    const int64_t share = ceil_div(batch.num_tokens(), worker.team_size());
    const int64_t first = std::min(worker.index() * share, batch.num_tokens());
    return {first, std::min(share, batch.num_tokens() - first), workspace.residual, workspace.attended};
}

Forward::Rows Forward::all_rows() const { return {0, batch.num_tokens(), workspace.residual, workspace.attended}; }

template <class Task>
void Forward::for_each_row(Worker& worker, const Rows& rows, const Task& task) const {
    for_each_span(worker, rows, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) task(row);
    });
}

// Calls task(first, last) for spans of neighbouring rows.
template <class Task>
void Forward::for_each_span(Worker& worker, const Rows& rows, const Task& task) const {
    const auto some = [&](int64_t first, int64_t last) { task(rows.first + first, rows.first + last); };
    if (rows.count <= kRowsOfOne) return worker.once([&] { some(0, rows.count); });
    worker.parallel_for(rows.count, std::max<int64_t>(1, rows.count / (4 * worker.team_size())), some);
}

void Forward::embed(Worker& worker, const Rows& rows) const {
    for_each_row(worker, rows, [&](int64_t token) {
        float* residual = workspace.residual.row(token);
        weights.embed(batch.token_ids[token], residual);
        if (config.embedding_scale != 1.0f) {
            for (int64_t i = 0; i < config.hidden_size; ++i) residual[i] *= config.embedding_scale;
        }
        const auto position = static_cast<float>(batch.tokens[token].position);
        float* cosines = workspace.cosines.row(token);
        float* sines = workspace.sines.row(token);
        for (const RopeConfig& rope : config.ropes) {
            for (const float frequency : rope.inv_freq) {
                *cosines++ = std::cos(position * frequency) * rope.attention_factor;
                *sines++ = std::sin(position * frequency) * rope.attention_factor;
            }
        }
    });
}

// Queries, and keys and values into the cache: those of all sequences before any attends, since one may read a page
// that another fills in this very step.
void Forward::project(Worker& worker, const LayerWeights& layer, int64_t index, const Rows& rows) const {
    norm(worker, rows, layer.attention_norm);
    linear(worker, layer.qkv, workspace.normed, workspace.projected.row(0), workspace.projected.stride,
           Epilogue::kStore, rows);
    expect_linear(worker, layer.output);
    place_heads(worker, layer, index, rows);
}

void Forward::place_heads(Worker& worker, const LayerWeights& layer, int64_t index, const Rows& rows) const {
    const int64_t group = config.group_size();
    const int64_t rope = config.layers[index].rope;
    const int64_t first_angle = std::accumulate(config.ropes.begin(), config.ropes.begin() + std::max<int64_t>(rope, 0),
                                                int64_t{0}, [](int64_t sum, const auto& r) { return sum + r.half(); });
    const int64_t query_stride = workspace.queries.stride_words * elements_per_word(kernels.format);
    HeadsCall call{};
    call.num_heads = static_cast<int>(config.num_heads);
    call.num_kv_heads = static_cast<int>(config.num_kv_heads);
    call.head_dim = static_cast<int>(config.head_dim);
    call.q_norm = layer.q_norm;
    call.k_norm = layer.k_norm;
    call.norm_eps = config.rms_norm_eps;
    // Weights are powers of 2. With a cap, log2(e) comes into the scores only behind it.
    call.query_scale =
        config.attention_scale * (config.attention_softcap > 0.0f ? 1.0f / config.attention_softcap : kLog2E);
    call.rotated_pairs = rope == kNoRope ? 0 : static_cast<int>(config.ropes[rope].half());
    call.projected_stride = workspace.projected.stride;
    call.angle_stride = workspace.cosines.stride;
    call.scratch = reinterpret_cast<uint32_t*>(workspace.thread_scratch.row(worker.index()));
    call.query_stride = query_stride;
    call.group_stride = workspace.token_capacity * group * query_stride;
    call.head_words = cache.head_words();
    call.value_stride = cache.value_stride();
    for_each_span(worker, rows, [&](int64_t first, int64_t last) {
        for (int64_t token = first; token < last; token += call.num_tokens) {
            const BatchToken& place = batch.tokens[token];
            call.num_tokens = static_cast<int>(batch.neighbours(token, last));
            call.projected = workspace.projected.row(token);
            call.cosines = workspace.cosines.row(token) + first_angle;
            call.sines = workspace.sines.row(token) + first_angle;
            call.queries = workspace.queries.row(token * group);
            call.keys = cache.keys(index, place.block, 0);
            call.values = cache.values(index, place.block, 0);
            call.scales = cache.scales(index, place.block, 0);
            call.slot = place.slot;
            call.clears_rest = batch.tokens[token + call.num_tokens - 1].clears_rest;
            kernels.kv(cache.format()).heads(call);
        }
    });
}

// Once all keys and values are written, only rows whose logits or states are wanted are worth computing.
Forward::Rows Forward::select_rows(Worker& worker) const {
    const std::vector<int32_t>& wanted = batch.wanted_rows;
    const Rows rows{0, static_cast<int64_t>(wanted.size()), workspace.last_residual, workspace.last_attended};
    for_each_row(worker, rows, [&](int64_t i) {
        std::memcpy(rows.residual.row(i), workspace.residual.row(wanted[i]), sizeof(float) * config.hidden_size);
        std::memcpy(rows.attended.row(i), workspace.attended.row(wanted[i]),
                    sizeof(uint32_t) * workspace.attended.stride_words);
    });
    return rows;
}

// Everything of a layer that follows attention. Adds to the residual.
void Forward::finish_layer(Worker& worker, const LayerWeights& layer, const Rows& rows) const {
    const ElementRows& gated = workspace.gated;
    add_linear(worker, layer.output, rows.attended, layer.attention_post_norm, rows);
    expect_linear(worker, layer.gate_up);
    norm(worker, rows, layer.mlp_norm);
    const Epilogue activation = config.activation == Activation::kSilu ? Epilogue::kSiluMul : Epilogue::kGeluMul;
    linear(worker, layer.gate_up, workspace.normed, gated.row(0),
           gated.stride_words * elements_per_word(kernels.format), activation, rows);
    expect_linear(worker, layer.down);
    add_linear(worker, layer.down, gated, layer.mlp_post_norm, rows);
}

// Adds a product to the residual, normalised if `post_norm` is given.
void Forward::add_linear(Worker& worker, const Linear& product, const ElementRows& input, const float* post_norm,
                         const Rows& rows) const {
    const FloatRows& output = post_norm ? workspace.branch : rows.residual;
    linear(worker, product, input, output.row(0), output.stride, post_norm ? Epilogue::kStore : Epilogue::kAccumulate,
           rows);
    if (!post_norm) return;
    for_each_row(worker, rows, [&](int64_t row) {
        kernels.add_rms_norm(
            {workspace.branch.row(row), post_norm, config.rms_norm_eps, config.hidden_size, rows.residual.row(row)});
    });
}

void Forward::norm(Worker& worker, const Rows& rows, const float* weight) const {
    for_each_row(worker, rows, [&](int64_t row) {
        kernels.rms_norm(
            {rows.residual.row(row), weight, config.rms_norm_eps, config.hidden_size, workspace.normed.row(row)});
    });
}

// output: row 0 of what the product goes to.
void Forward::linear(Worker& worker, const Linear& product, const ElementRows& input, void* output,
                     int64_t output_stride, Epilogue epilogue, const Rows& rows) const {
    const LinearCall call{product, input.row(0), input.stride_words, output, output_stride, epilogue};
    parallel_linear(worker, kernels, workspace.quantized, call, rows.first, rows.first + rows.count);
}

}  // namespace postroad
