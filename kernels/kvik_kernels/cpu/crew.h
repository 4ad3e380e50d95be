// Work shared out among threads.
#pragma once

#include <stdint.h>

namespace kvik {

typedef void (*Body)(const void *work, int64_t item);

// `body(work, item)` once for each item below `items`, on up to so many threads, the caller's among them.
void compute_together(int64_t threads, int64_t items, Body body, const void *work);

}  // namespace kvik

namespace {

template <class Work>
void share_out(int64_t threads, int64_t items, const Work &work) {
    kvik::compute_together(
        threads, items, [](const void *of, int64_t item) { (*static_cast<const Work *>(of))(item); }, &work);
}

}  // namespace
