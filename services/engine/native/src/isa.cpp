#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <stdexcept>

namespace postroad {
namespace {

struct Isa {
    const char* name;
    bool (*runs)();
    const Kernels& (*kernels)(Format);
};

#if defined(__x86_64__)
bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

bool runs_avx512() {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool runs_avx512_bf16() {
    return runs_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

// Linux grants the registers for tiles to a process that asks for them.
bool runs_amx() {
    constexpr unsigned kAmx = 1u << 22 | 1u << 24 | 1u << 25;  // bf16, tiles, int8: cpuid leaf 7, edx
    constexpr long kRequestPermission = 0x1023, kTileData = 18;   // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned eax, ebx, ecx, edx;
    if (!runs_avx512_bf16() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    if ((edx & kAmx) != kAmx) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool always() { return true; }

constexpr Isa kIsas[] = {
#if defined(__x86_64__)
    {"amx", runs_amx, amx_kernels},          {"avx512_bf16", runs_avx512_bf16, avx512_bf16_kernels},
    {"avx512", runs_avx512, avx512_kernels}, {"avx2", runs_avx2, avx2_kernels},
#endif
    {"portable", always, portable_kernels},
};

}  // namespace

const std::vector<std::string>& supported_isas() {
    static const std::vector<std::string> supported = [] {
        std::vector<std::string> names;
        for (const Isa& isa : kIsas) {
            if (isa.runs()) names.emplace_back(isa.name);
        }
        return names;
    }();
    return supported;
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
