/* Checks of the examples: a condition that does not hold ends the program with a message. */
#ifndef HEADWATER_EXAMPLE_CHECK_H
#define HEADWATER_EXAMPLE_CHECK_H

#include <headwater.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "%s:%d: failed: %s (last error: %s)\n", __FILE__, __LINE__, #condition,            \
                    hw_last_error());                                                                          \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

#define CHECK_CODE(call, code)                                                                                 \
    do {                                                                                                       \
        hw_code got_ = (call);                                                                                 \
        if (got_ != (code)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s is %s, not %s (last error: %s)\n", __FILE__, __LINE__, #call,           \
                    hw_code_name(got_), hw_code_name(code), hw_last_error());                                  \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

#endif
