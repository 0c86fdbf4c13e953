/* Shifts the clock of a process by CLOCK_OFFSET_S seconds. The clock that measures how time passes is
   not changed. Build it as a shared library, and load it with LD_PRELOAD. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

typedef int clock_function(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *result) {
  static clock_function *read_clock;
  const char *offset = getenv("CLOCK_OFFSET_S");
  if (read_clock == NULL)
    read_clock = (clock_function *)dlsym(RTLD_NEXT, "clock_gettime");
  int status = read_clock(clock, result);
  if (status == 0 && offset != NULL && clock == CLOCK_REALTIME)
    result->tv_sec += atol(offset);
  return status;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  result->tv_sec = now.tv_sec;
  result->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != NULL)
    *result = now.tv_sec;
  return now.tv_sec;
}
