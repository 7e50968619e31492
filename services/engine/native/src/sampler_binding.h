#pragma once

#include <nanobind/nanobind.h>

namespace postroad {

// Adds `sample` and `RowEdit` to the module.
void register_sampler(nanobind::module_& module);

}  // namespace postroad
