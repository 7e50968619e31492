// A linear layer over many rows, cut into tasks for the threads of a team.
#pragma once

#include "kernels/kernels.h"
#include "thread_pool.h"
#include "workspace.h"

namespace postroad {

// Called by every thread of the team: the layer over some rows of its input, which is elements. Where weights are
// integers, these rows become integers in the same rows of `quantized`.
void parallel_linear(Worker& worker, const Kernels& kernels, const ElementRows& quantized, LinearCall call,
                     int64_t first_row, int64_t last_row);

// The layer comes next: while the worker waits for others it may fetch the weights that it will begin with.
void expect_linear(Worker& worker, const Linear& linear);

}  // namespace postroad
