/*
 * The device calls, which follow NVMeDirect's, on a file: open, facts, queues, handles over one queue and over several
 * with a selector, parameters, buffers, reads and writes at offsets and at a position, flush, discard, and asynchronous
 * requests. Then misuse.
 *
 * HEADWATER_EXAMPLE_FOLDER names a folder for the file.
 */
#include "check.h"

#include <stdio.h>
#include <string.h>

enum { BLOCKS = 8, DEPTH = 8 };

static size_t block;

static void fill(unsigned char *bytes, size_t count, unsigned char first) {
    for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)(first + i % 251);
}

static void synchronous_calls(hw_device *device, hw_handle *handle) {
    unsigned char *own = NULL, *back = NULL;
    unsigned char plain[16384];
    uint64_t position = 0;
    CHECK_CODE(hw_get_buffer(device, BLOCKS * block, (void **)&own), HW_CODE_OK);
    CHECK_CODE(hw_get_buffer(device, BLOCKS * block, (void **)&back), HW_CODE_OK);
    fill(own, BLOCKS * block, 3);
    CHECK_CODE(hw_pwrite(handle, own, BLOCKS * block, 0), HW_CODE_OK);
    CHECK_CODE(hw_pread(handle, back, 2 * block, 3 * block), HW_CODE_OK);
    CHECK(memcmp(back, own + 3 * block, 2 * block) == 0);

    /* Memory that is not of hw_get_buffer goes through a copy. */
    CHECK(2 * block <= sizeof plain);
    CHECK_CODE(hw_lseek(handle, (int64_t)block, HW_SEEK_SET, NULL), HW_CODE_OK);
    CHECK_CODE(hw_read(handle, plain, block), HW_CODE_OK);
    CHECK(memcmp(plain, own + block, block) == 0);
    fill(plain, block, 77);
    CHECK_CODE(hw_write(handle, plain, block), HW_CODE_OK);
    CHECK_CODE(hw_lseek(handle, 0, HW_SEEK_CUR, &position), HW_CODE_OK);
    CHECK(position == 3 * block);
    CHECK_CODE(hw_flush(handle), HW_CODE_OK);
    CHECK_CODE(hw_pread(handle, back, block, 2 * block), HW_CODE_OK);
    CHECK(memcmp(back, plain, block) == 0);

    CHECK_CODE(hw_write_zeroes(handle, block, 0), HW_CODE_OK);
    CHECK_CODE(hw_discard(handle, block, block), HW_CODE_OK);
    CHECK_CODE(hw_pread(handle, back, 2 * block, 0), HW_CODE_OK);
    for (size_t i = 0; i < block; i++) CHECK(back[i] == 0);

    /* Each call changes only its own bytes: bytes come before the offset. */
    CHECK_CODE(hw_pwrite(handle, own, BLOCKS * block, 0), HW_CODE_OK);
    CHECK_CODE(hw_write_zeroes(handle, block, 5 * block), HW_CODE_OK);
    CHECK_CODE(hw_discard(handle, block, 6 * block), HW_CODE_OK);
    CHECK_CODE(hw_pread(handle, back, BLOCKS * block, 0), HW_CODE_OK);
    for (size_t i = 0; i < block; i++) CHECK(back[5 * block + i] == 0);
    CHECK(memcmp(back, own, 5 * block) == 0);
    CHECK(memcmp(back + 7 * block, own + 7 * block, block) == 0);
    CHECK_CODE(hw_put_buffer(device, own), HW_CODE_OK);
    CHECK_CODE(hw_put_buffer(device, back), HW_CODE_OK);
}

