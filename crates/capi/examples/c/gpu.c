/*
 * A mover with a GPU: the program registers memory, and jobs over it go through the memory of the GPU. Not yet run on a GPU:
 * the tests give this program a library that stands for the driver, which works or fails. Either way every job ends once.
 */
#define _DEFAULT_SOURCE
#include "check.h"

#include <string.h>

enum { BYTES = 5 << 20, PAGE = 4096, JOBS = 4 };

static hw_mover *open_mover(void) {
    hw_mover_settings settings;
    hw_mover *mover = NULL;
    CHECK_CODE(hw_mover_settings_init(&settings, sizeof settings), HW_CODE_OK);
    settings.gpus = 1;
    settings.threshold_bytes = 64 << 10;
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

static unsigned char *allocate(unsigned char value) {
    void *memory = NULL;
    CHECK(posix_memalign(&memory, PAGE, BYTES) == 0);
    memset(memory, value, BYTES);
    return memory;
}

/* Copies `from` to `to` but for the last page, which it fills. */
static hw_move_job *describe(unsigned char *from, unsigned char *to) {
    hw_move_job *job = NULL;
    uint32_t source = 9, target = 9, step = 9;
    CHECK_CODE(hw_move_job_create(0, &job), HW_CODE_OK);
    CHECK_CODE(hw_move_job_add_memory(job, from, BYTES, HW_MOVE_READ, &source), HW_CODE_OK);
    CHECK_CODE(hw_move_job_add_memory(job, to, BYTES, HW_MOVE_WRITE, &target), HW_CODE_OK);
    hw_move_step copy = {.struct_bytes = sizeof copy, .operation = HW_MOVE_COPY, .from = source, .to = target,
                         .bytes = BYTES - PAGE};
    hw_move_step fill = {.struct_bytes = sizeof fill, .operation = HW_MOVE_FILL, .to = target,
                         .to_offset = BYTES - PAGE, .bytes = PAGE, .value = 0xc3};
    CHECK_CODE(hw_move_job_add_step(job, &copy, &step), HW_CODE_OK);
    CHECK_CODE(hw_move_job_add_step(job, &fill, &step), HW_CODE_OK);
    return job;
}

static void check_copy(const unsigned char *from, const unsigned char *to) {
    CHECK(memcmp(from, to, BYTES - PAGE) == 0);
    for (size_t at = BYTES - PAGE; at < BYTES; at++) CHECK(to[at] == 0xc3);
}

int main(void) {
    const char *kind = getenv("SOFTWARE_GPU");
    int works = kind == NULL || strcmp(kind, "works") == 0;
    hw_mover *mover = open_mover();
    unsigned char *from = allocate(1), *to = allocate(2);
    for (size_t at = 0; at < BYTES; at++) from[at] = (unsigned char)(at * 31 >> 3);

    /* Memory that is not registered the caller moves. */
    hw_move_job *job = describe(from, to);
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
    check_copy(from, to);
    CHECK(totals(mover).channel_jobs == 0 && totals(mover).unreachable > 0);

    CHECK_CODE(hw_mover_register(mover, from, BYTES), HW_CODE_OK);
    CHECK_CODE(hw_mover_register(mover, to, BYTES), HW_CODE_OK);
    CHECK_CODE(hw_mover_register(mover, to, PAGE), HW_CODE_DEVICE);
    CHECK(strstr(hw_last_error(), "ALREADY_REGISTERED") != NULL);
    CHECK_CODE(hw_mover_unregister(mover, to, PAGE), HW_CODE_DEVICE);

    uint64_t unreachable = totals(mover).unreachable;
    for (int round = 0; round < JOBS; round++) {
        hw_move_ticket *ticket = NULL;
        memset(to, round, BYTES);
        CHECK_CODE(hw_mover_start(mover, job, &ticket), HW_CODE_OK);
        CHECK_CODE(hw_mover_unregister(mover, to, BYTES), HW_CODE_BUSY);
        CHECK_CODE(hw_mover_wait(mover, ticket, HW_FOREVER), HW_CODE_OK);
        check_copy(from, to);
        memset(to, round, BYTES);
        CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
        check_copy(from, to);
    }
    hw_mover_totals moved = totals(mover);
    CHECK(moved.channel_jobs > 0 && moved.unreachable == unreachable);
    CHECK(works ? moved.abandoned == 0 && moved.refused == 0 : moved.abandoned > 0);

    /* What is unregistered is the caller's again. */
    CHECK_CODE(hw_mover_unregister(mover, to, BYTES), HW_CODE_OK);
    uint64_t before = totals(mover).channel_jobs;
    CHECK_CODE(hw_mover_run(mover, job), HW_CODE_OK);
    check_copy(from, to);
    CHECK(totals(mover).channel_jobs == before);
    CHECK_CODE(hw_move_job_destroy(job), HW_CODE_OK);
    /* The close unregisters the rest. */
    CHECK_CODE(hw_mover_close(mover), HW_CODE_OK);
    free(from), free(to);
    puts("every job ended once");
    return 0;
}
