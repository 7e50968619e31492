#include "parallel_linear.h"

#include <algorithm>

namespace postroad {
namespace {

constexpr int64_t kInputBytes = int64_t{1} << 20;   // of a linear layer's input: what the second-level cache holds
constexpr int64_t kTaskBytes = int64_t{256} << 10;  // of weights: small enough that threads end together
constexpr int64_t kTaskPanels = 8;

// Panels per task: the most that still spreads all panels evenly over the threads.
int64_t panel_grain(const Linear& linear, int64_t num_threads) {
    const int64_t panels = linear.panels();
    const int64_t most = std::min(kTaskPanels, kTaskBytes / (linear.panel_words * int64_t{sizeof(uint32_t)}));
    for (int64_t grain = most; grain > 1; --grain) {
        const int64_t rounds = ceil_div(ceil_div(panels, grain), num_threads);
        if (rounds * num_threads * grain - panels <= panels / 32) return grain;
    }
    return 1;
}

// Replaces the call's input by integers, as the kernel takes them.
void quantize_input(Worker& worker, const Kernels& kernels, const ElementRows& quantized, LinearCall& call,
                    int64_t first_row, int64_t last_row) {
    const int64_t rows = last_row - first_row;
    call.tiled_input = rows >= kernels.linears[static_cast<int>(call.linear.format)].tiled_from;
    const auto some = [&](int64_t first, int64_t last) {
        for (int64_t block = first; block < last; ++block) {
            const int64_t row = first_row + block * kLongRows;
            kernels.quantize({call.input + row * call.input_stride, call.input_stride,
                              static_cast<int>(std::min<int64_t>(kLongRows, last_row - row)), call.linear.in_features,
                              call.linear.words, call.linear.format, call.tiled_input, quantized.row(row),
                              quantized.stride_words});
        }
    };
    const int64_t blocks = ceil_div(rows, kLongRows);
    if (blocks == 1) {
        worker.once([&] { some(0, blocks); });
    } else {
        worker.parallel_for(blocks, 1, some);
    }
    call.input = quantized.row(0);
    call.input_stride = quantized.stride_words;
}

}  // namespace

void parallel_linear(Worker& worker, const Kernels& kernels, const ElementRows& quantized, LinearCall call,
                     int64_t first_row, int64_t last_row) {
    if (call.linear.format != WeightFormat::kElements) {
        quantize_input(worker, kernels, quantized, call, first_row, last_row);
    }
    const LinearKernel& kernel = kernels.linears[static_cast<int>(call.linear.format)];
    const int64_t panels = call.linear.panels();
    const int64_t grain = panel_grain(call.linear, worker.team_size());
    const int64_t panel_tasks = ceil_div(panels, grain);
    const int64_t rows = last_row - first_row;
    const int64_t blocks = ceil_div(rows * call.linear.words * int64_t{sizeof(uint32_t)}, kInputBytes);
    const int64_t block_rows = round_up(ceil_div(rows, std::max<int64_t>(blocks, 1)), kernel.row_tile);
    worker.parallel_for(blocks * panel_tasks, 1, [&](int64_t first, int64_t) {
        const int64_t row = first_row + first / panel_tasks * block_rows;
        const int64_t panel = first % panel_tasks * grain;
        kernel.run(call, row, std::min(last_row, row + block_rows), panel, std::min(panels, panel + grain));
    });
}

void expect_linear(Worker& worker, const Linear& linear) {
    const int64_t grain = panel_grain(linear, worker.team_size());
    const int64_t panel = worker.first_span(ceil_div(linear.panels(), grain)) * grain;
    const int64_t panels = std::min(grain, linear.panels() - panel);
    worker.expect(linear.weights + panel * linear.panel_words, panels * linear.panel_words * int64_t{sizeof(uint32_t)});
}

}  // namespace postroad
