/* A pool from open to close: memory allocated, used, looked up by its address, counted, and freed. */
#include "check.h"

#include <string.h>

static hw_pool_totals totals(hw_pool *pool) {
    hw_pool_totals now;
    CHECK_CODE(hw_pool_statistics(pool, &now, sizeof now), HW_CODE_OK);
    return now;
}

static hw_pool *open_pool(void) {
    hw_pool_config config;
    hw_pool *pool = NULL;
    CHECK_CODE(hw_pool_config_init(&config, sizeof config), HW_CODE_OK);
    config.preset = "paper-5.2";
    config.chunk_bytes = 2 << 20;
    config.chunk_adapts = 0;
    config.cap_bytes = 8 << 20;
    config.idle_ns = 1;
    config.ticker = 0;
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_OK);
    return pool;
}

static void use_memory(hw_pool *pool) {
    unsigned char *bytes = NULL;
    void *aligned = NULL;
    hw_lookup found;
    CHECK_CODE(hw_pool_alloc(pool, 10000, 0, 0, (void **)&bytes), HW_CODE_OK);
    CHECK((uintptr_t)bytes % 4096 == 0);
    memset(bytes, 0xA5, 10000);
    CHECK_CODE(hw_pool_lookup(pool, bytes + 5000, &found), HW_CODE_OK);
    CHECK(found.start == bytes && found.offset == 5000 && found.room_bytes >= 10000);
    CHECK(found.page == HW_PAGE_RAW && found.chunk_bytes == 2 << 20 && found.node == 0);
    CHECK(totals(pool).in_use_bytes == found.room_bytes);
    CHECK_CODE(hw_pool_free(pool, bytes), HW_CODE_OK);

    /* An allocation with HW_ALLOC_ZEROED never shows earlier contents. */
    CHECK_CODE(hw_pool_alloc(pool, 10000, 0, HW_ALLOC_ZEROED, (void **)&bytes), HW_CODE_OK);
    for (int i = 0; i < 10000; i++) CHECK(bytes[i] == 0);
    CHECK_CODE(hw_pool_alloc(pool, 100, 1 << 20, 0, &aligned), HW_CODE_OK);
    CHECK((uintptr_t)aligned % (1 << 20) == 0);
    CHECK_CODE(hw_pool_free(pool, aligned), HW_CODE_OK);
    CHECK_CODE(hw_pool_free(pool, bytes), HW_CODE_OK);
    CHECK(totals(pool).in_use_bytes == 0);
}

/* Memory of a named node, and how a device addresses it. */
static void describe_for_device(hw_pool *pool) {
    hw_node_totals node;
    hw_device_segment segment;
    hw_tiers tiers;
    unsigned char *bytes = NULL;
    void *none = NULL;
    int on_stack = 0;
    CHECK_CODE(hw_pool_node_statistics(pool, 0, &node, sizeof node), HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc_on(pool, 4095, 10000, 0, 0, &none), HW_CODE_NO_SUCH_NODE);
    CHECK_CODE(hw_pool_alloc_on(pool, (uint32_t)node.node, 10000, 0, 0, (void **)&bytes), HW_CODE_OK);
    CHECK_CODE(hw_pool_device_segment(pool, bytes + 5000, &segment), HW_CODE_OK);
    /* This pool is not pinned for a device, so its memory has neither an IOVA nor a slot. */
    CHECK(segment.address == bytes + 5000 && segment.bytes >= 5000 && segment.known == 0);
    CHECK_CODE(hw_pool_device_segment(pool, &on_stack, &segment), HW_CODE_FOREIGN);
    CHECK_CODE(hw_pool_free(pool, bytes), HW_CODE_OK);
    CHECK_CODE(hw_pool_tiers(pool, &tiers), HW_CODE_OK);
    CHECK(tiers.small_max_bytes == 4096 && tiers.large_min_bytes == (128 << 10) + 1);
}

