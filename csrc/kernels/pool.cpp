// A pool whose whole state of "what is there to do" is one word, so that claiming a task is one atomic addition and
// a thread that comes late can never mistake one job for the next:
//
//     ticket    job number : 24 | tasks : 20 | next task : 20
//
// A thread that draws a task below the count holds its job open: the caller waits for every drawn task, and writes
// the next job's body and context only after that.
#include "pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sched.h>
#endif

namespace shoal {
namespace {

// How long an idle thread looks for work before it sleeps: a little more than is between two kernels of a step.
constexpr auto SPIN = std::chrono::microseconds(50);
constexpr int TASK_BITS = 20;
constexpr std::uint64_t TASK_MASK = (1u << TASK_BITS) - 1;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
public:
    void resize(int threads) {
        std::lock_guard<std::mutex> hold(busy_);
        if (threads - 1 == static_cast<int>(workers_.size())) return;
        stop();
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
        threads_.store(threads, std::memory_order_relaxed);
    }

    int threads() const { return threads_.load(std::memory_order_relaxed); }

    void run(std::size_t tasks, Body body, void* context) {
        if (tasks > 1 && !workers_.empty() && !inside_ && busy_.try_lock()) {
            std::lock_guard<std::mutex> hold(busy_, std::adopt_lock);
            for (std::size_t first = 0; first < tasks;) {
                const std::size_t count = tasks - first < TASK_MASK / 2 ? tasks - first : TASK_MASK / 2;
                share(first, count, body, context);
                first += count;
            }
            return;
        }
        for (std::size_t task = 0; task < tasks; ++task) body(context, task);
    }

    // In the child of a fork there are no threads any more, only their handles, which may not be joined.
    void forget() {
        for (auto& worker : workers_) worker.detach();
        workers_.clear();
        threads_.store(1, std::memory_order_relaxed);
        new (&busy_) std::mutex;
    }

    ~Pool() {
        std::lock_guard<std::mutex> hold(busy_);
        stop();
    }

private:
    void share(std::size_t first, std::size_t count, Body body, void* context) {
        first_ = first;
        body_ = body;
        context_ = context;
        done_.store(0, std::memory_order_relaxed);
        job_ += 1;
        ticket_.store((job_ << (2 * TASK_BITS)) | (std::uint64_t{count} << TASK_BITS), std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) {
            bell_.fetch_add(1, std::memory_order_release);
            bell_.notify_all();
        }
        inside_ = true;
        while (step()) {
        }
        inside_ = false;
        for (int spins = 0; done_.load(std::memory_order_acquire) < count; ++spins) {
            if (spins < 4096) {
                pause();
            } else {
                std::this_thread::yield();
            }
        }
    }

    static bool open(std::uint64_t ticket) {
        return (ticket & TASK_MASK) < ((ticket >> TASK_BITS) & TASK_MASK);
    }

    // Draws and does one task; false when there is none.
    bool step() {
        if (!open(ticket_.load(std::memory_order_relaxed))) return false;
        const std::uint64_t drawn = ticket_.fetch_add(1, std::memory_order_acq_rel);
        if (!open(drawn)) return false;
        body_(context_, first_ + (drawn & TASK_MASK));
        done_.fetch_add(1, std::memory_order_release);
        return true;
    }

    void work() {
        inside_ = true;
        while (!stopping_.load(std::memory_order_relaxed)) {
            while (step()) {
            }
            if (!spin()) sleep();
        }
    }

    // Looks for work for a while; false when none came.
    bool spin() {
        const auto start = std::chrono::steady_clock::now();
        do {
            for (int i = 0; i < 32; ++i) {
                if (open(ticket_.load(std::memory_order_relaxed))) return true;
                pause();
            }
        } while (std::chrono::steady_clock::now() - start < SPIN);
        return false;
    }

    void sleep() {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        const std::uint32_t seen = bell_.load(std::memory_order_seq_cst);
        // A job that was published before the line above rang no bell for this thread.
        if (!open(ticket_.load(std::memory_order_seq_cst)) && !stopping_.load(std::memory_order_seq_cst)) {
            bell_.wait(seen, std::memory_order_acquire);
        }
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

    void stop() {
        stopping_.store(true, std::memory_order_seq_cst);
        bell_.fetch_add(1, std::memory_order_seq_cst);
        bell_.notify_all();
        for (auto& worker : workers_) worker.join();
        workers_.clear();
        stopping_.store(false, std::memory_order_seq_cst);
        threads_.store(1, std::memory_order_relaxed);
    }

    alignas(64) std::atomic<std::uint64_t> ticket_{0};
    alignas(64) std::atomic<std::size_t> done_{0};
    alignas(64) std::atomic<std::uint32_t> bell_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stopping_{false};
    std::atomic<int> threads_{1};
    Body body_ = nullptr;
    void* context_ = nullptr;
    std::size_t first_ = 0;
    std::uint64_t job_ = 0;
    std::mutex busy_;
    std::vector<std::thread> workers_;
    static thread_local bool inside_;
};

thread_local bool Pool::inside_ = false;

// Never destroyed: at exit a thread may still be asleep in it, and the system takes threads and memory together.
Pool& pool() {
    static Pool* const shared = [] {
        auto* made = new Pool;
#if defined(__unix__) || defined(__APPLE__)
        pthread_atfork(nullptr, nullptr, [] { pool().forget(); });
#endif
        return made;
    }();
    return *shared;
}

}  // namespace

void run_tasks(std::size_t tasks, Body body, void* context) { pool().run(tasks, body, context); }

void set_threads(int threads) {
    if (threads >= 1 && threads != pool_threads()) pool().resize(threads);
}

int pool_threads() { return pool().threads(); }

}  // namespace shoal