/* Asynchronous requests: each has one event, with its tag. */
static void requests(hw_device *device, hw_handle *handle) {
    unsigned char *bytes = NULL;
    hw_aio_event events[4];
    int answered[64] = {0}, tags[64];
    size_t sent = 0, done = 0, found = 0;
    CHECK_CODE(hw_get_buffer(device, 64 * block, (void **)&bytes), HW_CODE_OK);
    for (int i = 0; i < 64; i++) fill(bytes + (size_t)i * block, block, (unsigned char)i);
    while (done < 64) {
        while (sent < 64) {
            hw_code code = hw_aio_write(handle, bytes + sent * block, block, sent * block, &tags[sent]);
            if (code == HW_CODE_WOULD_BLOCK) break;
            CHECK(code == HW_CODE_OK);
            sent++;
        }
        CHECK_CODE(hw_aio_submit(handle), HW_CODE_OK);
        CHECK_CODE(hw_aio_complete(handle, 1, 4, HW_FOREVER, events, &found), HW_CODE_OK);
        CHECK(found >= 1 && found <= 4);
        for (size_t i = 0; i < found; i++) {
            CHECK(events[i].code == HW_CODE_OK && events[i].status == 0 && events[i].bytes == block);
            answered[(int *)events[i].tag - tags]++;
        }
        done += found;
    }
    for (int i = 0; i < 64; i++) CHECK(answered[i] == 1);
    CHECK_CODE(hw_aio_flush(handle, &tags[0]), HW_CODE_OK);
    CHECK_CODE(hw_aio_discard(handle, block, 0, &tags[1]), HW_CODE_OK);
    CHECK_CODE(hw_aio_write_zeroes(handle, block, block, &tags[2]), HW_CODE_OK);
    CHECK_CODE(hw_aio_complete(handle, 3, 4, HW_FOREVER, events, &found), HW_CODE_OK);
    CHECK(found == 3);
    for (size_t i = 0; i < found; i++) CHECK(events[i].code == HW_CODE_OK && events[i].status == 0);
    CHECK_CODE(hw_aio_complete(handle, 1, 4, HW_FOREVER, events, &found), HW_CODE_OK);
    CHECK(found == 0);
    CHECK_CODE(hw_aio_cancel(handle, &tags[0]), HW_CODE_UNKNOWN);
    memset(bytes, 0, 64 * block);
    CHECK_CODE(hw_pread(handle, bytes, 63 * block, block), HW_CODE_OK);
    for (size_t i = 0; i < block; i++) CHECK(bytes[i] == 0);
    for (size_t i = 1; i < 63; i++) CHECK(bytes[i * block] == (unsigned char)(i + 1));
    CHECK_CODE(hw_put_buffer(device, bytes), HW_CODE_OK);
}

static uint32_t reads_on_queue_one(void *context, const hw_choice *choice) {
    unsigned *chosen = context;
    uint32_t queue = choice->direction == 0 ? 1 : 0;
    CHECK(choice->queues == 2 && choice->bytes % block == 0);
    chosen[queue]++;
    return queue;
}

static void several_queues(hw_device *device) {
    unsigned chosen[2] = {0, 0};
    unsigned char *bytes = NULL;
    hw_queue *queues[2] = {NULL, NULL};
    hw_handle *handle = NULL, *other = NULL;
    CHECK_CODE(hw_queue_create(device, DEPTH, 0, &queues[0]), HW_CODE_OK);
    CHECK_CODE(hw_queue_create(device, DEPTH, HW_QUEUE_SHARED, &queues[1]), HW_CODE_OK);
    CHECK_CODE(hw_handle_create_mq(queues, 2, reads_on_queue_one, chosen, &handle), HW_CODE_OK);
    CHECK_CODE(hw_handle_create(queues[0], &other), HW_CODE_BUSY);
    CHECK_CODE(hw_handle_create(queues[1], &other), HW_CODE_OK);
    CHECK_CODE(hw_get_buffer(device, block, (void **)&bytes), HW_CODE_OK);
    fill(bytes, block, 9);
    for (int i = 0; i < 3; i++) CHECK_CODE(hw_pwrite(handle, bytes, block, 0), HW_CODE_OK);
    CHECK_CODE(hw_pread(handle, bytes, block, 0), HW_CODE_OK);
    CHECK(chosen[0] == 3 && chosen[1] == 1);
    CHECK_CODE(hw_pread(other, bytes, block, 0), HW_CODE_OK);
    CHECK(bytes[0] == 9);
    CHECK_CODE(hw_queue_destroy(queues[0]), HW_CODE_BUSY);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_HANDLE);
    CHECK_CODE(hw_handle_destroy(other), HW_CODE_OK);
    CHECK_CODE(hw_put_buffer(device, bytes), HW_CODE_OK);
    CHECK_CODE(hw_queue_destroy(queues[0]), HW_CODE_OK);
    CHECK_CODE(hw_queue_destroy(queues[1]), HW_CODE_OK);
}