static void reach_the_cap(hw_pool *pool) {
    void *all = NULL, *more = NULL;
    hw_pool_totals now;
    CHECK_CODE(hw_pool_alloc(pool, 8 << 20, 0, 0, &all), HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc(pool, 1, 0, 0, &more), HW_CODE_WOULD_BLOCK);
    CHECK_CODE(hw_pool_alloc_within(pool, 1, 0, 0, 1000000, &more), HW_CODE_TIMEOUT);
    CHECK(more == NULL);
    CHECK_CODE(hw_pool_set_cap(pool, 16 << 20), HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc_within(pool, 1, 0, 0, 1000000, &more), HW_CODE_OK);
    CHECK_CODE(hw_pool_set_cap(pool, (uint64_t)1 << 30), HW_CODE_CAP_TOO_HIGH);
    now = totals(pool);
    CHECK(now.cap_bytes == 16 << 20 && now.gave_up == 1 && now.refused >= 1 && now.nodes == 1);
    CHECK_CODE(hw_pool_free(pool, more), HW_CODE_OK);
    CHECK_CODE(hw_pool_free(pool, all), HW_CODE_OK);
}

/* Ticks return empty chunks: one tick notices that they are empty, one returns them after the idle time. */
static void return_idle_chunks(hw_pool *pool) {
    hw_node_totals node;
    for (int i = 0; i < 4; i++) CHECK_CODE(hw_pool_tick(pool), HW_CODE_OK);
    CHECK(totals(pool).pool_bytes == 0);
    CHECK_CODE(hw_pool_node_statistics(pool, 0, &node, sizeof node), HW_CODE_OK);
    CHECK(node.pinned_bytes == 0 && node.chunks == 0);
    CHECK_CODE(hw_pool_node_statistics(pool, 1, &node, sizeof node), HW_CODE_NO_SUCH_NODE);
}

/* Memory is locked if the lock limit allows it; else opening the pool fails with HW_CODE_PIN. */
static void lock_memory(void) {
    hw_pool_config config;
    hw_pool *pool = NULL;
    void *locked = NULL;
    CHECK_CODE(hw_pool_config_init(&config, sizeof config), HW_CODE_OK);
    config.cap_bytes = config.cap_max_bytes = config.chunk_bytes = 2 << 20;
    config.pinning = HW_PINNING_VFIO;
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_UNAVAILABLE);
    config.pinning = HW_PINNING_IO_URING;
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_UNAVAILABLE);
    config.pinning = HW_PINNING_LOCKED;
    hw_code code = hw_pool_open(&config, &pool);
    if (code == HW_CODE_PIN) {
        printf("not locked: %s\n", hw_last_error());
        return;
    }
    CHECK(code == HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc(pool, 1 << 20, 0, 0, &locked), HW_CODE_OK);
    CHECK_CODE(hw_pool_free(pool, locked), HW_CODE_OK);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
}

int main(void) {
    hw_pool *pool = open_pool();
    void *late = NULL, *none = NULL;
    use_memory(pool);
    describe_for_device(pool);
    reach_the_cap(pool);
    return_idle_chunks(pool);
    lock_memory();

    /* A buffer allocated before the pool is closed stays valid, and is freed by the same handle. */
    CHECK_CODE(hw_pool_alloc(pool, 4096, 0, 0, &late), HW_CODE_OK);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
    memset(late, 1, 4096);
    CHECK_CODE(hw_pool_alloc(pool, 1, 0, 0, &none), HW_CODE_CLOSED);
    CHECK_CODE(hw_pool_free(pool, late), HW_CODE_OK);
    CHECK_CODE(hw_pool_free(pool, late), HW_CODE_DOUBLE_FREE);

    CHECK_CODE(hw_pool_open(NULL, &pool), HW_CODE_OK);
    CHECK(totals(pool).cap_bytes == 256 << 20);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
    printf("a pool opened, used and closed\n");
    return 0;
}
