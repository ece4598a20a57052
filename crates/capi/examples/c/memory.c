/*
 * Memory of a device: settings of its pool where it is opened, tiers by length, requests that wait in order with timeout
 * and cancel, a fragmented pool that serves one transfer in pieces, and the program's own memory, imported.
 *
 * HEADWATER_EXAMPLE_FOLDER names a folder for a file.
 */
#define _DEFAULT_SOURCE
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { KIB = 1 << 10, MIB = 1 << 20, HELD_MAX = 256 };

static const char *folder;

static hw_device *open_device(const char *name, const char *tiers) {
    char url[512];
    hw_pool_settings settings;
    hw_device *device = NULL;
    snprintf(url, sizeof url, "io-uring:%s/%s?create=4MiB", folder, name);
    CHECK_CODE(hw_pool_settings_init(&settings, sizeof settings), HW_CODE_OK);
    settings.chunk_bytes = MIB;
    settings.cap_bytes = 8 * MIB;
    settings.idle_ns = 60000000000;
    settings.static_bytes = 64 * KIB;
    settings.tiers = tiers;
    settings.node = 0;
    CHECK_CODE(hw_open_with(url, &settings, &device), HW_CODE_OK);
    return device;
}

static hw_pool_totals totals(hw_device *device) {
    hw_pool_totals now;
    CHECK_CODE(hw_device_statistics(device, &now, sizeof now), HW_CODE_OK);
    return now;
}

static void *get(hw_device *device, size_t bytes) {
    void *buffer = NULL;
    CHECK_CODE(hw_get_buffer(device, bytes, &buffer), HW_CODE_OK);
    return buffer;
}

static void put(hw_device *device, void *buffer) { CHECK_CODE(hw_put_buffer(device, buffer), HW_CODE_OK); }

static void tiers_by_length(hw_device *device) {
    hw_tiers tiers;
    uint32_t origin = 9;
    CHECK_CODE(hw_device_tiers(device, &tiers, &origin), HW_CODE_OK);
    CHECK(origin == HW_TIERS_PAPER_5_2 && tiers.small_max_bytes == 4 * KIB);
    CHECK(tiers.large_min_bytes == 128 * KIB + 1);
    CHECK_CODE(hw_device_tiers(device, &tiers, NULL), HW_CODE_OK);
    CHECK_CODE(hw_device_tiers(device, NULL, &origin), HW_CODE_NULL);

    hw_pool_totals before = totals(device);
    CHECK(before.cap_bytes == 8 * MIB && before.chunk_bytes == MIB);
    void *small = get(device, 4 * KIB), *medium = get(device, 4 * KIB + 1), *large = get(device, 200 * KIB);
    hw_pool_totals now = totals(device);
    CHECK(now.served_static - before.served_static == 1 && now.static_bytes == 64 * KIB);
    /* The cache of the thread keeps some slots. */
    CHECK(now.static_free_bytes <= 60 * KIB);
    CHECK(now.served_pool - before.served_pool == 1 && now.pool_bytes == MIB);
    CHECK(now.served_dynamic - before.served_dynamic == 1 && now.dynamic_bytes == 200 * KIB);
    CHECK(now.overflowed == 0 && now.imported == 0);
    put(device, large);
    CHECK(totals(device).dynamic_bytes == 0);
    put(device, medium);
    put(device, small);
}

