// Parts of a piece of memory, one after another; or, without memory, how much that is.
#pragma once

#include <cstdint>

namespace shoal {

class Places {
public:
    explicit Places(char* memory) : memory_(memory) {}

    char* bytes(std::int64_t count) {
        constexpr std::int64_t LINE = 64;
        const std::int64_t at = end_;
        end_ += (count + LINE - 1) / LINE * LINE;
        return memory_ ? memory_ + at : nullptr;
    }
    template <class T>
    T* take(std::int64_t count) {
        return reinterpret_cast<T*>(bytes(count * static_cast<std::int64_t>(sizeof(T))));
    }
    std::int64_t end() const { return end_; }

private:
    char* memory_;
    std::int64_t end_ = 0;
};

}  // namespace shoal
