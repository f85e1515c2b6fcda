// Collectives between processes of one host, over a shared memory segment a group. Plain C ABI, no dependencies.
//
//   segment   page 0            magic, ranks, slot bytes, ring depth
//             line/rank         posted[r]: how many exchange rounds rank r has published
//             2 lines/channel   sent[s][d], taken[s][d]: pieces of the point-to-point ring from s to d
//             slots             slot[r][round % 2]: what rank r publishes in a round
//             rings             ring[s][d][piece % depth]
//
// Every collective is a sequence of rounds: publish a piece, wait until all have published, read what is wanted.
// Two slots are enough: a rank publishes round k only after everyone has published round k-1, and nobody does that
// before having read everything of round k-2.
//
// parallel/shm_layout.py computes its size.

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

#include <sched.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace {

constexpr uint32_t kMagic = 0x53484c32;  // "SHL2"
constexpr uint64_t kPage = 4096;
constexpr uint64_t kLine = 128;  // two cache lines: the adjacent-line prefetcher couples them
constexpr int kMaxRanks = 64;
constexpr uint64_t kYieldNs = 200'000;       // after spinning, give the core away this long before sleeping
constexpr uint64_t kFirstSleepNs = 100'000;  // doubled with each sleep
constexpr uint64_t kLastSleepNs = 20'000'000;

