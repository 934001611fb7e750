// A CUDA driver without a GPU, for tests that put it before the real one: libcuda.so.1 by its name, with the calls that we, NCCL's
// plugins and libfabric's providers make. Two devices; their memory is files without names.
//
// As with a GPU, an address of device memory is of no use to the CPU: a read or write there is a fault. Copies go through a
// second mapping, and so does what stands for a NIC, which asks standin_view where that is. Calls want what the real ones want: cuInit,
// and a current context for what allocates or copies. A freed address is given out again, and buffer ids never are.
//
// STANDIN_CUDA, words with commas between them:
//   no-init      cuInit answers CUDA_ERROR_NO_DEVICE
//   stub         cuInit answers CUDA_ERROR_STUB_LIBRARY, as the CUDA toolkit's library to link with does
//   no-devices   there are none
//   no-dmabuf    no dmabuf can be made
//   no-ids       buffer ids are 0
//   managed      all memory says that it is managed
//   no-copies    copies answer CUDA_ERROR_UNKNOWN
//   failed-work  waits for a stream answer CUDA_ERROR_LAUNCH_FAILED
//   new-codes    copies and queries of streams answer with a number that no release of CUDA has
//   first-copies of device 0, copies that begin 1 MiB or more behind the start of their memory answer that
// STANDIN_CUDA_REPORT: a file that gets, when the process ends, a line for each library and each call that it made: the library's
// file, the call, how often. Processes append; %p is the process' id.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, STUB_LIBRARY = 34, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, UNKNOWN = 999, NEW_CODE = 12345 };
enum { DEVICES = 2, ALLOCATIONS = 4096, PAGE = 4096, STACK = 16, KEPT = 512 };
#define ARENA ((uint64_t)4 << 30)
typedef uint64_t address_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised;
static uint64_t last_id;

static struct allocation {
  address_t at;
  size_t len;  // 0: free
  int device, file;
  uint64_t id;
  char *view;
} allocations[ALLOCATIONS];
// Address space of each device.
static char *arenas[DEVICES];

static int is(const char *word) {
  const char *set = getenv("STANDIN_CUDA");
  size_t len = strlen(word);
  while (set && *set) {
    size_t end = strcspn(set, ",");
    if (end == len && memcmp(set, word, len) == 0) return 1;
    set += end + (set[end] == ',');
  }
  return 0;
}

// ---- who calls what ----------------------------------------------------------------------------------------------

static struct {
  const char *library, *call;
  unsigned long count;
} calls[KEPT];

static void note(const char *call, void *caller) {
  Dl_info found;
  const char *library = dladdr(caller, &found) && found.dli_fname ? found.dli_fname : "?";
  const char *slash = strrchr(library, '/');
  if (slash) library = slash + 1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < KEPT; i++) {
    if (!calls[i].call) calls[i].library = strdup(library), calls[i].call = call;
    if (strcmp(calls[i].library, library) || strcmp(calls[i].call, call)) continue;
    calls[i].count++;
    break;
  }
  pthread_mutex_unlock(&lock);
}
#define COUNT() note(__func__, __builtin_return_address(0))

// How often the library whose file has this name has made this call; null stands for any.
unsigned long standin_calls(const char *library, const char *call) {
  unsigned long sum = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < KEPT && calls[i].call; i++)
    if ((!library || !strcmp(calls[i].library, library)) && (!call || !strcmp(calls[i].call, call))) sum += calls[i].count;
  pthread_mutex_unlock(&lock);
  return sum;
}

__attribute__((destructor)) static void report(void) {
  const char *path = getenv("STANDIN_CUDA_REPORT");
  if (!path || !calls[0].call) return;
  char name[4096];
  const char *mark = strstr(path, "%p");
  int head = mark ? (int)(mark - path) : (int)strlen(path);
  if (mark)
    snprintf(name, sizeof name, "%.*s%d%s", head, path, (int)getpid(), mark + 2);
  else
    snprintf(name, sizeof name, "%s", path);
  char text[64 * KEPT];
  size_t len = 0;
  for (int i = 0; i < KEPT && calls[i].call && len < sizeof text; i++)
    len += (size_t)snprintf(text + len, sizeof text - len, "%s %s %lu\n", calls[i].library, calls[i].call, calls[i].count);
  int file = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  ssize_t written = write(file, text, len < sizeof text ? len : sizeof text);
  (void)written;
  close(file);
}

