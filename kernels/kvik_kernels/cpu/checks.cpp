// Whether a step's indices stay inside its tables and its cache: asked once a step, so that the layers need not ask.

#include "queries.h"

namespace kvik {

namespace {

bool fits(const Query &query, const Bounds &bounds, const int32_t *tables, int64_t table_stride) {
    if (query.table < 0 || query.table >= bounds.rows) return false;
    if (query.first < 0 || query.first > query.end || query.end > bounds.columns * bounds.block_tokens) return false;
    const int32_t *table = tables + query.table * table_stride;
    for (int64_t at = query.first / bounds.block_tokens; at * bounds.block_tokens < query.end; at++)
        if (table[at] < 0 || table[at] >= bounds.blocks) return false;
    return true;
}

}  // namespace

int64_t queries_that_fit(const Query *queries, int64_t count, const int32_t *tables, int64_t table_stride,
                         const Bounds &bounds) {
    int64_t which = 0;
    while (which < count && fits(queries[which], bounds, tables, table_stride)) which++;
    return which;
}

int64_t slots_that_fit(const int64_t *slots, int64_t count, int64_t end) {
    int64_t which = 0;
    while (which < count && slots[which] >= 0 && slots[which] < end) which++;
    return which;
}

}  // namespace kvik
