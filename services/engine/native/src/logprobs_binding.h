#pragma once

#include <nanobind/nanobind.h>

namespace postroad {

void register_logprobs(nanobind::module_& module);

}  // namespace postroad