// ---- start, devices, contexts ------------------------------------------------------------------------------------

// Which devices' contexts this thread has pushed, the last one current.
static __thread int stack[STACK], depth;

static int ready(void) {
  return initialised == getpid() ? SUCCESS : NOT_INITIALIZED;
}

static int current(int *device) {
  if (ready()) return NOT_INITIALIZED;
  if (depth == 0) return INVALID_CONTEXT;
  *device = stack[depth - 1];
  return SUCCESS;
}

static int devices(void) {
  return is("no-devices") ? 0 : DEVICES;
}

int cuInit(unsigned flags) {
  COUNT();
  if (flags) return INVALID_VALUE;
  if (is("no-init")) return NO_DEVICE;
  if (is("stub")) return STUB_LIBRARY;
  // As the real one: what a parent has initialised is lost to its children for good.
  if (initialised && initialised != getpid()) return NOT_INITIALIZED;
  initialised = getpid();
  return SUCCESS;
}

int cuDriverGetVersion(int *version) {
  COUNT();
  *version = 12040;
  return SUCCESS;
}

int cuDeviceGetCount(int *place) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  *place = devices();
  return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  if (ordinal < 0 || ordinal >= devices()) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

int cuDeviceGetName(char *name, int len, int device) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  if (device < 0 || device >= devices()) return INVALID_DEVICE;
  snprintf(name, (size_t)len, "stand-in GPU %d", device);
  return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  if (device < 0 || device >= devices()) return INVALID_DEVICE;
  switch (attribute) {
    case 41:   // UNIFIED_ADDRESSING
    case 116:  // GPU_DIRECT_RDMA_SUPPORTED
      *value = 1;
      return SUCCESS;
    case 124:  // DMA_BUF_SUPPORTED
      *value = !is("no-dmabuf");
      return SUCCESS;
    default:
      *value = 0;
      return SUCCESS;
  }
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  if (device < 0 || device >= devices()) return INVALID_DEVICE;
  *context = (void *)(intptr_t)(device + 1);
  return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  return device < 0 || device >= devices() ? INVALID_DEVICE : SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  intptr_t number = (intptr_t)context;
  if (number < 1 || number > devices() || depth == STACK) return INVALID_CONTEXT;
  stack[depth++] = (int)number - 1;
  return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) {
  COUNT();
  int device, code = current(&device);
  if (code) return code;
  depth--;
  if (context) *context = (void *)(intptr_t)(device + 1);
  return SUCCESS;
}

int cuCtxSetCurrent(void *context) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  if (depth) depth--;
  if (!context) return SUCCESS;
  return cuCtxPushCurrent_v2(context);
}

int cuCtxGetCurrent(void **context) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  *context = depth ? (void *)(intptr_t)(stack[depth - 1] + 1) : NULL;
  return SUCCESS;
}

int cuCtxGetDevice(int *device) {
  COUNT();
  return current(device);
}

int cuCtxSynchronize(void) {
  COUNT();
  int device;
  return current(&device);
}

// Work is done before the call that asks for it returns, so a stream is a number and is always idle; but for one write of a test's,
// which runs when its stream is waited for.
static struct {
  void *stream, *view;
  char bytes[64];
  size_t len;
} later;

void *standin_view(address_t address, size_t len);

