/*
 * A cache that several threads share: each opens a handle of its own, two with a queue and policies of their own and two
 * over the queue of the cache. They write and read records of any length. Then no call is made, and the thread of the
 * cache writes the last pages back. Then misuse.
 *
 * HEADWATER_EXAMPLE_FOLDER names a folder for the file.
 */
#define _DEFAULT_SOURCE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, EACH = 100000, ROUNDS = 3000, RECORD_MAX = 9000 };

static hw_device *device;
static hw_cache *cache;
static char path[512];

struct worker {
    int number;
    hw_queue *queue;
    unsigned char bytes[EACH];
};

static struct worker workers[THREADS];

/* Requests of one thread: its part of the device agrees with its own copy at each read. */
static void *work(void *argument) {
    struct worker *own = argument;
    unsigned random = (unsigned)own->number * 2654435761u + 1;
    unsigned char record[RECORD_MAX];
    uint64_t base = (uint64_t)own->number * EACH;
    hw_handle *handle = NULL;
    CHECK_CODE(hw_cache_open(cache, own->queue, &handle), HW_CODE_OK);
    if (own->queue != NULL) {
        /* Policies of this handle alone. */
        CHECK_CODE(hw_set_param(handle, HW_PARAM_SCHEDULER, HW_SCHEDULER_PRIORITY), HW_CODE_OK);
        CHECK_CODE(hw_set_param(handle, HW_PARAM_CLASS, (uint64_t)own->number), HW_CODE_OK);
    }
    CHECK_CODE(hw_pwrite(handle, own->bytes, EACH, base), HW_CODE_OK);
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 1664525u + 1013904223u;
        size_t bytes = 1 + (random >> 8) % RECORD_MAX;
        size_t start = (random >> 4) % (EACH - bytes);
        if (random >> 31) {
            memset(own->bytes + start, (int)random, bytes);
            CHECK_CODE(hw_pwrite(handle, own->bytes + start, bytes, base + start), HW_CODE_OK);
        } else {
            CHECK_CODE(hw_pread(handle, record, bytes, base + start), HW_CODE_OK);
            CHECK(memcmp(record, own->bytes + start, bytes) == 0);
        }
    }
    if (own->queue != NULL) {
        uint64_t scheduler = 0;
        CHECK_CODE(hw_get_param(handle, HW_PARAM_SCHEDULER, &scheduler), HW_CODE_OK);
        CHECK(scheduler == HW_SCHEDULER_PRIORITY);
    }
    CHECK_CODE(hw_cache_destroy(cache, HW_FOREVER), HW_CODE_REFUSED);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
    return NULL;
}

static uint64_t dirty_bytes(void) {
    hw_cache_totals totals;
    CHECK_CODE(hw_cache_statistics(cache, &totals, sizeof totals), HW_CODE_OK);
    CHECK(totals.write_failures == 0);
    return totals.dirty_bytes;
}

/* A page that nothing flushes reaches the file by its age. */
static void written_without_a_call(void) {
    unsigned char back[100];
    hw_handle *handle = NULL;
    CHECK_CODE(hw_cache_open(cache, NULL, &handle), HW_CODE_OK);
    memset(workers[0].bytes + 50, 200, sizeof back);
    CHECK_CODE(hw_pwrite(handle, workers[0].bytes + 50, sizeof back, 50), HW_CODE_OK);
    while (dirty_bytes() > 0) usleep(500);
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && pread(file, back, sizeof back, 50) == sizeof back);
    CHECK(memcmp(back, workers[0].bytes + 50, sizeof back) == 0);
    CHECK(close(file) == 0);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
}

static void misuse(hw_queue *queue) {
    hw_cache_config config;
    hw_cache *none = NULL;
    hw_handle *handle = NULL;
    CHECK_CODE(hw_cache_config_init(&config, sizeof config - 1, 0), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_cache_config_init(&config, sizeof config, 1 << 20), HW_CODE_OK);
    CHECK_CODE(hw_cache_create(queue, &config, &none), HW_CODE_BUSY);
    CHECK_CODE(hw_cache_create(NULL, &config, &none), HW_CODE_NULL);
    CHECK_CODE(hw_cache_create(queue, NULL, &none), HW_CODE_NULL);
    config.write_back = 2;
    CHECK_CODE(hw_cache_create(queue, &config, &none), HW_CODE_CONFIG);
    /* A queue is available again after a cache that could not be made. */
    hw_queue *other = NULL;
    config.write_back = 1;
    config.bytes = 0;
    CHECK_CODE(hw_queue_create(device, 8, 0, &other), HW_CODE_OK);
    CHECK_CODE(hw_cache_create(other, &config, &none), HW_CODE_CONFIG);
    CHECK_CODE(hw_cache_open(cache, other, &handle), HW_CODE_OK);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
    CHECK_CODE(hw_queue_destroy(other), HW_CODE_OK);
    config.struct_bytes = 1;
    CHECK_CODE(hw_cache_create(queue, &config, &none), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_cache_open((hw_cache *)device, NULL, &handle), HW_CODE_HANDLE);
    CHECK_CODE(hw_cache_open(cache, queue, &handle), HW_CODE_BUSY);
    CHECK_CODE(hw_cache_open(cache, NULL, &handle), HW_CODE_OK);
    /* The cache is not this handle's alone. */
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CACHE_BYTES, 0), HW_CODE_REFUSED);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CACHE_BYTES, 128 * 4096), HW_CODE_OK);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_HANDLE);
}

int main(void) {
    const char *folder = getenv("HEADWATER_EXAMPLE_FOLDER");
    char url[600];
    unsigned char *back = malloc(EACH);
    hw_cache_config config;
    hw_queue *queue = NULL;
    pthread_t threads[THREADS];
    CHECK(folder != NULL && back != NULL);
    snprintf(path, sizeof path, "%s/disk", folder);
    snprintf(url, sizeof url, "io-uring:%s?create=1MiB", path);
    CHECK_CODE(hw_open(url, &device), HW_CODE_OK);
    CHECK_CODE(hw_queue_create(device, 16, 0, &queue), HW_CODE_OK);
    CHECK_CODE(hw_cache_config_init(&config, sizeof config, 64 * 4096), HW_CODE_OK);
    config.dirty_age_ns = 2000000;
    CHECK_CODE(hw_cache_create(queue, &config, &cache), HW_CODE_OK);
    for (int i = 0; i < THREADS; i++) {
        workers[i].number = i;
        if (i < 2) CHECK_CODE(hw_queue_create(device, 8, 0, &workers[i].queue), HW_CODE_OK);
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    written_without_a_call();
    misuse(queue);
    CHECK_CODE(hw_cache_destroy(cache, HW_FOREVER), HW_CODE_OK);
    CHECK_CODE(hw_cache_destroy(cache, 0), HW_CODE_HANDLE);

    /* The queue is available again, and the device has what the threads wrote. */
    hw_handle *handle = NULL;
    CHECK_CODE(hw_handle_create(queue, &handle), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CACHE_BYTES, 64 * 4096), HW_CODE_OK);
    for (int i = 0; i < THREADS; i++) {
        CHECK_CODE(hw_pread(handle, back, EACH, (uint64_t)i * EACH), HW_CODE_OK);
        CHECK(memcmp(back, workers[i].bytes, EACH) == 0);
        if (i < 2) CHECK_CODE(hw_queue_destroy(workers[i].queue), HW_CODE_OK);
    }
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
    CHECK_CODE(hw_queue_destroy(queue), HW_CODE_OK);
    CHECK_CODE(hw_close(device), HW_CODE_OK);
    free(back);
    puts("four threads shared a cache");
    return 0;
}
