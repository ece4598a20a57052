/*
 * A mover: jobs over memory of the program and of a device, run and started, their results, a descriptor that becomes
 * readable when a started job has ended, threads that share a mover, and every misuse with its code.
 *
 * The jobs of this program are started on "software" work queues and on threads; the policy is frozen, so that it chooses
 * them each time.
 */
#define _DEFAULT_SOURCE
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KIB = 1 << 10, MIB = 1 << 20, THREADS = 4, ROUNDS = 40, JOBS = 3, STARTED_MAX = 1024 };

/* Opens a mover whose policy gives jobs of 64 KiB and more to its threads and work queues. */
static hw_mover *open_mover(uint32_t threads, const char *work_queues) {
    hw_mover_settings settings;
    hw_mover *mover = NULL;
    CHECK_CODE(hw_mover_settings_init(&settings, sizeof settings), HW_CODE_OK);
    settings.threads = threads;
    settings.work_queues = work_queues;
    settings.threshold_bytes = 64 * KIB;
    settings.cpu_bytes_per_us = 1;
    settings.channel_bytes_per_us = 100000;
    settings.channel_fixed_ns = 0;
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_OK);
    CHECK_CODE(hw_mover_freeze(mover, 1), HW_CODE_OK);
    return mover;
}

static hw_mover_totals totals(hw_mover *mover) {
    hw_mover_totals now;
    CHECK_CODE(hw_mover_statistics(mover, &now, sizeof now), HW_CODE_OK);
    return now;
}

static hw_move_job *create(uint32_t flags) {
    hw_move_job *job = NULL;
    CHECK_CODE(hw_move_job_create(flags, &job), HW_CODE_OK);
    return job;
}

static uint32_t lend(hw_move_job *job, const void *memory, size_t bytes, uint32_t access) {
    uint32_t number = 99;
    CHECK_CODE(hw_move_job_add_memory(job, memory, bytes, access, &number), HW_CODE_OK);
    return number;
}

static uint32_t add(hw_move_job *job, hw_move_step step) {
    uint32_t number = 99;
    step.struct_bytes = sizeof step;
    CHECK_CODE(hw_move_job_add_step(job, &step, &number), HW_CODE_OK);
    return number;
}

static hw_step_result result(hw_move_job *job, uint32_t step) {
    hw_step_result found;
    CHECK_CODE(hw_move_job_result(job, step, &found), HW_CODE_OK);
    return found;
}

static void noise(unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)((seed = seed * 1664525u + 1013904223u) >> 24);
}

static uint32_t crc_table[256];

static void make_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        crc_table[i] = i;
        for (int bit = 0; bit < 8; bit++) crc_table[i] = crc_table[i] >> 1 ^ (crc_table[i] & 1 ? 0x82f63b78u : 0);
    }
}

static uint32_t crc32c(uint32_t seed, const unsigned char *bytes, size_t count) {
    uint32_t crc = ~seed;
    for (size_t i = 0; i < count; i++) crc = crc >> 8 ^ crc_table[(crc ^ bytes[i]) & 255];
    return ~crc;
}