// Writes up to 64 bytes to device memory when the stream is synchronised. Not a call of CUDA's.
int standin_later(void *stream, address_t to, const void *bytes, size_t len) {
  later.view = len <= sizeof later.bytes ? standin_view(to, len) : NULL;
  if (!later.view) return INVALID_VALUE;
  later.stream = stream;
  later.len = len;
  memcpy(later.bytes, bytes, len);
  return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned flags) {
  COUNT();
  static intptr_t last;
  int device, code = current(&device);
  if (code || flags > 1) return code ? code : INVALID_VALUE;
  *stream = (void *)__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

int cuStreamQuery(void *stream) {
  COUNT();
  if (is("new-codes")) return NEW_CODE;
  int device;
  return stream ? current(&device) : INVALID_VALUE;
}

int cuStreamDestroy_v2(void *stream) {
  COUNT();
  int device;
  return stream ? current(&device) : INVALID_VALUE;
}

int cuStreamSynchronize(void *stream) {
  COUNT();
  int device, code = current(&device);
  if (!code && is("failed-work")) return LAUNCH_FAILED;
  if (!code && later.len && later.stream == stream) memcpy(later.view, later.bytes, later.len), later.len = 0;
  return code;
}

// Nothing moves pages here, so that there is nothing to lock; but what is locked is unlocked once.
static void *locked[16];

int cuMemHostRegister_v2(void *place, size_t len, unsigned flags) {
  COUNT();
  int device, code = current(&device);
  if (code || !place || !len || flags & ~15u) return code ? code : INVALID_VALUE;
  pthread_mutex_lock(&lock);
  code = OUT_OF_MEMORY;
  for (int i = 0; i < 16 && code; i++)
    if (!locked[i]) locked[i] = place, code = SUCCESS;
  pthread_mutex_unlock(&lock);
  return code;
}

int cuMemHostUnregister(void *place) {
  COUNT();
  int device, code = current(&device);
  if (code) return code;
  pthread_mutex_lock(&lock);
  code = INVALID_VALUE;
  for (int i = 0; i < 16 && code; i++)
    if (locked[i] == place) locked[i] = NULL, code = SUCCESS;
  pthread_mutex_unlock(&lock);
  return code;
}

// ---- memory ------------------------------------------------------------------------------------------------------

// Under the lock.
static struct allocation *around(address_t address) {
  for (int i = 0; i < ALLOCATIONS; i++)
    if (allocations[i].len && address - allocations[i].at < allocations[i].len) return &allocations[i];
  return NULL;
}

static void *closed(void *at, size_t len) {
  int fixed = at ? MAP_FIXED : 0;
  return mmap(at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

// The first place of the device's address space that has room: what was freed last is found again. Under the lock.
static address_t room(int device, size_t len) {
  if (!arenas[device]) {
    char *arena = closed(NULL, ARENA);
    if (arena == MAP_FAILED) return 0;
    arenas[device] = arena;
  }
  address_t first = (address_t)(uintptr_t)arenas[device], at = first;
  for (int moved = 1; moved;) {
    moved = 0;
    for (int i = 0; i < ALLOCATIONS; i++) {
      struct allocation *other = &allocations[i];
      if (other->len && at < other->at + other->len && other->at < at + len) at = other->at + other->len, moved = 1;
    }
  }
  return at + len <= first + ARENA ? at : 0;
}

int cuMemAlloc_v2(address_t *place, size_t len) {
  COUNT();
  int device, code = current(&device);
  if (code) return code;
  if (len == 0) return INVALID_VALUE;
  if (len > ARENA) return OUT_OF_MEMORY;
  len = (len + PAGE - 1) / PAGE * PAGE;
  pthread_mutex_lock(&lock);
  struct allocation *free = NULL;
  for (int i = 0; i < ALLOCATIONS && !free; i++)
    if (!allocations[i].len) free = &allocations[i];
  code = OUT_OF_MEMORY;
  address_t at = free ? room(device, len) : 0;
  int file = at ? memfd_create("device", MFD_CLOEXEC) : -1;
  if (file >= 0 && ftruncate(file, (off_t)len) == 0) {
    char *view = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (view != MAP_FAILED) {
      *free = (struct allocation){.at = at, .len = len, .device = device, .file = file, .id = ++last_id, .view = view};
      *place = at;
      code = SUCCESS;
    }
  }
  if (code && file >= 0) close(file);
  pthread_mutex_unlock(&lock);
  return code;
}

int cuMemFree_v2(address_t address) {
  COUNT();
  int device, code = current(&device);
  if (code) return code;
  pthread_mutex_lock(&lock);
  struct allocation *found = around(address);
  code = found && found->at == address ? SUCCESS : INVALID_VALUE;
  if (!code) {
    // Nothing takes its place, so that a later use is a fault.
    closed(found->view, found->len);
    close(found->file);
    found->len = 0;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

// Where the CPU finds device memory; null for what is not, or not to its end. A NIC's view, not a call of CUDA's.
void *standin_view(address_t address, size_t len) {
  pthread_mutex_lock(&lock);
  struct allocation *found = around(address);
  char *view = found && found->at + found->len - address >= len ? found->view + (address - found->at) : NULL;
  pthread_mutex_unlock(&lock);
  return view;
}

static int copy(address_t device, void *host, size_t len, int in) {
  int own, code = current(&own);
  if (code) return code;
  if (is("no-copies")) return UNKNOWN;
  if (is("new-codes")) return NEW_CODE;
  char *view = standin_view(device, len);
  if (!view) return INVALID_VALUE;
  if (own == 0 && is("first-copies") && standin_view(device - (1 << 20), 1)) return UNKNOWN;
  memcpy(in ? view : host, in ? host : view, len);
  return SUCCESS;
}

int cuMemcpyHtoD_v2(address_t to, const void *from, size_t len) {
  COUNT();
  return copy(to, (void *)(uintptr_t)from, len, 1);
}

int cuMemcpyDtoH_v2(void *to, address_t from, size_t len) {
  COUNT();
  return copy(from, to, len, 0);
}

int cuMemGetAddressRange_v2(address_t *base, size_t *len, address_t address) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  pthread_mutex_lock(&lock);
  struct allocation *found = around(address);
  if (found && base) *base = found->at;
  if (found && len) *len = found->len;
  pthread_mutex_unlock(&lock);
  return found ? SUCCESS : INVALID_VALUE;
}

// Of ranges that begin with their allocation only: the file of another would begin elsewhere.
int cuMemGetHandleForAddressRange(void *handle, address_t address, size_t len, int type, unsigned long long flags) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  if (is("no-dmabuf")) return NOT_SUPPORTED;
  if (type != 1 || flags || len == 0 || len % PAGE) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct allocation *found = around(address);
  int file = found && found->at == address && len <= found->len ? fcntl(found->file, F_DUPFD_CLOEXEC, 0) : -1;
  pthread_mutex_unlock(&lock);
  if (file < 0) return INVALID_VALUE;
  *(int *)handle = file;
  return SUCCESS;
}

// Every attribute of an address in no allocation is 0.
static int attribute(void *place, int name, address_t address) {
  pthread_mutex_lock(&lock);
  struct allocation *found = around(address), none = {0}, seen = found ? *found : none;
  pthread_mutex_unlock(&lock);
  switch (name) {
    case 2:  // MEMORY_TYPE: device
      *(unsigned *)place = found ? 2 : 0;
      return SUCCESS;
    case 3:  // DEVICE_POINTER
      *(address_t *)place = found ? address : 0;
      return SUCCESS;
    case 7:  // BUFFER_ID
      *(uint64_t *)place = is("no-ids") ? 0 : seen.id;
      return SUCCESS;
    case 8:  // IS_MANAGED
      *(unsigned *)place = found && is("managed");
      return SUCCESS;
    case 9:  // DEVICE_ORDINAL
      *(int *)place = seen.device;
      return SUCCESS;
    default:
      return INVALID_VALUE;
  }
}

int cuPointerGetAttribute(void *place, int name, address_t address) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  pthread_mutex_lock(&lock);
  int known = around(address) != NULL;
  pthread_mutex_unlock(&lock);
  return known ? attribute(place, name, address) : INVALID_VALUE;
}

int cuPointerGetAttributes(unsigned count, int *names, void **places, address_t address) {
  COUNT();
  if (ready()) return NOT_INITIALIZED;
  for (unsigned i = 0; i < count; i++) {
    int code = attribute(places[i], names[i], address);
    if (code) return code;
  }
  return SUCCESS;
}

int cuPointerSetAttribute(const void *value, int name, address_t address) {
  COUNT();
  (void)value;
  if (ready()) return NOT_INITIALIZED;
  pthread_mutex_lock(&lock);
  int known = around(address) != NULL;
  pthread_mutex_unlock(&lock);
  return known && name == 6 ? SUCCESS : INVALID_VALUE;  // SYNC_MEMOPS
}
