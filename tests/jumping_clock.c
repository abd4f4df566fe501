/* A wall clock that is hours ahead or behind, another number of them at every look; the clocks that
   never run backwards stay as they are. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void)
{
    static unsigned looks;
    looks = looks * 1103515245u + 12345u;
    return ((long)(looks >> 16) % 25 - 12) * 3600;
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    long status = syscall(SYS_clock_gettime, which, now);
    if (status == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        now->tv_sec += jump();
    return (int)status;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result)
        *result = exact.tv_sec;
    return exact.tv_sec;
}
