/* `pairs BYTES COUNT` allocates and frees BYTES bytes COUNT times. The difference of two runs is the cost of pairs. */
#include "check.h"

int main(int arguments, char **argument) {
    size_t bytes = arguments > 1 ? strtoull(argument[1], NULL, 10) : 4096;
    unsigned long count = arguments > 2 ? strtoul(argument[2], NULL, 10) : 1000;
    hw_pool *pool = NULL;
    CHECK_CODE(hw_pool_open(NULL, &pool), HW_CODE_OK);
    for (unsigned long i = 0; i < count; i++) {
        void *buffer = NULL;
        CHECK_CODE(hw_pool_alloc(pool, bytes, 0, 0, &buffer), HW_CODE_OK);
        *(volatile char *)buffer = 1;
        CHECK_CODE(hw_pool_free(pool, buffer), HW_CODE_OK);
    }
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
    printf("%lu pairs of %zu bytes\n", count, bytes);
    return 0;
}
