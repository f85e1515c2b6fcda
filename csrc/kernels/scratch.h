// Memory of a thread that kernels work in, kept from call to call.
#pragma once

#include <cstdlib>
#include <new>

namespace shoal {

// Space for the numbers of one call. Several at once on a thread have memory of their own each, by depth.
template <class T>
class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(memory_); }

    T* take(std::size_t count) {
        const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
        memory_ = std::aligned_alloc(64, bytes ? bytes : 64);
        if (!memory_) throw std::bad_alloc();
        return static_cast<T*>(memory_);
    }

private:
    void* memory_ = nullptr;
};

}  // namespace shoal