/* Requests of all tiers wait in the order in which they were made; a timeout keeps the place, a cancel leaves it. */
static void waits(hw_device *device) {
    void *held = get(device, 7 * MIB), *memory = NULL;
    hw_buffer_request *large = NULL, *dropped = NULL, *small = NULL, *none = NULL;
    CHECK_CODE(hw_get_buffer(device, 6 * MIB, &memory), HW_CODE_WOULD_BLOCK);
    CHECK_CODE(hw_get_buffer_within(device, 6 * MIB, 1000000, &memory), HW_CODE_TIMEOUT);
    uint64_t gave_up = totals(device).gave_up;
    CHECK_CODE(hw_buffer_request_create(device, 6 * MIB, &large), HW_CODE_OK);
    CHECK_CODE(hw_buffer_request_create(device, 6 * MIB, &dropped), HW_CODE_OK);
    CHECK_CODE(hw_buffer_request_create(device, KIB, &small), HW_CODE_OK);
    CHECK(totals(device).waiting == 3);
    CHECK_CODE(hw_get_buffer(device, KIB, &memory), HW_CODE_WOULD_BLOCK);
    CHECK_CODE(hw_buffer_request_wait(large, 0, &memory), HW_CODE_TIMEOUT);
    CHECK_CODE(hw_buffer_request_wait(small, 1000000, &memory), HW_CODE_TIMEOUT);
    CHECK(totals(device).waiting == 3 && memory == NULL);
    CHECK_CODE(hw_buffer_request_cancel(dropped), HW_CODE_OK);
    CHECK_CODE(hw_buffer_request_cancel(dropped), HW_CODE_HANDLE);
    CHECK(totals(device).waiting == 2 && totals(device).gave_up == gave_up + 1);
    put(device, held);
    CHECK(totals(device).waiting == 0);
    CHECK_CODE(hw_buffer_request_wait(large, HW_FOREVER, &memory), HW_CODE_OK);
    memset(memory, 7, 6 * MIB);
    put(device, memory);
    CHECK_CODE(hw_buffer_request_wait(large, 0, &memory), HW_CODE_HANDLE);
    CHECK_CODE(hw_buffer_request_wait(small, 0, &memory), HW_CODE_OK);
    put(device, memory);
    /* Memory that was granted and is not taken returns to the pool. */
    CHECK_CODE(hw_buffer_request_create(device, 6 * MIB, &none), HW_CODE_OK);
    CHECK_CODE(hw_buffer_request_cancel(none), HW_CODE_OK);
    CHECK(totals(device).dynamic_bytes == 0);
    CHECK_CODE(hw_buffer_request_create(device, 0, &none), HW_CODE_ZERO);
    CHECK_CODE(hw_buffer_request_create(device, 9 * MIB, &none), HW_CODE_OVER_CAP);
}

struct waiter {
    hw_device *device;
    hw_buffer_request *request;
    hw_code code;
    void *memory;
};

static void *wait_for_request(void *argument) {
    struct waiter *waiter = argument;
    waiter->code = hw_buffer_request_wait(waiter->request, HW_FOREVER, &waiter->memory);
    return NULL;
}

static void *wait_for_buffer(void *argument) {
    struct waiter *waiter = argument;
    waiter->code = hw_get_buffer_within(waiter->device, 6 * MIB, HW_FOREVER, &waiter->memory);
    return NULL;
}

static void start(pthread_t *thread, void *(*body)(void *), struct waiter *waiter) {
    CHECK(pthread_create(thread, NULL, body, waiter) == 0);
}

/* A thread that waits is woken by another thread that cancels its request, or that releases memory. */
static void waits_across_threads(hw_device *device) {
    void *held = get(device, 7 * MIB);
    struct waiter cancelled = {.device = device, .code = HW_CODE_OTHER}, served = cancelled;
    pthread_t threads[2];
    CHECK_CODE(hw_buffer_request_create(device, 6 * MIB, &cancelled.request), HW_CODE_OK);
    start(&threads[0], wait_for_request, &cancelled);
    start(&threads[1], wait_for_buffer, &served);
    while (totals(device).waiting < 2) usleep(1000);
    usleep(10000);
    CHECK_CODE(hw_buffer_request_cancel(cancelled.request), HW_CODE_OK);
    CHECK(pthread_join(threads[0], NULL) == 0);
    /* Without a wait that had begun, the number of the request is not valid any more. */
    CHECK(cancelled.code == HW_CODE_CANCELLED || cancelled.code == HW_CODE_HANDLE);
    CHECK(cancelled.memory == NULL);
    put(device, held);
    CHECK(pthread_join(threads[1], NULL) == 0);
    CHECK(served.code == HW_CODE_OK && served.memory != NULL);
    put(device, served.memory);
}

static int by_address(const void *left, const void *right) {
    uintptr_t a = (uintptr_t) * (void *const *)left, b = (uintptr_t) * (void *const *)right;
    return (a > b) - (a < b);
}

