// Threads that take items of a call until none is left.
//
// A step of few rows makes a call of some tens of microseconds every some tens of microseconds. Threads that sleep in
// between take about as long to wake; so they look for the next call for a while before they sleep. Nobody waits for a
// thread that has taken no item: a call is over when its items are computed, whoever computed them.

#include "crew.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

namespace {

constexpr uint64_t kLookTicks = 250000;   // of the time stamp counter, about 0.1 ms
constexpr uint64_t kAwaitTicks = 50000;   // before the CPU is offered to whom an item's thread may be waiting behind
constexpr uint32_t kClosed = 0xffffffff;  // no call has so many items
constexpr int64_t kMostThreads = 1024;

// One call at a time. Whoever takes an item has read the call's other fields between two equal values of `ticket`.
struct Call {
    uint64_t ticket = kClosed;  // the call's number << 32 | its next item
    int64_t items = 0;
    int64_t threads = 0;
    kvik::Body body = nullptr;
    const void *work = nullptr;
    int64_t computed = 0;
};

struct Crew {
    Call call;
    alignas(64) uint32_t number = 0;  // of the last call; what sleepers sleep on
    uint32_t sleepers = 0;
    int64_t members = 1;  // with the caller
    bool busy = false;
};

Crew crew;

template <class T>
T load(const T &value) { return __atomic_load_n(&value, __ATOMIC_SEQ_CST); }

template <class T>
void store(T &to, T value) { __atomic_store_n(&to, value, __ATOMIC_SEQ_CST); }

void futex(int operation, uint32_t value) {
    syscall(SYS_futex, &crew.number, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// Computes items of the call that is open, as the `member`th thread of the crew, until none is left.
void take_part(int64_t member) {
    Call &call = crew.call;
    for (;;) {
        uint64_t ticket = load(call.ticket);
        const int64_t item = static_cast<uint32_t>(ticket);
        if (item == kClosed || item >= load(call.items) || member >= load(call.threads)) return;
        const kvik::Body body = load(call.body);
        const void *work = load(call.work);
        if (!__atomic_compare_exchange_n(&call.ticket, &ticket, ticket + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            continue;
        body(work, item);
        __atomic_fetch_add(&call.computed, 1, __ATOMIC_SEQ_CST);
    }
}

// The number of a call after `last`: by looking, then asleep.
uint32_t next_call(uint32_t last) {
    for (const uint64_t begun = __rdtsc(); __rdtsc() - begun < kLookTicks; _mm_pause())
        if (const uint32_t number = load(crew.number); number != last) return number;
    __atomic_fetch_add(&crew.sleepers, 1, __ATOMIC_SEQ_CST);
    while (load(crew.number) == last) futex(FUTEX_WAIT, last);
    __atomic_fetch_sub(&crew.sleepers, 1, __ATOMIC_SEQ_CST);
    return load(crew.number);
}

void *serve(void *member) {
    for (uint32_t last = 0;;) {
        last = next_call(last);
        take_part(reinterpret_cast<int64_t>(member));
    }
    return nullptr;
}

// Threads that cannot be had are done without. Signals are for the threads that were there before.
void hire(int64_t threads) {
    if (threads > kMostThreads) threads = kMostThreads;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; crew.members < threads; crew.members++) {
        if (pthread_create(&thread, nullptr, serve, reinterpret_cast<void *>(crew.members))) break;
        pthread_detach(thread);
        pthread_setname_np(thread, "kvik-crew");
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void await_all(const Call &call) {
    for (uint64_t begun = __rdtsc(); load(call.computed) < call.items; _mm_pause()) {
        if (__rdtsc() - begun < kAwaitTicks) continue;
        sched_yield();
        begun = __rdtsc();
    }
}

}  // namespace

namespace kvik {

void compute_together(int64_t threads, int64_t items, Body body, const void *work) {
    const bool alone = threads <= 1 || items <= 1 || items >= kClosed;
    if (alone || __atomic_exchange_n(&crew.busy, true, __ATOMIC_SEQ_CST)) {
        for (int64_t item = 0; item < items; item++) body(work, item);
        return;
    }
    if (crew.members < threads) hire(threads);
    Call &call = crew.call;
    store(call.items, items);
    store(call.threads, threads);
    store(call.body, body);
    store(call.work, work);
    store(call.computed, int64_t{0});
    store(call.ticket, uint64_t{crew.number + 1} << 32);
    store(crew.number, crew.number + 1);
    if (load(crew.sleepers)) futex(FUTEX_WAKE, static_cast<uint32_t>(threads - 1));
    take_part(0);
    await_all(call);
    store(call.ticket, uint64_t{kClosed});
    store(crew.busy, false);
}

}  // namespace kvik
