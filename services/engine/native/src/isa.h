// Instruction sets that kernels are compiled for, and which of them this machine runs.
#pragma once

#include <string>
#include <vector>

#include "elements.h"
#include "kernels/kernels.h"

namespace postroad {

// Names of the instruction sets that this build has kernels for and this machine runs, the fastest first. Looked up once:
// a virtual machine answers for its processor slowly, in 15 us.
const std::vector<std::string>& supported_isas();

// The kernels of the instruction set `isa` ("auto": the fastest). Throws std::invalid_argument for any other name
// than those of `supported_isas`.
const Kernels& select_kernels(const std::string& isa, Format format);

}  // namespace postroad