/* Every other run of 64 KiB is free: 256 KiB are four pieces, and one transfer. */
static void fragmented_pool(void) {
    hw_device *device = open_device("pieces", "0:16777216");
    hw_queue *queue = NULL;
    hw_handle *handle = NULL;
    hw_segment segments[16];
    void *held[HELD_MAX], *memory = NULL;
    static unsigned char plain[256 * KIB], back[256 * KIB];
    uint32_t count = 0;
    int number = 0;
    while (number < HELD_MAX && hw_get_buffer(device, 64 * KIB, &held[number]) == HW_CODE_OK) number++;
    CHECK(number > 16 && number < HELD_MAX);
    qsort(held, (size_t)number, sizeof held[0], by_address);
    for (int i = 1; i < number; i += 2) put(device, held[i]);
    CHECK_CODE(hw_get_buffer(device, 256 * KIB, &memory), HW_CODE_WOULD_BLOCK);
    CHECK_CODE(hw_get_segments(device, 256 * KIB, segments, 3, &count), HW_CODE_WOULD_BLOCK);
    CHECK_CODE(hw_get_segments(device, 256 * KIB, segments, 16, &count), HW_CODE_OK);
    CHECK(count == 4 && totals(device).served_scattered >= 1);
    CHECK_CODE(hw_queue_create(device, 8, 0, &queue), HW_CODE_OK);
    CHECK_CODE(hw_handle_create(queue, &handle), HW_CODE_OK);
    for (uint32_t i = 0; i < count; i++) {
        CHECK((uintptr_t)segments[i].address % 4096 == 0 && segments[i].bytes == 64 * KIB);
        memset(segments[i].address, (int)i + 1, segments[i].bytes);
    }
    CHECK_CODE(hw_pwritev(handle, segments, count, 0), HW_CODE_OK);
    /* The copy of a plain read and write takes pieces too. */
    CHECK_CODE(hw_pread(handle, plain, sizeof plain, 0), HW_CODE_OK);
    for (size_t i = 0; i < sizeof plain; i++) CHECK(plain[i] == i / (64 * KIB) + 1);
    for (size_t i = 0; i < sizeof plain; i++) plain[i] = (unsigned char)(i % 251);
    CHECK_CODE(hw_pwrite(handle, plain, sizeof plain, MIB), HW_CODE_OK);
    CHECK_CODE(hw_preadv(handle, segments, count, MIB), HW_CODE_OK);
    for (uint32_t i = 0; i < count; i++) memcpy(back + i * 64 * KIB, segments[i].address, 64 * KIB);
    CHECK(memcmp(back, plain, sizeof plain) == 0);

    hw_segment wrong = {.address = plain, .bytes = 64 * KIB};
    CHECK_CODE(hw_preadv(handle, &wrong, 1, 0), HW_CODE_FOREIGN);
    CHECK_CODE(hw_preadv(handle, segments, 0, 0), HW_CODE_NO_SEGMENTS);
    CHECK_CODE(hw_pwritev(handle, NULL, 1, 0), HW_CODE_NULL);
    CHECK_CODE(hw_get_segments(device, 64 * KIB, segments, 0, &count), HW_CODE_NO_SEGMENTS);
    for (int i = 0; i < 4; i++) put(device, segments[i].address);
    for (int i = 0; i < number; i += 2) put(device, held[i]);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
    CHECK_CODE(hw_queue_destroy(queue), HW_CODE_OK);
    CHECK_CODE(hw_close(device), HW_CODE_OK);
}

