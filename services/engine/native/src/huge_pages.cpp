#include "huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace postroad {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

HugePages::HugePages(size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    mapped_ = bytes + kHugePage;
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage);
    madvise(data_, bytes, MADV_HUGEPAGE);  // advice only: without huge pages everything works, slower
}

HugePages::~HugePages() {
    if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

HugePages::HugePages(HugePages&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

HugePages& HugePages::operator=(HugePages&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace postroad