/* One job with every step, twice with other bytes, run and started. */
static void every_step(hw_mover *mover, uint32_t flags, int has_channels) {
    enum { BYTES = 100 * KIB };
    static unsigned char source[BYTES], first[BYTES], second[BYTES], third[BYTES];
    hw_move_job *job = create(flags);
    uint32_t from = lend(job, source, BYTES, HW_MOVE_READ), one = lend(job, first, BYTES, HW_MOVE_WRITE);
    uint32_t two = lend(job, second, BYTES, HW_MOVE_WRITE), three = lend(job, third, BYTES, HW_MOVE_WRITE);
    CHECK(from == 0 && one == 1 && two == 2 && three == 3);
    size_t half = BYTES / 2;
    CHECK(add(job, (hw_move_step){.operation = HW_MOVE_COPY, .from = from, .to = one, .bytes = BYTES}) == 0);
    add(job, (hw_move_step){.operation = HW_MOVE_COPY_CRC32C, .from = from, .from_offset = 7, .to = two,
                            .to_offset = half + 1, .bytes = half - 100, .seed = 5});
    add(job, (hw_move_step){.operation = HW_MOVE_DUALCAST, .from = one, .from_offset = 3, .to = two, .to_offset = 1,
                            .second = three, .second_offset = half, .bytes = half - 10});
    add(job, (hw_move_step){.operation = HW_MOVE_FILL, .to = three, .to_offset = 2, .bytes = 1000, .value = 0xa5});
    add(job, (hw_move_step){.operation = HW_MOVE_COMPARE, .from = from, .to = one, .bytes = BYTES});
    add(job, (hw_move_step){.operation = HW_MOVE_FILL, .to = one, .to_offset = 70001, .bytes = 1, .value = 300 % 256});
    add(job, (hw_move_step){.operation = HW_MOVE_COMPARE, .from = from, .from_offset = 1, .to = one, .to_offset = 1,
                            .bytes = BYTES - 1});
    add(job, (hw_move_step){.operation = HW_MOVE_CRC32C, .from = three, .bytes = BYTES, .seed = 9});
    /* Inside of one memory, apart. */
    add(job, (hw_move_step){.operation = HW_MOVE_COPY, .from = one, .to = one, .to_offset = half, .bytes = half});
    CHECK(add(job, (hw_move_step){.operation = HW_MOVE_FLUSH, .from = one, .from_offset = 1, .bytes = half}) == 9);
    for (unsigned round = 0; round < 4; round++) {
        uint32_t promise = 99;
        noise(source, BYTES, round);
        source[70001] = 1;
        memset(first, 1, BYTES), memset(second, 2, BYTES), memset(third, 3, BYTES);
        if (round % 2 == 0) {
            CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
        } else {
            hw_move_ticket *ticket = NULL;
            CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_OK);
            CHECK_CODE(hw_mover_wait(mover, ticket, HW_FOREVER), HW_CODE_OK);
        }
        CHECK(result(job, 0).kind == HW_STEP_DONE && result(job, 2).kind == HW_STEP_DONE);
        CHECK(result(job, 1).kind == HW_STEP_CRC32C && result(job, 1).crc32c == crc32c(5, source + 7, half - 100));
        CHECK(result(job, 4).kind == HW_STEP_EQUAL);
        CHECK(result(job, 6).kind == HW_STEP_DIFFERS && result(job, 6).differs_at == 70000);
        CHECK(result(job, 7).crc32c == crc32c(9, third, BYTES));
        CHECK(memcmp(first, source, half) == 0 && memcmp(first + half, source, half) == 0);
        CHECK(second[0] == 2 && second[half - 9] == 2 && second[half] == 2 && second[BYTES - 99] == 2);
        CHECK(memcmp(second + half + 1, source + 7, half - 100) == 0 && memcmp(second + 1, source + 3, half - 10) == 0);
        CHECK(memcmp(third + half, source + 3, half - 10) == 0 && third[BYTES - 10] == 3);
        CHECK(third[1] == 3 && third[2] == 0xa5 && third[1001] == 0xa5 && third[1002] == 3);
        /* The job has a flush: it promises something, and more than nothing on a processor that can write lines back. */
        CHECK_CODE(hw_move_job_promise(job, &promise), HW_CODE_OK);
        CHECK(promise == HW_PROMISE_PERSISTENT || promise == HW_PROMISE_VISIBLE_ONLY);
    }
    /* Nodes and a time limit change which engine does a job, and nothing else. */
    CHECK_CODE(hw_move_job_set_nodes(job, 1024, -1), HW_CODE_CONFIG);
    CHECK_CODE(hw_move_job_set_nodes(job, 0, -2), HW_CODE_CONFIG);
    CHECK_CODE(hw_move_job_set_nodes(job, 0, 0), HW_CODE_OK);
    for (uint64_t limit = 0; limit < 3; limit++) {
        CHECK_CODE(hw_move_job_set_time_limit(job, limit * 500000), HW_CODE_OK);
        noise(source, BYTES, 50 + (unsigned)limit);
        CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
        CHECK(memcmp(first, source, half) == 0 && memcmp(first + half, source, half) == 0);
    }
    /* No engine meets a nanosecond: the job is done nevertheless, and counted. A mover without channels takes no decision. */
    hw_mover_totals totals = {0};
    CHECK_CODE(hw_move_job_set_time_limit(job, 1), HW_CODE_OK);
    /* A thread that held up its caller gets no job for 512 decisions. */
    for (unsigned round = 0; round < (has_channels ? 600 : 2) && totals.missed_limit_decisions == 0; round++) {
        hw_move_ticket *ticket = NULL;
        CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_OK);
        CHECK_CODE(hw_mover_wait(mover, ticket, HW_FOREVER), HW_CODE_OK);
        CHECK(memcmp(first, source, half) == 0);
        CHECK_CODE(hw_mover_statistics(mover, &totals, sizeof totals), HW_CODE_OK);
    }
    CHECK((totals.missed_limit_decisions > 0) == has_channels);
    /* Cleared, it is filled again; without a flush a job that is not persistent promises nothing. */
    CHECK_CODE(hw_move_job_clear(job), HW_CODE_OK);
    from = lend(job, source, 10, HW_MOVE_READ), one = lend(job, first, 10, HW_MOVE_WRITE);
    CHECK(from == 0 && add(job, (hw_move_step){.operation = HW_MOVE_COPY, .to = one, .bytes = 10}) == 0);
    uint32_t promise = 99;
    CHECK_CODE(hw_move_job_promise(job, &promise), HW_CODE_OK);
    CHECK(promise == HW_PROMISE_NONE);
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
    CHECK_CODE(hw_move_job_promise(job, &promise), HW_CODE_OK);
    CHECK((promise == HW_PROMISE_NONE) == (flags % 2 == 0) && memcmp(first, source, 10) == 0);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
}

