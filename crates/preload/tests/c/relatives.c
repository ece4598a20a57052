/* mempcpy, its checked form, and bcmp beside a byte loop, for every short length and some long ones. */
#define _GNU_SOURCE
#include "check.h"
#include <string.h>

#define BYTES 20000
#define PAD 64

void *__mempcpy_chk(void *to, const void *from, size_t bytes, size_t to_bytes);

static unsigned char from[BYTES + 2 * PAD], to[BYTES + 2 * PAD], expected[BYTES + 2 * PAD];

static void check_copy(size_t bytes, size_t skip, int is_checked)
{
    for (size_t at = 0; at < sizeof to; at++)
        to[at] = expected[at] = (unsigned char)(at + bytes);
    for (size_t at = 0; at < bytes; at++)
        expected[PAD + at] = from[skip + at];
    unsigned char *end = is_checked ? __mempcpy_chk(to + PAD, from + skip, bytes, bytes)
                                    : mempcpy(to + PAD, from + skip, bytes);
    CHECK(end == to + PAD + bytes);
    for (size_t at = 0; at < sizeof to; at++)
        CHECK(to[at] == expected[at]);
}

static void check_compare(size_t bytes, size_t skip)
{
    for (size_t at = 0; at < bytes; at++)
        to[PAD + at] = from[skip + at];
    CHECK(bcmp(to + PAD, from + skip, bytes) == 0);
    for (size_t at = 0; at < bytes; at += 1 + bytes / 5) {
        to[PAD + at] ^= 1;
        CHECK(bcmp(to + PAD, from + skip, bytes) != 0);
        to[PAD + at] ^= 1;
    }
    to[PAD + bytes] = (unsigned char)~from[skip + bytes];
    CHECK(bcmp(to + PAD, from + skip, bytes) == 0);
}

int main(void)
{
    for (size_t at = 0; at < sizeof from; at++)
        from[at] = byte_at(at, 3);
    for (size_t bytes = 0; bytes < 700; bytes++) {
        check_copy(bytes, bytes % PAD, bytes % 2);
        check_compare(bytes, bytes % PAD);
    }
    for (size_t bytes = 1000; bytes <= BYTES; bytes += 997) {
        check_copy(bytes, bytes % PAD, 0);
        check_copy(bytes, bytes % 16, 1);
        check_compare(bytes, bytes % PAD);
    }
    puts("relatives are as a byte loop leaves them");
    return 0;
}
