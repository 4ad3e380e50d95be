// Work shared out among threads.
#pragma once

#include "queries.h"

namespace {

// `work(item)` once for each item below `items`: each thread takes the next one until none is left.
template <class Work>
struct Crew {
    const Work &work;
    int64_t items;
    int64_t taken;

    static void run(void *self) {
        Crew &crew = *static_cast<Crew *>(self);
        for (;;) {
            const int64_t item = __atomic_fetch_add(&crew.taken, 1, __ATOMIC_RELAXED);
            if (item >= crew.items) return;
            crew.work(item);
        }
    }
};

template <class Work>
void share_out(kvik::Parallel parallel, int64_t threads, int64_t items, const Work &work) {
    Crew<Work> crew{work, items, 0};
    if (parallel && threads > 1) parallel(Crew<Work>::run, &crew, static_cast<unsigned>(threads), 0);
    else Crew<Work>::run(&crew);
}

}  // namespace