/* Memory of a device, of a pool and imported memory in one job. */
static void device_memory(hw_mover *mover) {
    hw_device *device = NULL;
    hw_pool *pool = NULL;
    char *buffer = NULL, *imported = NULL, *pooled = NULL;
    hw_move_job *job = create(0);
    uint32_t from = 9, to = 9, third = 9;
    CHECK_CODE(hw_open("model:64MiB", &device), HW_CODE_OK);
    CHECK_CODE(hw_pool_open(NULL, &pool), HW_CODE_OK);
    CHECK_CODE(hw_get_buffer(device, 300 * KIB, (void **)&buffer), HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc(pool, 200 * KIB, 0, 0, (void **)&pooled), HW_CODE_OK);
    CHECK(posix_memalign((void **)&imported, 4096, 256 * KIB) == 0);
    CHECK_CODE(hw_import_buffer(device, imported, 256 * KIB), HW_CODE_OK);
    noise((unsigned char *)buffer, 300 * KIB, 77);
    memset(imported, 1, 256 * KIB);
    /* Parts of buffers: their offsets count from the part. */
    CHECK_CODE(hw_move_job_add_buffer(job, device, buffer + 5000, 200 * KIB, HW_MOVE_READ, &from), HW_CODE_OK);
    CHECK_CODE(hw_move_job_add_buffer(job, device, imported + 4096, 220 * KIB, HW_MOVE_WRITE, &to), HW_CODE_OK);
    third = lend(job, pooled, 200 * KIB, HW_MOVE_WRITE);
    add(job, (hw_move_step){.operation = HW_MOVE_DUALCAST, .from = from, .from_offset = 3, .to = to, .to_offset = 11,
                            .second = third, .second_offset = 3, .bytes = 200 * KIB - 3});
    hw_move_step step = {.struct_bytes = sizeof step, .operation = HW_MOVE_FILL, .to = to, .bytes = 220 * KIB + 1};
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OUT_OF_RANGE);
    step.bytes = 1, step.to = from;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_READ_ONLY);
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
    CHECK(memcmp(imported + 4096 + 11, buffer + 5003, 200 * KIB - 3) == 0);
    CHECK(memcmp(pooled + 3, buffer + 5003, 200 * KIB - 3) == 0);
    CHECK(imported[4096 + 10] == 1 && imported[4096 + 11 + 200 * KIB - 3] == 1);
    CHECK_CODE(hw_move_job_add_buffer(job, device, buffer + 1, 300 * KIB, HW_MOVE_READ, &from), HW_CODE_FOREIGN);
    CHECK_CODE(hw_move_job_add_buffer(job, device, pooled, 10, HW_MOVE_READ, &from), HW_CODE_FOREIGN);
    CHECK_CODE(hw_move_job_add_buffer(job, device, NULL, 10, HW_MOVE_READ, &from), HW_CODE_NULL);
    CHECK_CODE(hw_move_job_add_buffer(job, NULL, buffer, 10, HW_MOVE_READ, &from), HW_CODE_NULL);
    CHECK_CODE(hw_move_job_add_buffer(job, device, buffer, 0, HW_MOVE_READ, &from), HW_CODE_ZERO);
    CHECK_CODE(hw_move_job_add_buffer(job, device, imported, 4097, HW_MOVE_READ, &from), HW_CODE_OVERLAP);
    CHECK_CODE(hw_move_job_add_memory(job, imported + 5000, 1, HW_MOVE_READ, &from), HW_CODE_OVERLAP);
    /* The job keeps both buffers until it is cleared. */
    CHECK_CODE(hw_put_buffer(device, imported), HW_CODE_BUSY);
    CHECK_CODE(hw_put_buffer(device, buffer), HW_CODE_OK);
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
    CHECK_CODE(hw_put_buffer(device, imported), HW_CODE_OK);
    CHECK_CODE(hw_pool_free(pool, pooled), HW_CODE_OK);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
    CHECK_CODE(hw_close(device), HW_CODE_OK);
    free(imported);
}

