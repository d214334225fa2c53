/* What the processor and its system can run. Asked of the portable library alone, which runs everywhere. */

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

__attribute__((visibility("default"))) int elmofire_cpu_runs(const char *instruction_set)
{
    if (!strcmp(instruction_set, "portable"))
        return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* These look at the operating system too: registers that it does not save count as missing. */
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!strcmp(instruction_set, "avx2"))
        return avx2;
    if (!strcmp(instruction_set, "avx512"))
        return avx512;
    if (!strcmp(instruction_set, "avx512_vnni"))
        return avx512 && __builtin_cpu_supports("avx512vnni");
#endif
    return 0;
}