struct Stamp {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};
static_assert(sizeof(Stamp) == 8, "the segment's layout is shared with Python");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "stamps are shared between processes");

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1'000'000'000ull + uint64_t(t.tv_nsec);
}

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t align(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

extern "C" {

// Mirrored by ctypes in parallel/shm.py: keep the order.
struct ShoalGroup {
  uint8_t* base;
  uint64_t slot_bytes;
  uint64_t timeout_ns;
  uint64_t spin_ns;
  uint64_t waited_ns;               // out: total time spent waiting for others
  std::atomic<uint64_t>* watch;     // where the executor sees whom this rank waits for; may be null
  uint64_t watch_flag;              // or-ed into it: 1 << 31 if members move in lock-step
  const uint32_t* world;            // world rank of each index
  uint32_t ranks;
  uint32_t index;
  uint32_t depth;                   // pieces a ring
  uint32_t round;                   // exchange rounds so far
  uint32_t waits;                   // waits so far that were long enough to be announced
  uint32_t sent[kMaxRanks];
  uint32_t taken[kMaxRanks];
};

uint64_t shoal_segment_bytes(uint32_t ranks, uint64_t slot_bytes, uint32_t depth) {
  uint64_t lines = ranks + 2ull * ranks * ranks;
  return kPage + align(lines * kLine, kPage) + 2ull * ranks * slot_bytes +
         uint64_t(ranks) * ranks * depth * slot_bytes;
}

uint64_t shoal_group_bytes() { return sizeof(ShoalGroup); }

}  // extern "C"

namespace {

Stamp* posted(ShoalGroup* g, uint32_t rank) {
  return reinterpret_cast<Stamp*>(g->base + kPage + rank * kLine);
}

Stamp* channel(ShoalGroup* g, uint32_t source, uint32_t target, uint32_t which) {
  uint64_t line = g->ranks + 2ull * (uint64_t(source) * g->ranks + target) + which;
  return reinterpret_cast<Stamp*>(g->base + kPage + line * kLine);
}

uint8_t* slots(ShoalGroup* g) {
  uint64_t lines = g->ranks + 2ull * g->ranks * g->ranks;
  return g->base + kPage + align(lines * kLine, kPage);
}

uint8_t* slot(ShoalGroup* g, uint32_t rank, uint32_t round) {
  return slots(g) + (2ull * rank + round % 2) * g->slot_bytes;
}

uint8_t* ring(ShoalGroup* g, uint32_t source, uint32_t target, uint32_t piece) {
  uint64_t first = 2ull * g->ranks;
  uint64_t place = (uint64_t(source) * g->ranks + target) * g->depth + piece % g->depth;
  return slots(g) + (first + place) * g->slot_bytes;
}

void sleep_on(Stamp* stamp, uint32_t seen, uint64_t ns) {
#if defined(__linux__)
  timespec t{time_t(ns / 1'000'000'000ull), long(ns % 1'000'000'000ull)};
  stamp->sleepers.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares again, so a post between our look and this call is not missed.
  syscall(SYS_futex, &stamp->value, FUTEX_WAIT, seen, &t, nullptr, 0);
  stamp->sleepers.fetch_sub(1, std::memory_order_seq_cst);
#else
  (void)stamp;
  (void)seen;
  usleep(useconds_t(ns / 1000));
#endif
}

void post(Stamp* stamp, uint32_t value) {
  // seq_cst, so that a sleeper that we don't see counted sees our value.
  stamp->value.store(value, std::memory_order_seq_cst);
#if defined(__linux__)
  if (stamp->sleepers.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, &stamp->value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }
#endif
}

bool reached(Stamp* stamp, uint32_t value) {
  // Stamps wrap around after 2^32 rounds.
  return int32_t(stamp->value.load(std::memory_order_acquire) - value) >= 0;
}

// Spin, then yield, then sleep ever longer: more ranks than cores still progress. False after the deadline.
bool await(ShoalGroup* g, Stamp* stamp, uint32_t value, uint32_t whom) {
  if (reached(stamp, value)) return true;
  const uint64_t start = now_ns();
  const uint64_t deadline = start + g->timeout_ns;
  uint64_t now = start, nap = kFirstSleepNs;
  bool announced = false, there = false;
  while (!there && now < deadline) {
    if (now - start < g->spin_ns) {
      for (int i = 0; i < 16 && !reached(stamp, value); ++i) pause_cpu();
    } else if (now - start < g->spin_ns + kYieldNs) {
      sched_yield();
    } else {
      if (!announced && g->watch != nullptr) {
        uint64_t word = (uint64_t(++g->waits) << 32) | g->watch_flag | (g->world[whom] + 1);
        g->watch->store(word, std::memory_order_release);
        announced = true;
      }
      uint32_t seen = stamp->value.load(std::memory_order_acquire);
      if (int32_t(seen - value) < 0) {
        sleep_on(stamp, seen, nap < deadline - now ? nap : deadline - now);
        if (nap < kLastSleepNs) nap *= 2;
      }
    }
    there = reached(stamp, value);
    now = now_ns();
  }
  if (announced && there) g->watch->store(0, std::memory_order_release);
  g->waited_ns += now - start;
  return there;
}

// The first rank, in order, that has not published the round; -1 if all have.
int await_all(ShoalGroup* g, uint32_t value) {
  for (uint32_t r = 0; r < g->ranks; ++r) {
    if (r != g->index && !await(g, posted(g, r), value, r)) return int(r);
  }
  return -1;
}

int publish(ShoalGroup* g, const void* data, uint64_t bytes) {
  if (bytes != 0) std::memcpy(slot(g, g->index, g->round), data, bytes);
  post(posted(g, g->index), ++g->round);
  return await_all(g, g->round);
}

float from_bf16(uint16_t half) {
  uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);  // keep a NaN a NaN
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
}

template <typename T>
void sum(ShoalGroup* g, uint32_t round, uint8_t* out_bytes, uint64_t bytes) {
  T* out = reinterpret_cast<T*>(out_bytes);
  const uint64_t count = bytes / sizeof(T);
  const T* first = reinterpret_cast<const T*>(slot(g, 0, round));
  const T* second = reinterpret_cast<const T*>(slot(g, 1, round));
  for (uint64_t i = 0; i < count; ++i) out[i] = first[i] + second[i];
  for (uint32_t r = 2; r < g->ranks; ++r) {
    const T* part = reinterpret_cast<const T*>(slot(g, r, round));
    for (uint64_t i = 0; i < count; ++i) out[i] += part[i];
  }
}

void sum_bf16(ShoalGroup* g, uint32_t round, uint8_t* out_bytes, uint64_t bytes) {
  constexpr uint64_t kBlock = 1024;
  float total[kBlock];
  uint16_t* out = reinterpret_cast<uint16_t*>(out_bytes);
  const uint64_t count = bytes / 2;
  for (uint64_t start = 0; start < count; start += kBlock) {
    const uint64_t n = count - start < kBlock ? count - start : kBlock;
    for (uint32_t r = 0; r < g->ranks; ++r) {
      const uint16_t* part = reinterpret_cast<const uint16_t*>(slot(g, r, round)) + start;
      if (r == 0) {
        for (uint64_t i = 0; i < n; ++i) total[i] = from_bf16(part[i]);
      } else {
        for (uint64_t i = 0; i < n; ++i) total[i] += from_bf16(part[i]);
      }
    }
    for (uint64_t i = 0; i < n; ++i) out[start + i] = to_bf16(total[i]);
  }
}

}  // namespace