static void invalid_memories_and_steps(void) {
    char bytes[64], more[64];
    uint32_t number = 5, odd[2];
    hw_move_job *job = create(0), *none = NULL;
    hw_step_result found;
    CHECK_CODE(hw_move_job_create(8, &none), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_move_job_create(0, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_move_job_add_memory(job, NULL, 1, HW_MOVE_READ, &number), HW_CODE_NULL);
    CHECK_CODE(hw_move_job_add_memory(job, bytes, 1, HW_MOVE_READ, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_move_job_add_memory(job, bytes, 1, HW_MOVE_READ, (uint32_t *)((char *)odd + 1)), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_move_job_add_memory(NULL, bytes, 1, HW_MOVE_READ, &number), HW_CODE_NULL);
    CHECK_CODE(hw_move_job_add_memory((hw_move_job *)bytes, bytes, 1, HW_MOVE_READ, &number), HW_CODE_HANDLE);
    CHECK_CODE(hw_move_job_add_memory(job, bytes, 1, 2, &number), HW_CODE_CONFIG);
    CHECK_CODE(hw_move_job_add_memory(job, bytes, 0, HW_MOVE_READ, &number), HW_CODE_ZERO);
    CHECK_CODE(hw_move_job_add_memory(job, bytes, SIZE_MAX, HW_MOVE_READ, &number), HW_CODE_OVERFLOW);
    CHECK_CODE(hw_move_job_add_memory(job, (void *)UINTPTR_MAX, 1, HW_MOVE_READ, &number), HW_CODE_OVERFLOW);
    CHECK(number == 5);
    CHECK(lend(job, bytes, sizeof bytes, HW_MOVE_READ) == 0 && lend(job, more, 32, HW_MOVE_WRITE) == 1);
    /* What is only read may be named twice; what is written may not. */
    CHECK(lend(job, bytes + 8, 8, HW_MOVE_READ) == 2);
    CHECK_CODE(hw_move_job_add_memory(job, bytes + 63, 1, HW_MOVE_WRITE, &number), HW_CODE_OVERLAP);
    CHECK_CODE(hw_move_job_add_memory(job, more + 31, 1, HW_MOVE_READ, &number), HW_CODE_OVERLAP);
    CHECK(strstr(hw_last_error(), "memory 1") != NULL);
    CHECK(lend(job, more + 32, 1, HW_MOVE_WRITE) == 3);

    const hw_move_step copy = {.struct_bytes = sizeof copy, .operation = HW_MOVE_COPY, .to = 1, .bytes = 32};
    hw_move_step step = copy;
    CHECK_CODE(hw_move_job_add_step(job, NULL, NULL), HW_CODE_NULL);
    step.struct_bytes = 8;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_ARGUMENT);
    step = copy, step.operation = 7;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_CONFIG);
    step = copy, step.bytes = 0;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_ZERO);
    step = copy, step.bytes = 33;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OUT_OF_RANGE);
    CHECK(strstr(hw_last_error(), "33 bytes at offset 0 do not lie in a memory of 32 bytes") != NULL);
    step = copy, step.from_offset = 33;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OUT_OF_RANGE);
    step = copy, step.to_offset = SIZE_MAX;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OVERFLOW);
    step = copy, step.bytes = SIZE_MAX, step.from_offset = 1;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OVERFLOW);
    step = copy, step.to = 0, step.from = 1;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_READ_ONLY);
    step = copy, step.to = 4;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_UNKNOWN);
    step = copy, step.from = UINT32_MAX;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_UNKNOWN);
    step = copy, step.from = 1, step.to_offset = 7, step.bytes = 8;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OVERLAP);
    step.from_offset = 14;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OVERLAP);
    step.operation = HW_MOVE_COPY_CRC32C;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OVERLAP);
    step = copy, step.operation = HW_MOVE_DUALCAST, step.second = 1, step.second_offset = 7, step.bytes = 8;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OVERLAP);
    step.second = 0;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_READ_ONLY);
    step.second = 3;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OUT_OF_RANGE);
    step.second = 1, step.from = 1, step.from_offset = 16, step.second_offset = 20;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OVERLAP);
    step = copy, step.operation = HW_MOVE_FILL, step.value = 256;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_CONFIG);
    step = copy, step.operation = HW_MOVE_COMPARE, step.to_offset = 1;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OUT_OF_RANGE);
    step = copy, step.operation = HW_MOVE_CRC32C, step.from = 1, step.bytes = 33;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OUT_OF_RANGE);
    step.operation = HW_MOVE_FLUSH;
    CHECK_CODE(hw_move_job_add_step(job, &step, NULL), HW_CODE_OUT_OF_RANGE);

    /* No invalid step was added. */
    CHECK_CODE(hw_move_job_result(job, 0, &found), HW_CODE_UNKNOWN);
    CHECK(strstr(hw_last_error(), "0 steps") != NULL);
    CHECK_CODE(hw_move_job_add_step(job, &copy, NULL), HW_CODE_OK);
    CHECK_CODE(hw_move_job_result(job, 0, &found), HW_CODE_UNKNOWN);
    CHECK(strstr(hw_last_error(), "run the job first") != NULL);
    CHECK_CODE(hw_move_job_result(job, 1, &found), HW_CODE_UNKNOWN);
    CHECK_CODE(hw_move_job_result(job, 0, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_move_job_promise(job, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_HANDLE);
    CHECK_CODE(hw_move_job_clear(job), HW_CODE_HANDLE);
    CHECK_CODE(hw_move_job_add_step(job, &copy, NULL), HW_CODE_HANDLE);
}

static void invalid_movers(void) {
    hw_mover_settings unset, settings;
    hw_mover *mover = NULL;
    hw_move_job *job = create(0);
    CHECK_CODE(hw_mover_settings_init(&unset, 8), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_mover_settings_init(NULL, sizeof unset), HW_CODE_NULL);
    CHECK_CODE(hw_mover_settings_init(&unset, sizeof unset), HW_CODE_OK);
    settings = unset, settings.struct_bytes = 1;
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_ARGUMENT);
    settings = unset, settings.threads = 17;
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_CONFIG);
    settings = unset, settings.gpus = 17;
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_CONFIG);
    settings = unset, settings.cache_writes = HW_CACHE_WRITES_BYPASSING + 1;
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_CONFIG);
    CHECK(strstr(hw_last_error(), "HW_CACHE_WRITES_BYPASSING") != NULL);
    settings = unset, settings.channel_bytes_per_us = 0;
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_CONFIG);
    settings = unset, settings.work_queues = "dsa0";
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_CONFIG);
    CHECK(strstr(hw_last_error(), "\"dsa0\" names no work queue") != NULL);
    settings.work_queues = "\xff";
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_CONFIG);
    settings.work_queues = "wq4000.4000";
    CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_DEVICE);
    CHECK_CODE(hw_mover_open(&unset, NULL), HW_CODE_NULL);
    CHECK(mover == NULL);
    CHECK_CODE(hw_mover_run(NULL, job), HW_CODE_NULL);
    CHECK_CODE(hw_mover_run((hw_mover *)&unset, job), HW_CODE_HANDLE);
    CHECK_CODE(hw_mover_open(NULL, &mover), HW_CODE_OK);
    CHECK_CODE(hw_mover_run(mover, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_mover_run(mover, (hw_move_job *)&unset), HW_CODE_HANDLE);
    CHECK_CODE(hw_mover_start(mover, job, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_mover_wait(mover, NULL, 0), HW_CODE_NULL);
    CHECK_CODE(hw_mover_poll(mover, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_mover_poll(mover, &job), HW_CODE_WOULD_BLOCK);
    CHECK_CODE(hw_mover_drain(NULL, 0), HW_CODE_NULL);
    CHECK_CODE(hw_mover_drain(mover, 0), HW_CODE_OK);
    CHECK_CODE(hw_mover_descriptor(mover, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_mover_register(mover, &unset, sizeof unset), HW_CODE_UNSUPPORTED);
    CHECK_CODE(hw_mover_unregister(mover, &unset, sizeof unset), HW_CODE_UNSUPPORTED);
    CHECK_CODE(hw_mover_register(mover, &unset, 0), HW_CODE_ZERO);
    CHECK_CODE(hw_mover_register(mover, &unset, SIZE_MAX), HW_CODE_OVERFLOW);
    CHECK_CODE(hw_mover_register(NULL, &unset, 1), HW_CODE_NULL);
    CHECK_CODE(hw_mover_freeze(mover, 2), HW_CODE_CONFIG);
    CHECK_CODE(hw_mover_freeze(mover, 1), HW_CODE_OK);
    CHECK_CODE(hw_mover_statistics(mover, NULL, 8), HW_CODE_NULL);
    /* A job without steps ends at once, and has no results. */
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
    CHECK_CODE(hw_mover_close(mover), HW_CODE_OK);
    CHECK_CODE(hw_mover_close(mover), HW_CODE_HANDLE);
    hw_move_ticket *ticket = NULL;
    int descriptor = 0;
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_HANDLE);
    CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_HANDLE);
    CHECK_CODE(hw_mover_poll(mover, &job), HW_CODE_HANDLE);
    CHECK_CODE(hw_mover_drain(mover, HW_FOREVER), HW_CODE_HANDLE);
    CHECK_CODE(hw_mover_descriptor(mover, &descriptor), HW_CODE_HANDLE);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
}

/* A job that was started: what is refused until it is taken, and that it is taken once. */
static void started_job(hw_mover *mover) {
    static unsigned char source[MIB], target[MIB];
    hw_move_job *job = create(HW_JOB_NOT_READ_SOON), *same = NULL;
    hw_move_ticket *ticket = NULL, *second = NULL;
    hw_mover *further = NULL;
    hw_step_result found;
    uint32_t number;
    uint64_t channel_jobs = totals(mover).channel_jobs;
    noise(source, MIB, 3);
    lend(job, source, MIB, HW_MOVE_READ), lend(job, target, MIB, HW_MOVE_WRITE);
    hw_move_step copy = {.struct_bytes = sizeof copy, .operation = HW_MOVE_COPY, .to = 1, .bytes = MIB};
    add(job, copy);
    CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_OK);
    CHECK(totals(mover).channel_jobs == channel_jobs + 1);
    CHECK(totals(mover).running + totals(mover).ended == 1);
    /* The job runs until it is taken, also when it has ended. */
    CHECK_CODE(hw_mover_start(mover, job, &second), HW_CODE_BUSY);
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_BUSY);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_BUSY);
    CHECK_CODE(hw_move_job_clear(job), HW_CODE_BUSY);
    CHECK_CODE(hw_move_job_add_step(job, &copy, NULL), HW_CODE_BUSY);
    CHECK_CODE(hw_move_job_add_memory(job, &copy, 1, HW_MOVE_READ, &number), HW_CODE_BUSY);
    CHECK_CODE(hw_move_job_result(job, 0, &found), HW_CODE_BUSY);
    CHECK_CODE(hw_move_job_promise(job, &number), HW_CODE_BUSY);
    CHECK(strstr(hw_last_error(), "wait for its ticket") != NULL);
    CHECK_CODE(hw_mover_close(mover), HW_CODE_BUSY);
    CHECK(strstr(hw_last_error(), "1 jobs were started") != NULL);
    CHECK_CODE(hw_mover_open(NULL, &further), HW_CODE_OK);
    CHECK_CODE(hw_mover_wait(further, ticket, 0), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_mover_close(further), HW_CODE_OK);
    hw_code code = hw_mover_wait(mover, ticket, 0);
    CHECK(code == HW_CODE_OK || code == HW_CODE_TIMEOUT);
    if (code == HW_CODE_TIMEOUT) CHECK_CODE(hw_mover_wait(mover, ticket, HW_FOREVER), HW_CODE_OK);
    CHECK(memcmp(source, target, MIB) == 0 && result(job, 0).kind == HW_STEP_DONE);
    CHECK_CODE(hw_mover_wait(mover, ticket, HW_FOREVER), HW_CODE_HANDLE);
    CHECK_CODE(hw_mover_poll(mover, &same), HW_CODE_WOULD_BLOCK);
    CHECK(totals(mover).running + totals(mover).ended == 0);
    /* Taken by a poll, its ticket has ended too. */
    CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_OK);
    while (hw_mover_poll(mover, &same) == HW_CODE_WOULD_BLOCK) usleep(100);
    CHECK(same == job && result(job, 0).kind == HW_STEP_DONE);
    CHECK_CODE(hw_mover_wait(mover, ticket, 0), HW_CODE_HANDLE);
    /* A drain waits for the end and does not take the job: a wait takes it at once. */
    memset(target, 0, MIB);
    CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_OK);
    code = hw_mover_drain(mover, 0);
    CHECK(code == HW_CODE_OK || code == HW_CODE_TIMEOUT);
    if (code == HW_CODE_TIMEOUT) CHECK(strstr(hw_last_error(), "1 started jobs have not ended") != NULL);
    CHECK_CODE(hw_mover_drain(mover, HW_FOREVER), HW_CODE_OK);
    CHECK(totals(mover).running == 0 && totals(mover).ended == 1);
    CHECK_CODE(hw_mover_close(mover), HW_CODE_BUSY);
    CHECK_CODE(hw_mover_wait(mover, ticket, 0), HW_CODE_OK);
    CHECK(memcmp(source, target, MIB) == 0);
    CHECK_CODE(hw_mover_drain(mover, 0), HW_CODE_OK);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
}

