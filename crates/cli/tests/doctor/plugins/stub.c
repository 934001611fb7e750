// A net plugin that fails in a selected way: table v6, or v5 with -DTABLE=ncclNetPlugin_v5.
//   -DCRASHES, -DHANGS   init does; the latter opens the pipe STUB_HOLDS, if there is one
//   -DNOISY              init does not return, and prints
//   -DPRINTS             init prints what is no text, and the begin of a line
//   -DLEAVES             init leaves a process that keeps this one's output open, until nothing writes to the pipe STUB_LEAVES any more
//   -DUNRESOLVED         refers to a symbol that nothing has
//   -DNEEDS              refers to `needed`, of a library that it is linked with
// It has no device.
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef TABLE
#define TABLE ncclNetPlugin_v6
#endif

#ifdef UNRESOLVED
extern int no_such_symbol(void);
#define CALL no_such_symbol()
#elif defined(NEEDS)
extern int needed(void);
#define CALL needed()
#else
#define CALL 0
#endif

static int init(void *logger) {
  (void)logger;
#ifdef CRASHES
  *(volatile int *)8 = 1;
#endif
#ifdef PRINTS
  (void)!write(1, "\xff\nbegun", 7);
#endif
#ifdef NOISY
  while (write(1, "still here\n", 11) > 0) usleep(1000);
#endif
#ifdef LEAVES
  if (fork() == 0) {
    char byte;
    int pipe = open(getenv("STUB_LEAVES"), O_RDONLY);
    while (read(pipe, &byte, 1) > 0) {}
    _exit(0);
  }
#endif
#ifdef HANGS
  if (getenv("STUB_HOLDS")) (void)!open(getenv("STUB_HOLDS"), O_WRONLY);
  for (;;) pause();
#endif
  return CALL;
}

static int devices(int *count) {
  *count = 0;
  return 0;
}

static int refuse(void) { return 3; }

struct { const char *name; void *calls[16]; } TABLE = {"Stub", {init, devices, refuse, refuse, refuse, refuse, refuse, refuse, refuse, refuse, refuse, refuse, refuse, refuse, refuse, refuse}};