/* Memory that the program allocated is read and written in place, and stays the program's. */
static void imported_memory(hw_device *device) {
    hw_queue *queue = NULL;
    hw_handle *handle = NULL;
    hw_aio_event event;
    size_t found = 0;
    int tag = 0;
    void *memory = NULL;
    CHECK(posix_memalign(&memory, 4096, 256 * KIB) == 0);
    unsigned char *bytes = memory;
    memset(bytes, 0, 256 * KIB);
    CHECK_CODE(hw_queue_create(device, 8, 0, &queue), HW_CODE_OK);
    CHECK_CODE(hw_handle_create(queue, &handle), HW_CODE_OK);
    /* Only memory of the device can be named in a command that does not wait. */
    CHECK_CODE(hw_aio_read(handle, bytes, 4 * KIB, 0, &tag), HW_CODE_FOREIGN);

    CHECK_CODE(hw_import_buffer(device, bytes + 512, 4 * KIB), HW_CODE_ALIGN);
    CHECK_CODE(hw_import_buffer(device, bytes, 5000), HW_CODE_ALIGN);
    CHECK_CODE(hw_import_buffer(device, bytes, 0), HW_CODE_ZERO);
    CHECK_CODE(hw_import_buffer(device, NULL, 4 * KIB), HW_CODE_NULL);
    CHECK_CODE(hw_import_buffer(device, bytes, (size_t)1 << 40), HW_CODE_OVER_CAP);
    CHECK_CODE(hw_import_buffer(device, bytes, 256 * KIB), HW_CODE_OK);
    CHECK_CODE(hw_import_buffer(device, bytes, 256 * KIB), HW_CODE_BUSY);
    CHECK_CODE(hw_import_buffer(device, bytes + 64 * KIB, 4 * KIB), HW_CODE_BUSY);
    CHECK(totals(device).imported == 1 && totals(device).dynamic_bytes == 256 * KIB);
    void *pooled = get(device, 64 * KIB);
    CHECK_CODE(hw_import_buffer(device, pooled, 64 * KIB), HW_CODE_BUSY);
    CHECK_CODE(hw_import_buffer(device, (char *)pooled + 4 * KIB, 4 * KIB), HW_CODE_BUSY);
    put(device, pooled);

    for (size_t i = 0; i < 128 * KIB; i++) bytes[i] = (unsigned char)(i % 249);
    CHECK_CODE(hw_pwrite(handle, bytes, 128 * KIB, 0), HW_CODE_OK);
    CHECK_CODE(hw_aio_read(handle, bytes + 128 * KIB, 128 * KIB, 0, &tag), HW_CODE_OK);
    CHECK_CODE(hw_aio_submit(handle), HW_CODE_OK);
    CHECK_CODE(hw_put_buffer(device, bytes), HW_CODE_BUSY);
    CHECK_CODE(hw_aio_complete(handle, 1, 1, HW_FOREVER, &event, &found), HW_CODE_OK);
    CHECK(found == 1 && event.tag == &tag && event.code == HW_CODE_OK);
    CHECK(memcmp(bytes, bytes + 128 * KIB, 128 * KIB) == 0);

    CHECK_CODE(hw_put_buffer(device, bytes + 4 * KIB), HW_CODE_INTERIOR);
    CHECK_CODE(hw_put_buffer(device, bytes), HW_CODE_OK);
    CHECK_CODE(hw_put_buffer(device, bytes), HW_CODE_FOREIGN);
    CHECK(totals(device).dynamic_bytes == 0);
    CHECK(bytes[1000] == 1000 % 249);
    CHECK_CODE(hw_import_buffer(device, bytes + 4 * KIB, 8 * KIB), HW_CODE_OK);
    CHECK_CODE(hw_put_buffer(device, bytes + 4 * KIB), HW_CODE_OK);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
    CHECK_CODE(hw_queue_destroy(queue), HW_CODE_OK);
    free(memory);
}

static void impossible_settings(void) {
    hw_pool_settings unset, settings;
    hw_device *device = NULL;
    CHECK_CODE(hw_pool_settings_init(&unset, 8), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_pool_settings_init(&unset, sizeof unset), HW_CODE_OK);
    settings = unset;
    settings.chunk_bytes = 5000;
    CHECK_CODE(hw_open_with("model:64MiB", &settings, &device), HW_CODE_CONFIG);
    CHECK(strstr(hw_last_error(), "power of two") != NULL);
    settings = unset;
    settings.tiers = "large";
    CHECK_CODE(hw_open_with("model:64MiB", &settings, &device), HW_CODE_CONFIG);
    settings = unset;
    settings.node = 4000;
    CHECK_CODE(hw_open_with("model:64MiB", &settings, &device), HW_CODE_REFUSED);
    CHECK(strstr(hw_last_error(), "no memory node 4000") != NULL);
    CHECK(device == NULL);
    /* The URL names the rest. */
    settings = unset;
    settings.chunk_bytes = MIB;
    CHECK_CODE(hw_open_with("model:64MiB?pool-cap=16MiB&pool-chunk=2MiB", &settings, &device), HW_CODE_OK);
    CHECK(totals(device).cap_bytes == 16 * MIB && totals(device).chunk_bytes == MIB);
    CHECK_CODE(hw_close(device), HW_CODE_OK);
}

int main(void) {
    folder = getenv("HEADWATER_EXAMPLE_FOLDER");
    CHECK(folder != NULL);
    hw_device *device = open_device("tiers", "paper-5.2");
    tiers_by_length(device);
    waits(device);
    waits_across_threads(device);
    imported_memory(device);
    CHECK_CODE(hw_close(device), HW_CODE_OK);
    fragmented_pool();
    impossible_settings();
    puts("memory of every tier waited in order");
    return 0;
}