static int is_readable(int descriptor, int timeout_ms) {
    struct pollfd look = {.fd = descriptor, .events = POLLIN};
    int ready = poll(&look, 1, timeout_ms);
    CHECK(ready >= 0);
    return ready;
}

/* An event loop: sleeps on the descriptor, takes jobs as they end. */
static void event_loop(hw_mover *mover, int may_sleep) {
    static unsigned char source[256 * KIB], targets[JOBS][256 * KIB];
    hw_move_job *jobs[JOBS], *ended = NULL;
    hw_move_ticket *tickets[JOBS];
    int descriptor = -1, again = -1, taken[JOBS] = {0};
    CHECK_CODE(hw_mover_descriptor(mover, &descriptor), HW_CODE_OK);
    CHECK_CODE(hw_mover_descriptor(mover, &again), HW_CODE_OK);
    CHECK(descriptor >= 0 && again == descriptor && !is_readable(descriptor, 0));
    noise(source, sizeof source, 8);
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = create(0);
        lend(jobs[i], source, sizeof source, HW_MOVE_READ), lend(jobs[i], targets[i], sizeof source, HW_MOVE_WRITE);
        add(jobs[i], (hw_move_step){.operation = HW_MOVE_COPY_CRC32C, .to = 1, .bytes = sizeof source});
    }
    for (int round = 0; round < ROUNDS; round++) {
        memset(targets, round, sizeof targets), memset(taken, 0, sizeof taken);
        for (int i = 0; i < JOBS; i++) CHECK_CODE(hw_mover_start(mover, jobs[i], &tickets[i]), HW_CODE_OK);
        for (int count = 0; count < JOBS;) {
            CHECK(is_readable(descriptor, -1));
            hw_code code = hw_mover_poll(mover, &ended);
            /* A channel with an interrupt is readable for an end alone. */
            CHECK(code == HW_CODE_OK || (code == HW_CODE_WOULD_BLOCK && !may_sleep));
            if (code != HW_CODE_OK) continue;
            int i = 0;
            while (i < JOBS && jobs[i] != ended) i++;
            CHECK(i < JOBS && !taken[i]);
            taken[i] = 1, count++;
            CHECK(memcmp(source, targets[i], sizeof source) == 0);
            CHECK(result(ended, 0).kind == HW_STEP_CRC32C && result(ended, 0).crc32c == result(jobs[i], 0).crc32c);
        }
        CHECK(!is_readable(descriptor, 0));
    }
    /* A job that ended stays readable until it is taken; a wait takes it as well. */
    CHECK_CODE(hw_mover_start(mover, jobs[0], &tickets[0]), HW_CODE_OK);
    while (totals(mover).ended == 0) usleep(100);
    CHECK(is_readable(descriptor, 0) && is_readable(descriptor, 0));
    CHECK_CODE(hw_mover_wait(mover, tickets[0], 0), HW_CODE_OK);
    CHECK(!is_readable(descriptor, 0));
    for (int i = 0; i < JOBS; i++) CHECK_CODE(hw_move_job_destroy(jobs[i]), HW_CODE_OK);
}

