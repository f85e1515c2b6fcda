// A bump allocator over a piece of memory; without memory, it counts what would be taken.
#pragma once

#include <cstdint>

namespace shoal {

class ScratchArena {
public:
    explicit ScratchArena(char* memory) : memory_(memory) {}

    char* bytes(std::int64_t count) {
        constexpr std::int64_t LINE = 64;
        const std::int64_t at = used_;
        used_ += (count + LINE - 1) / LINE * LINE;
        return memory_ ? memory_ + at : nullptr;
    }
    template <class T>
    T* take(std::int64_t count) {
        return reinterpret_cast<T*>(bytes(count * static_cast<std::int64_t>(sizeof(T))));
    }
    std::int64_t used() const { return used_; }

private:
    char* memory_;
    std::int64_t used_ = 0;
};

}  // namespace shoal