// Functions return -1 when all went well, else the index of the rank that did not come in time.
extern "C" {

int shoal_barrier(ShoalGroup* g) { return publish(g, nullptr, 0); }

// kind: 0 float32, 1 bfloat16, 2 int64. In place.
int shoal_all_reduce(ShoalGroup* g, void* data, uint64_t bytes, int kind) {
  uint8_t* at = static_cast<uint8_t*>(data);
  for (uint64_t done = 0; done < bytes; done += g->slot_bytes) {
    const uint64_t piece = bytes - done < g->slot_bytes ? bytes - done : g->slot_bytes;
    const int missing = publish(g, at + done, piece);
    if (missing >= 0) return missing;
    const uint32_t round = g->round - 1;
    if (kind == 0) sum<float>(g, round, at + done, piece);
    else if (kind == 1) sum_bf16(g, round, at + done, piece);
    else sum<int64_t>(g, round, at + done, piece);
  }
  return -1;
}

// outs[r] gets the sizes[r] bytes of rank r; this rank's own are copied too. Broadcast: all sizes but one are 0.
int shoal_all_gather(ShoalGroup* g, const void* data, void* const* outs, const uint64_t* sizes) {
  uint64_t longest = 0;
  for (uint32_t r = 0; r < g->ranks; ++r) longest = sizes[r] > longest ? sizes[r] : longest;
  const uint8_t* mine = static_cast<const uint8_t*>(data);
  auto share = [&](uint32_t r, uint64_t done) -> uint64_t {
    if (done >= sizes[r]) return 0;
    return sizes[r] - done < g->slot_bytes ? sizes[r] - done : g->slot_bytes;
  };
  for (uint64_t done = 0; done < longest; done += g->slot_bytes) {
    const int missing = publish(g, mine + done, share(g->index, done));
    if (missing >= 0) return missing;
    for (uint32_t r = 0; r < g->ranks; ++r) {
      const uint64_t bytes = share(r, done);
      if (bytes == 0 || outs[r] == nullptr) continue;
      const uint8_t* from = r == g->index ? mine + done : slot(g, r, g->round - 1);
      std::memcpy(static_cast<uint8_t*>(outs[r]) + done, from, bytes);
    }
  }
  return -1;
}

// First half of an all-to-all: everyone tells everyone how many bytes it has for whom. all[s * ranks + d].
int shoal_counts(ShoalGroup* g, const uint64_t* mine, uint64_t* all) {
  const int missing = publish(g, mine, g->ranks * sizeof(uint64_t));
  if (missing >= 0) return missing;
  for (uint32_t r = 0; r < g->ranks; ++r) {
    std::memcpy(all + uint64_t(r) * g->ranks, slot(g, r, g->round - 1), g->ranks * sizeof(uint64_t));
  }
  return -1;
}

// Second half: `data` holds the pieces for index 0, 1, … in a row; outs[s] gets all[s * ranks + index] bytes.
int shoal_all_to_all(ShoalGroup* g, const void* data, void* const* outs, const uint64_t* all) {
  uint64_t longest = 0, totals[kMaxRanks], starts[kMaxRanks];
  for (uint32_t s = 0; s < g->ranks; ++s) {
    totals[s] = 0;
    for (uint32_t d = 0; d < g->ranks; ++d) {
      if (d == g->index) starts[s] = totals[s];
      totals[s] += all[uint64_t(s) * g->ranks + d];
    }
    longest = totals[s] > longest ? totals[s] : longest;
  }
  const uint8_t* mine = static_cast<const uint8_t*>(data);
  for (uint64_t done = 0; done < longest; done += g->slot_bytes) {
    const uint64_t left = done < totals[g->index] ? totals[g->index] - done : 0;
    const int missing = publish(g, mine + done, left < g->slot_bytes ? left : g->slot_bytes);
    if (missing >= 0) return missing;
    for (uint32_t s = 0; s < g->ranks; ++s) {
      // The part of [starts, starts + wanted) that lies in this round's piece [done, done + slot).
      const uint64_t wanted = all[uint64_t(s) * g->ranks + g->index];
      const uint64_t low = starts[s] > done ? starts[s] : done;
      const uint64_t end = starts[s] + wanted;
      const uint64_t high = end < done + g->slot_bytes ? end : done + g->slot_bytes;
      if (low >= high) continue;
      const uint8_t* from = s == g->index ? mine + low : slot(g, s, g->round - 1) + (low - done);
      std::memcpy(static_cast<uint8_t*>(outs[s]) + (low - starts[s]), from, high - low);
    }
  }
  return -1;
}

int shoal_send(ShoalGroup* g, const void* data, uint64_t bytes, uint32_t target) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  for (uint64_t done = 0; done < bytes; done += g->slot_bytes) {
    const uint64_t piece = bytes - done < g->slot_bytes ? bytes - done : g->slot_bytes;
    const uint32_t number = g->sent[target];
    // Room in the ring: the receiver has taken all but depth - 1 of the pieces sent so far.
    if (!await(g, channel(g, g->index, target, 1), number + 1 - g->depth, target)) return int(target);
    std::memcpy(ring(g, g->index, target, number), at + done, piece);
    g->sent[target] = number + 1;
    post(channel(g, g->index, target, 0), number + 1);
  }
  return -1;
}

int shoal_recv(ShoalGroup* g, void* data, uint64_t bytes, uint32_t source) {
  uint8_t* at = static_cast<uint8_t*>(data);
  for (uint64_t done = 0; done < bytes; done += g->slot_bytes) {
    const uint64_t piece = bytes - done < g->slot_bytes ? bytes - done : g->slot_bytes;
    const uint32_t number = g->taken[source];
    if (!await(g, channel(g, source, g->index, 0), number + 1, source)) return int(source);
    std::memcpy(at + done, ring(g, source, g->index, number), piece);
    g->taken[source] = number + 1;
    post(channel(g, source, g->index, 1), number + 1);
  }
  return -1;
}

}  // extern "C"