/* Threads with jobs of their own on one mover: one job is run, if that is allowed, the rest are started and waited for. */
struct mover_user {
    hw_mover *mover;
    int may_run;
    unsigned seed;
};

static void *use_mover(void *argument) {
    struct mover_user user = *(struct mover_user *)argument;
    size_t bytes = 200 * KIB;
    unsigned char *source = malloc(bytes), *targets[JOBS];
    hw_move_job *jobs[JOBS];
    hw_move_ticket *tickets[JOBS];
    for (int i = 0; i < JOBS; i++) {
        targets[i] = malloc(bytes);
        jobs[i] = create(i % 2 == 0 ? 0 : HW_JOB_NOT_READ_SOON);
        lend(jobs[i], source, bytes, HW_MOVE_READ), lend(jobs[i], targets[i], bytes, HW_MOVE_WRITE);
        add(jobs[i], (hw_move_step){.operation = HW_MOVE_COPY, .to = 1, .bytes = bytes});
        add(jobs[i], (hw_move_step){.operation = HW_MOVE_CRC32C, .from = 1, .bytes = bytes});
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        noise(source, bytes, user.seed * 1000 + round);
        uint32_t crc = crc32c(0, source, bytes);
        for (int i = 0; i < JOBS; i++) memset(targets[i], 0, bytes);
        for (int i = user.may_run; i < JOBS; i++)
            CHECK_CODE(hw_mover_start(user.mover, jobs[i], &tickets[i]), HW_CODE_OK);
        if (user.may_run) CHECK_CODE(hw_mover_run(user.mover, jobs[0]), HW_CODE_OK);
        for (int i = JOBS - 1; i >= user.may_run; i--)
            CHECK_CODE(hw_mover_wait(user.mover, tickets[i], HW_FOREVER), HW_CODE_OK);
        for (int i = 0; i < JOBS; i++) CHECK(memcmp(source, targets[i], bytes) == 0 && result(jobs[i], 1).crc32c == crc);
    }
    for (int i = 0; i < JOBS; i++) {
        CHECK_CODE(hw_move_job_destroy(jobs[i]), HW_CODE_OK);
        free(targets[i]);
    }
    free(source);
    return NULL;
}

