/*
 * A wall clock that a test can move.
 *
 * Loaded into a server before the C library, it answers in the library's place when the server reads the
 * time. Only the wall clock is moved: the monotonic clock, by which servers measure durations, is left alone,
 * as it is when an administrator sets the clock of a machine.
 *
 * The setting is in a file that the test writes and the shim has mapped, named by TIDEGATE_CLOCK:
 *
 *     offset, held, offset, held      each 8 bytes; microseconds
 *
 * The clock is ahead by `offset`, or stands still at `held` if that is not zero. The pair is stored twice,
 * because it can be read while it is being written: the writer writes the first and then the second, the shim
 * reads the second and then the first, and a value that is the same in both is complete.
 *
 * Valkey reads the processor's own counter where it can, reads the wall clock only once per millisecond, and
 * adds the time that has passed since according to the counter: a held clock would seem to run, and a step
 * would be seen late. Valkey learns of the counter from /proc/cpuinfo, so the shim hides that file. Then
 * Valkey reads the clock each time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct setting {
    int64_t offset, held;
};

static const volatile struct setting *settings;

/* Runs before the server's main, while there is only one thread. Aborts if the clock could not be moved. */
__attribute__((constructor)) static void map_settings(void) {
    const char *path = getenv("TIDEGATE_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = mmap(NULL, 2 * sizeof(struct setting), PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) abort();
    settings = mapped;
    close(file);
}

static struct setting setting(void) {
    struct setting first, second;
    do {
        second.offset = settings[1].offset;
        second.held = settings[1].held;
        __sync_synchronize();
        first.offset = settings[0].offset;
        first.held = settings[0].held;
    } while (first.offset != second.offset || first.held != second.held);
    return first;
}

/* The system's clock, read without the library that the shim replaces; in nanoseconds, moved. */
static int64_t moved(clockid_t clock) {
    struct timespec real;
    syscall(SYS_clock_gettime, clock, &real);
    if (!settings) return real.tv_sec * INT64_C(1000000000) + real.tv_nsec;
    struct setting now = setting();
    if (now.held) return now.held * 1000;
    return real.tv_sec * INT64_C(1000000000) + real.tv_nsec + now.offset * 1000;
}

int clock_gettime(clockid_t clock, struct timespec *into) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, into);
    int64_t now = moved(clock);
    into->tv_sec = now / 1000000000;
    into->tv_nsec = now % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    (void)zone;
    int64_t now = moved(CLOCK_REALTIME);
    into->tv_sec = now / 1000000000;
    into->tv_usec = now % 1000000000 / 1000;
    return 0;
}

time_t time(time_t *into) {
    time_t now = moved(CLOCK_REALTIME) / 1000000000;
    if (into) *into = now;
    return now;
}

typedef FILE *opener(const char *, const char *);

static FILE *open_unless_cpuinfo(const char *name, const char *path, const char *how) {
    if (strcmp(path, "/proc/cpuinfo") == 0) return NULL;
    return ((opener *)dlsym(RTLD_NEXT, name))(path, how);
}

FILE *fopen(const char *restrict path, const char *restrict how) { return open_unless_cpuinfo("fopen", path, how); }

FILE *fopen64(const char *restrict path, const char *restrict how) { return open_unless_cpuinfo("fopen64", path, how); }
