// A net plugin that fails in a selected way: table v6, or v5 with -DTABLE=ncclNetPlugin_v5.
//   -DCRASHES, -DHANGS   init does
//   -DUNRESOLVED         refers to a symbol that nothing has
//   -DNEEDS              refers to `needed`, of a library that it is linked with
// It has no device.
#include <stddef.h>
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
#ifdef HANGS
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
