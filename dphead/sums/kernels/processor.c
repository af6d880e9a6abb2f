/* Functions that `dphead.sums.kernels` calls before any other: which sources were compiled,
   and which library is the best for this processor. */
#include "kernels.h"

/* Return the digest of sources.py, as setup.py compiled it in. */
const char *sources(void)
{
    return SOURCES;
}

/* Return the best library for this processor, by its position in INSTRUCTION_SETS of
   setup.py: 0 plain, 1 avx2, 2 avx512, 3 avx512vnni. */
int instruction_set(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2"))
        return 0;
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return 1;
    return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
#else
    return 0;
#endif
}