static void threads_share(hw_mover *mover, int may_run) {
    pthread_t threads[THREADS];
    struct mover_user users[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        users[i] = (struct mover_user){.mover = mover, .may_run = may_run, .seed = i};
        CHECK(pthread_create(&threads[i], NULL, use_mover, &users[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(totals(mover).running + totals(mover).ended == 0);
}

/* Several threads wait for one ticket: one of them takes the job, and none waits for ever. */
struct ticket_user {
    hw_mover *mover;
    hw_move_ticket *ticket;
    hw_code code;
};

static void *wait_for_ticket(void *argument) {
    struct ticket_user *user = argument;
    user->code = hw_mover_wait(user->mover, user->ticket, HW_FOREVER);
    return NULL;
}

static void one_ticket_for_all(hw_mover *mover) {
    size_t bytes = 4 * MIB;
    unsigned char *target = malloc(bytes);
    hw_move_job *job = create(0);
    lend(job, target, bytes, HW_MOVE_WRITE);
    add(job, (hw_move_step){.operation = HW_MOVE_FILL, .bytes = bytes, .value = 7});
    for (int round = 0; round < ROUNDS; round++) {
        hw_move_ticket *ticket = NULL;
        pthread_t threads[THREADS];
        struct ticket_user users[THREADS];
        int taken = 0;
        CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_OK);
        for (int i = 0; i < THREADS; i++) {
            users[i] = (struct ticket_user){.mover = mover, .ticket = ticket, .code = HW_CODE_OTHER};
            CHECK(pthread_create(&threads[i], NULL, wait_for_ticket, &users[i]) == 0);
        }
        for (int i = 0; i < THREADS; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
            CHECK(users[i].code == HW_CODE_OK || users[i].code == HW_CODE_HANDLE);
            taken += users[i].code == HW_CODE_OK;
        }
        CHECK(taken == 1 && target[bytes - 1] == 7);
    }
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
    free(target);
}

/* Who flushes what a work queue wrote depends on what the program says about its writes. */
static void cache_writes(void) {
    static unsigned char target[MIB];
    for (uint32_t writes = HW_CACHE_WRITES_UNKNOWN; writes <= HW_CACHE_WRITES_BYPASSING; writes++) {
        hw_mover_settings settings;
        hw_mover *mover = NULL;
        hw_move_ticket *ticket = NULL;
        hw_move_job *job = create(HW_JOB_PERSISTENT);
        uint32_t promise = 99;
        CHECK_CODE(hw_mover_settings_init(&settings, sizeof settings), HW_CODE_OK);
        settings.work_queues = "software";
        settings.cpu_bytes_per_us = 1;
        settings.channel_bytes_per_us = 100000;
        settings.cache_writes = writes;
        CHECK_CODE(hw_mover_open(&settings, &mover), HW_CODE_OK);
        CHECK_CODE(hw_mover_freeze(mover, 1), HW_CODE_OK);
        lend(job, target, MIB, HW_MOVE_WRITE);
        add(job, (hw_move_step){.operation = HW_MOVE_FILL, .bytes = MIB / 2, .value = writes});
        add(job, (hw_move_step){.operation = HW_MOVE_FILL, .to_offset = MIB / 2, .bytes = MIB / 2, .value = writes});
        CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_OK);
        CHECK_CODE(hw_mover_wait(mover, ticket, HW_FOREVER), HW_CODE_OK);
        CHECK(target[0] == writes && target[MIB - 1] == writes);
        CHECK_CODE(hw_move_job_promise(job, &promise), HW_CODE_OK);
        CHECK(promise != HW_PROMISE_NONE);
        hw_mover_totals now = totals(mover);
        CHECK(now.flushed_unknown == (writes == HW_CACHE_WRITES_UNKNOWN));
        CHECK(now.flushed_allocating == (writes == HW_CACHE_WRITES_ALLOCATING));
        CHECK(now.not_flushed == (writes == HW_CACHE_WRITES_BYPASSING));
        /* The work queue gets both fills as one. */
        CHECK(now.merged_steps == 1 && now.not_permitted == 0);
        CHECK_CODE(hw_mover_close(mover), HW_CODE_OK);
        CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
    }
}

static void most_started_jobs(void) {
    static hw_move_job *jobs[STARTED_MAX + 1];
    static hw_move_ticket *tickets[STARTED_MAX + 1];
    static char bytes[2];
    hw_mover *mover = NULL;
    CHECK_CODE(hw_mover_open(NULL, &mover), HW_CODE_OK);
    for (int i = 0; i <= STARTED_MAX; i++) {
        jobs[i] = create(0);
        lend(jobs[i], bytes, 2, HW_MOVE_READ);
        add(jobs[i], (hw_move_step){.operation = HW_MOVE_CRC32C, .bytes = 2});
        CHECK_CODE(hw_mover_start(mover, jobs[i], &tickets[i]), i < STARTED_MAX ? HW_CODE_OK : HW_CODE_WOULD_BLOCK);
    }
    /* A job that was refused does not run. */
    CHECK_CODE(hw_mover_wait(mover, tickets[500], 0), HW_CODE_OK);
    CHECK_CODE(hw_mover_start(mover, jobs[STARTED_MAX], &tickets[500]), HW_CODE_OK);
    for (int i = 0; i < STARTED_MAX; i++) CHECK_CODE(hw_mover_wait(mover, tickets[i], 0), HW_CODE_OK);
    for (int i = 0; i <= STARTED_MAX; i++) {
        CHECK(result(jobs[i], 0).crc32c == crc32c(0, (unsigned char *)bytes, 2));
        CHECK_CODE(hw_move_job_destroy(jobs[i]), HW_CODE_OK);
    }
    CHECK_CODE(hw_mover_close(mover), HW_CODE_OK);
}

static void in_a_child(hw_mover *mover) {
    hw_move_job *job = create(0), *mine = NULL, *ended = NULL;
    hw_move_ticket *ticket = NULL;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_CODE(hw_mover_run(mover, job), HW_CODE_FORKED);
        CHECK_CODE(hw_mover_close(mover), HW_CODE_FORKED);
        CHECK_CODE(hw_move_job_destroy(job), HW_CODE_FORKED);
        CHECK_CODE(hw_move_job_create(0, &mine), HW_CODE_OK);
        CHECK_CODE(hw_mover_start(mover, mine, &ticket), HW_CODE_FORKED);
        CHECK_CODE(hw_mover_poll(mover, &ended), HW_CODE_FORKED);
        CHECK_CODE(hw_mover_drain(mover, HW_FOREVER), HW_CODE_FORKED);
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
}

/* A channel that held up a job that was run gets nothing for a while: what needs it is started on a mover that runs none. */
static void use_channels(uint32_t threads, const char *work_queues, int may_sleep) {
    hw_mover *mover = open_mover(threads, work_queues);
    every_step(mover, 0, 1);
    every_step(mover, HW_JOB_PERSISTENT, 1);
    every_step(mover, HW_JOB_PERSISTENT | HW_JOB_FROM_PERSISTENT, 1);
    every_step(mover, HW_JOB_NOT_READ_SOON, 1);
    device_memory(mover);
    threads_share(mover, 1);
    in_a_child(mover);
    CHECK(totals(mover).frozen_decisions > 0);
    CHECK_CODE(hw_mover_close(mover), HW_CODE_OK);
    mover = open_mover(threads, work_queues);
    started_job(mover);
    threads_share(mover, 0);
    one_ticket_for_all(mover);
    event_loop(mover, may_sleep);
    /* The descriptor is open now: what follows also keeps it right. */
    threads_share(mover, 0);
    one_ticket_for_all(mover);
    event_loop(mover, may_sleep);
    hw_mover_totals now = totals(mover);
    /* Threads that share a mover can fill its queues, so that the caller does some of their jobs; of the rest it does none. */
    CHECK(now.channel_jobs + now.refused >= 2 + 2 * ROUNDS + 2 * (ROUNDS * JOBS + 1) && now.taken_back == 0);
    CHECK_CODE(hw_mover_close(mover), HW_CODE_OK);
}

int main(void) {
    hw_mover *plain = NULL;
    make_crc_table();
    CHECK(crc32c(0, (const unsigned char *)"123456789", 9) == 0xe3069283u);
    CHECK_CODE(hw_mover_open(NULL, &plain), HW_CODE_OK);
    every_step(plain, 0, 0);
    every_step(plain, HW_JOB_PERSISTENT | HW_JOB_NOT_READ_SOON, 0);
    device_memory(plain);
    event_loop(plain, 1);
    threads_share(plain, 1);
    one_ticket_for_all(plain);
    CHECK(totals(plain).channel_jobs == 0 && totals(plain).large_jobs > 0 && totals(plain).small_jobs > 0);
    CHECK_CODE(hw_mover_close(plain), HW_CODE_OK);
    use_channels(1, NULL, 1);
    use_channels(0, "software", 0);
    use_channels(2, "software", 0);
    invalid_memories_and_steps();
    invalid_movers();
    most_started_jobs();
    cache_writes();
    puts("every job moved its bytes, and every misuse returned its code");
    return 0;
}