static void parameters(hw_device *device, hw_handle *handle) {
    static const uint64_t completions[] = {HW_COMPLETION_THREAD, HW_COMPLETION_HYBRID, HW_COMPLETION_INTERRUPT,
                                           HW_COMPLETION_POLL};
    static const uint64_t schedulers[] = {HW_SCHEDULER_DEADLINE, HW_SCHEDULER_SHARE, HW_SCHEDULER_PRIORITY,
                                          HW_SCHEDULER_FIFO};
    uint64_t value = 7;
    for (int i = 0; i < 4; i++) {
        CHECK_CODE(hw_set_param(handle, HW_PARAM_COMPLETION, completions[i]), HW_CODE_OK);
        CHECK_CODE(hw_set_param(handle, HW_PARAM_SCHEDULER, schedulers[i]), HW_CODE_OK);
        CHECK_CODE(hw_get_param(handle, HW_PARAM_SCHEDULER, &value), HW_CODE_OK);
        CHECK(value == schedulers[i]);
        CHECK_CODE(hw_set_param(handle, HW_PARAM_CLASS, (uint64_t)i), HW_CODE_OK);
        requests(device, handle);
    }
    CHECK_CODE(hw_set_param(handle, HW_PARAM_PERIOD_NS, 20000), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_COMPLETION, HW_COMPLETION_THREAD), HW_CODE_OK);
    requests(device, handle);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_COMPLETION, HW_COMPLETION_POLL), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_COMPLETION, 99), HW_CODE_CONFIG);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CLASS, 8), HW_CODE_CONFIG);
    CHECK_CODE(hw_set_param(handle, 999, 0), HW_CODE_CONFIG);
    CHECK_CODE(hw_get_param(handle, HW_PARAM_PERIOD_NS, &value), HW_CODE_OK);
    CHECK(value == 20000);
}

/* Under the deadline scheduler a request of a class with a short deadline overtakes those with a long one. */
static void deadlines(hw_device *device, hw_handle *handle) {
    unsigned char *bytes = NULL;
    hw_aio_event events[5];
    int tags[5];
    size_t found = 0, urgent = 5;
    uint64_t value = 0;
    CHECK_CODE(hw_get_buffer(device, 5 * block, (void **)&bytes), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_IN_FLIGHT_MAX, 1), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_SCHEDULER, HW_SCHEDULER_DEADLINE), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_DEADLINE_NS, 60000000000), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_DEADLINE_NS_OF_CLASS + 2, 1000), HW_CODE_OK);
    CHECK_CODE(hw_get_param(handle, HW_PARAM_DEADLINE_NS_OF_CLASS + 2, &value), HW_CODE_OK);
    CHECK(value == 1000);
    CHECK_CODE(hw_get_param(handle, HW_PARAM_DEADLINE_NS_OF_CLASS + 1, &value), HW_CODE_OK);
    CHECK(value == 60000000000);
    for (size_t i = 0; i < 5; i++) {
        CHECK_CODE(hw_set_param(handle, HW_PARAM_CLASS, i == 4 ? 2 : 0), HW_CODE_OK);
        CHECK_CODE(hw_aio_read(handle, bytes + i * block, block, 2 * i * block, &tags[i]), HW_CODE_OK);
    }
    CHECK_CODE(hw_aio_complete(handle, 5, 5, HW_FOREVER, events, &found), HW_CODE_OK);
    CHECK(found == 5);
    for (size_t i = 0; i < 5; i++)
        if (events[i].tag == &tags[4]) urgent = i;
    /* One request may have been at the device already. */
    CHECK(urgent <= 1);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_DEADLINE_NS_OF_CLASS + 2, 0), HW_CODE_OK);
    CHECK_CODE(hw_get_param(handle, HW_PARAM_DEADLINE_NS_OF_CLASS + 2, &value), HW_CODE_OK);
    CHECK(value == 60000000000);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_DEADLINE_NS_OF_CLASS + 8, 1), HW_CODE_CONFIG);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CLASS, 0), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_SCHEDULER, HW_SCHEDULER_FIFO), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_IN_FLIGHT_MAX, UINT32_MAX), HW_CODE_OK);
    CHECK_CODE(hw_put_buffer(device, bytes), HW_CODE_OK);
}

/* A cache is added and removed: requests have any length, and written data reads back. */
static void cache(hw_handle *handle) {
    unsigned char bytes[100], back[100];
    uint64_t value = 1;
    fill(bytes, sizeof bytes, 50);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CACHE_WRITE_BACK, 1), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CACHE_BYTES, 64 * 4096), HW_CODE_OK);
    CHECK_CODE(hw_pwrite(handle, bytes, sizeof bytes, block - 50), HW_CODE_OK);
    CHECK_CODE(hw_pread(handle, back, sizeof back, block - 50), HW_CODE_OK);
    CHECK(memcmp(bytes, back, sizeof bytes) == 0);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CACHE_WRITE_BACK, 0), HW_CODE_OK);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CACHE_BYTES, 128 * 4096), HW_CODE_OK);
    CHECK_CODE(hw_get_param(handle, HW_PARAM_CACHE_BYTES, &value), HW_CODE_OK);
    CHECK(value == 128 * 4096);
    memset(back, 0, sizeof back);
    CHECK_CODE(hw_pread(handle, back, sizeof back, block - 50), HW_CODE_OK);
    CHECK(memcmp(bytes, back, sizeof bytes) == 0);
    CHECK_CODE(hw_set_param(handle, HW_PARAM_CACHE_BYTES, 0), HW_CODE_OK);
    CHECK_CODE(hw_get_param(handle, HW_PARAM_CACHE_BYTES, &value), HW_CODE_OK);
    CHECK(value == 0);
    CHECK_CODE(hw_pread(handle, back, sizeof back, 0), HW_CODE_MISALIGNED);
}

