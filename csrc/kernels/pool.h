// The threads that kernels share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace shoal {

// Calls body(task) for every task in [0, tasks), on the pool's threads and the caller's; returns when all are done.
// Tasks are handed out one by one, so that a thread that the system has taken off its core delays no more than the
// task it holds. A second caller at the same time, and a call from within a task, does all its tasks itself.
using Body = void (*)(void* context, std::size_t task);
void run_tasks(std::size_t tasks, Body body, void* context);

template <class F>
void parallel(std::size_t tasks, F&& body) {
    run_tasks(
        tasks, [](void* context, std::size_t task) { (*static_cast<F*>(context))(task); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

constexpr std::int64_t GRAIN = 16384;  // numbers that are worth a task

// Calls f(row) for every row of `width` numbers, as many together as are worth a task.
template <class F>
void each_row(std::int64_t rows, std::int64_t width, F f) {
    const std::int64_t together = std::max<std::int64_t>(1, GRAIN / std::max<std::int64_t>(1, width));
    parallel(static_cast<std::size_t>((rows + together - 1) / together), [&](std::size_t task) {
        const auto first = static_cast<std::int64_t>(task) * together;
        for (std::int64_t row = first; row < std::min(rows, first + together); ++row) f(row);
    });
}

// Threads that take part, the caller's included. They run where the process may run and are not bound to single cores: on a host with neighbours, a thread
// bound to a core that somebody else has taken would hold up all others.
void set_threads(int threads);
int pool_threads();

}  // namespace shoal
