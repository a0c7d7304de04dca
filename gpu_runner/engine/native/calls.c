/* Several calls of kernels in one from Python. */

#include <stdint.h>

struct call {
    int (*make)(const void *); /* 0 when done */
    const void *with;
};

/* Make calls one after the other. 0 when all are done, else the number of the one that failed, from 1. */
int64_t make_calls(const struct call *calls, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (calls[i].make(calls[i].with))
            return i + 1;
    return 0;
}