static void misuse(hw_device *device, hw_handle *handle, uint64_t end) {
    unsigned char plain[1024];
    unsigned char *bytes = NULL;
    hw_device *none = NULL;
    hw_aio_event event;
    size_t found = 0;
    CHECK_CODE(hw_open("nothing:here", &none), HW_CODE_DEVICE);
    CHECK(strstr(hw_last_error(), "nothing:here") != NULL);
    CHECK_CODE(hw_open(NULL, &none), HW_CODE_NULL);
    CHECK_CODE(hw_get_buffer(device, 2 * block, (void **)&bytes), HW_CODE_OK);
    CHECK_CODE(hw_get_buffer(device, 0, (void **)&bytes), HW_CODE_ZERO);
    CHECK_CODE(hw_pread(handle, bytes, block, 1), HW_CODE_MISALIGNED);
    CHECK_CODE(hw_pread(handle, bytes, block - 1, 0), HW_CODE_MISALIGNED);
    CHECK_CODE(hw_pread(handle, bytes, 2 * block, end - block), HW_CODE_OUT_OF_RANGE);
    CHECK_CODE(hw_pwrite(handle, bytes, block, end), HW_CODE_OUT_OF_RANGE);
    CHECK_CODE(hw_discard(handle, block, end), HW_CODE_OUT_OF_RANGE);
    CHECK_CODE(hw_lseek(handle, -1, HW_SEEK_SET, NULL), HW_CODE_OUT_OF_RANGE);
    CHECK_CODE(hw_aio_read(handle, plain, block, 0, NULL), HW_CODE_FOREIGN);
    CHECK_CODE(hw_aio_read(handle, bytes + block, 2 * block, 0, NULL), HW_CODE_FOREIGN);
    CHECK_CODE(hw_aio_complete(handle, 1, 1, HW_FOREVER, &event, &found), HW_CODE_OK);
    CHECK(found == 0);
    CHECK_CODE(hw_put_buffer(device, bytes + block), HW_CODE_INTERIOR);
    CHECK_CODE(hw_put_buffer(device, plain), HW_CODE_FOREIGN);
    CHECK_CODE(hw_put_buffer(device, bytes), HW_CODE_OK);
    CHECK_CODE(hw_put_buffer(device, bytes), HW_CODE_FOREIGN);
    CHECK_CODE(hw_flush((hw_handle *)device), HW_CODE_HANDLE);
}

int main(void) {
    const char *folder = getenv("HEADWATER_EXAMPLE_FOLDER");
    char url[512];
    hw_facts facts = {.struct_bytes = sizeof facts};
    hw_device *device = NULL;
    hw_queue *queue = NULL;
    hw_handle *handle = NULL;
    CHECK(folder != NULL);
    CHECK(hw_version() == HW_VERSION);
    snprintf(url, sizeof url, "io-uring:%s/disk?create=1MiB", folder);
    CHECK_CODE(hw_open(url, &device), HW_CODE_OK);
    CHECK_CODE(hw_device_facts(device, &facts), HW_CODE_OK);
    block = facts.block_bytes;
    CHECK(block >= 512 && facts.blocks * block == 1 << 20 && facts.writable == 1);
    CHECK_CODE(hw_queue_create(device, DEPTH, 0, &queue), HW_CODE_OK);
    CHECK_CODE(hw_handle_create(queue, &handle), HW_CODE_OK);
    synchronous_calls(device, handle);
    requests(device, handle);
    several_queues(device);
    parameters(device, handle);
    deadlines(device, handle);
    cache(handle);
    requests(device, handle);
    misuse(device, handle, facts.blocks * block);
    CHECK_CODE(hw_handle_destroy(handle), HW_CODE_OK);
    CHECK_CODE(hw_queue_destroy(queue), HW_CODE_OK);
    CHECK_CODE(hw_close(device), HW_CODE_OK);
    CHECK_CODE(hw_close(device), HW_CODE_HANDLE);
    puts("every device call returned its code");
    return 0;
}
