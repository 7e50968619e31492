#include "isa.h"

#include <stdexcept>

namespace postroad {
namespace {

struct Isa {
    const char* name;
    bool (*runs)();
    const Kernels& (*kernels)(Format);
};

#if defined(__x86_64__)
bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool runs_avx512() {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool runs_avx512_bf16() {
    return runs_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif

bool always() { return true; }

constexpr Isa kIsas[] = {
#if defined(__x86_64__)
    {"avx512_bf16", runs_avx512_bf16, avx512_bf16_kernels},
    {"avx512", runs_avx512, avx512_kernels},
    {"avx2", runs_avx2, avx2_kernels},
#endif
    {"portable", always, portable_kernels},
};

}  // namespace

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const Isa& isa : kIsas) {
        if (isa.runs()) names.emplace_back(isa.name);
    }
    return names;
}

const Kernels& select_kernels(const std::string& name, Format format) {
    for (const Isa& isa : kIsas) {
        if ((name == "auto" || name == isa.name) && isa.runs()) return isa.kernels(format);
    }
    std::string known;
    for (const std::string& supported : supported_isas()) known += " " + supported;
    throw std::invalid_argument("isa '" + name + "' is not supported here (supported: auto" + known + ")");
}

}  // namespace postroad
