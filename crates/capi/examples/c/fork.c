/* A child process cannot use its parent's pool: every call returns HW_CODE_FORKED. A pool of its own works. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void in_the_child(hw_pool *pool, void *buffer) {
    void *out = NULL;
    hw_lookup found;
    hw_pool_totals now;
    hw_segment segment = {buffer, 4096};
    uint32_t count = 0;
    hw_pool *own = NULL;
    CHECK_CODE(hw_pool_alloc(pool, 1, 0, 0, &out), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_alloc_within(pool, 1, 0, 0, 1, &out), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_alloc_segments(pool, 1, 0, 0, &segment, 1, &count), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_free(pool, buffer), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_free_segments(pool, &segment, 1), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_lookup(pool, buffer, &found), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_statistics(pool, &now, sizeof now), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_set_cap(pool, 8 << 20), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_tick(pool), HW_CODE_FORKED);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_FORKED);

    CHECK_CODE(hw_pool_open(NULL, &own), HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc(own, 4096, 0, 0, &out), HW_CODE_OK);
    memset(out, 2, 4096);
    CHECK_CODE(hw_pool_free(own, buffer), out == buffer ? HW_CODE_OK : HW_CODE_FOREIGN);
    CHECK_CODE(hw_pool_close(own), HW_CODE_OK);
}

int main(void) {
    hw_pool *pool = NULL;
    unsigned char *buffer = NULL;
    int status = 0;
    CHECK_CODE(hw_pool_open(NULL, &pool), HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc(pool, 4096, 0, 0, (void **)&buffer), HW_CODE_OK);
    memset(buffer, 1, 4096);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        in_the_child(pool, buffer);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 4096; i++) CHECK(buffer[i] == 1);
    CHECK_CODE(hw_pool_free(pool, buffer), HW_CODE_OK);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
    printf("the child got HW_CODE_FORKED, and the parent kept its memory\n");
    return 0;
}
