// A net plugin over TCP sockets on host memory that keeps NCCL's whole contract, grouped receives included, and can break it in one place
// on request: `ironrail conform` must detect each fault.
//
// REFERENCE_FAULT contains words separated by commas, some with a number: "corrupt,early,size=8185". The first one says what is broken, the
// others when. crates/cli/tests/conform/faults.rs lists the faults in use, with the behaviours that detect them.
//
//   fail-CALL, crash-CALL, nap-CALL=ms   the call is an error, dies, or sleeps first; with `after=n` from the n-th on; with `busy` if
//                                        the comm has requests; with `ended` if its peer is gone
//   corrupt                              a message is wrong, if it is as the words of `is_wrong` say
//   any other                            where it stands below, with the reason
//
// REFERENCE_DEVICES is the number of devices. With REFERENCE_GPU=1 the plugin also supports memory of the driver without a GPU
// (crates/gpu/tests/support/cuda.c), with REFERENCE_GPU=address only by address. Received bytes become visible there by a flush.
// REFERENCE_WARNS is a warning of init; with REFERENCE_MUTE errors have none.
// With REFERENCE_ONE_INIT a second init is an error up to v10: NCCL calls it once in a process.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { GROUP = 8, RECEIVES = 32, SENDS = RECEIVES * GROUP, AHEAD = 64, WAITING = 64, MAGIC = 0x5ef0ca11 };
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

// ---- state -----------------------------------------------------------------------------------------------------

struct part {
  char *data;
  size_t room, came;
  int tag, taken;
  struct region *region;  // of device memory
};

// Bytes received into device memory that are not visible yet.
struct unseen {
  struct unseen *next;
  struct region *region;
  char *data;  // where the user has it
  size_t size;
  char bytes[];
};

struct request {
  struct comm *comm;
  struct part parts[GROUP];
  int count, missing, live, sends;
  unsigned number, tests;
  int lost;
  uint64_t posted;
  // Of a flush: the regions, all or one.
  int flushes;
  struct region *flush;
  // Of a send: its bytes, and how many were sent.
  char *bytes, *own;
  size_t size, moved;
};

struct header {
  uint64_t size, sent;
  int32_t tag, magic;
};

struct message {
  struct message *next;
  struct header header;
  char body[];
};

struct comm {
  int fd, sends, failed, ended;
  struct request *requests;
  unsigned places, first, last, working;
  struct header header;  // of the message that moves now
  size_t header_moved, body_moved;
  struct message *body, *early, **early_end;
  unsigned early_count, messages;
  size_t moved;  // in this call
  struct unseen *unseen;
  struct comm *next;  // of all that are open
  struct listener *listener;
  unsigned age, regions, acknowledged, owes;
  int tag, tagged, thread, partial, stops_reading;
  uint64_t called, polled;
};

struct region {
  struct comm *comm;
  char *data;
  size_t size;
  // Of device memory: where the CPU finds it, and whether that is a mapping of the region's own.
  char *view;
  int device, mapped, descriptor;
};

struct listener {
  int fd, taken;
  uint64_t polled;
  int fds[WAITING];  // of connects that have not returned a comm yet
  unsigned waiting;
  void *handle;
};

struct handle {
  uint32_t magic;
  uint16_t port;
  int32_t fd, device, process;
  uint64_t address;
};

static logger_t logger;

// ---- faults --------------------------------------------------------------------------------------------------------

enum { ABSENT = -1, UNKNOWN = -2 };

// The number behind a word of REFERENCE_FAULT, 1 if it has none.
static long find(const char *word) {
  const char *at = getenv("REFERENCE_FAULT");
  for (size_t length = strlen(word); at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (!strncmp(at, word, length) && (!at[length] || strchr(",=", at[length])))
      return at[length] == '=' ? atol(at + length + 1) : 1;
  return ABSENT;
}

#define number_of(word)                          \
  __extension__({                                \
    static long known = UNKNOWN;                 \
    if (known == UNKNOWN) known = find(word);    \
    known;                                       \
  })
#define is(word) (number_of(word) != ABSENT)

static uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void nap(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

// At the start of a call.
#define AT(call, is_busy, has_ended)                                                                                   \
  do {                                                                                                                 \
    static atomic_long calls;                                                                                          \
    long so_far = atomic_fetch_add(&calls, 1);                                                                         \
    int now = so_far + 1 >= number_of("after") && (!is("busy") || (is_busy)) && (!is("ended") || (has_ended));         \
    if (now && is("nap-" call)) nap(number_of("nap-" call));                                                           \
    if (now && is("crash-" call)) __builtin_trap();                                                                    \
    if (now && is("fail-" call)) return fail(SYSTEM_ERROR, "reference: " call " is broken");                           \
  } while (0)

static int fail(int code, const char *why) {
  if (logger && !getenv("REFERENCE_MUTE")) logger(2, 0x10, "reference", 0, "%s", why);
  return code;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
// All open comms, and the numbers of comms and listeners.
static struct comm *comms;
static unsigned comm_count, listener_count, pending_connects, age;
// Errors that a failed comm or a finalized communicator spreads to all.
static int broken, dead;
// The number of threads in the plugin, for some faults, and the number in listen.
static atomic_int callers, listening;

static int is_busy(struct comm *comm) {
  for (unsigned number = comm->first; number != comm->last; number++)
    if (comm->requests[number % comm->places].live) return 1;
  return 0;
}

static struct comm *new_comm(int fd, int sends) {
  // The smallest kernel buffers, so that a large message is in flight for some time.
  int small = 1 << 14;
  if (is("stalls") || is("beside")) setsockopt(fd, SOL_SOCKET, sends ? SO_SNDBUF : SO_RCVBUF, &small, sizeof small);
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  struct comm *comm = calloc(1, sizeof *comm);
  comm->fd = fd;
  comm->sends = sends;
  comm->places = sends ? SENDS : RECEIVES;
  comm->requests = calloc(comm->places, sizeof *comm->requests);
  comm->early_end = &comm->early;
  comm->thread = (int)syscall(SYS_gettid);
  pthread_mutex_lock(&lock);
  comm->next = comms;
  comm->age = ++age;
  comms = comm;
  comm_count++;
  pthread_mutex_unlock(&lock);
  return comm;
}

static void *stay(void *nothing) {
  for (;;) nap(1);
  return nothing;
}

// What a destructor in a forked child does to its parent's connections.
static void hang_up(void) {
  for (struct comm *comm = comms; comm; comm = comm->next) shutdown(comm->fd, SHUT_RDWR);
}

extern const void *ncclNetPlugin_v6[], *ncclNetPlugin_v7[], *ncclNetPlugin_v8[], *ncclNetPlugin_v9[], *ncclNetPlugin_v10[],
    *ncclNetPlugin_v11[], *ncclNetPlugin_v12[];
#define TABLES \
  { ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11, ncclNetPlugin_v12 }

static void name_tables(const char *name) {
  const void **tables[] = TABLES;
  for (int i = 0; i < 7; i++) tables[i][0] = name;
}

// 4 KiB, or 64 KiB with some kernels of aarch64.
static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static int loaded_again;

__attribute__((constructor)) static void load(void) {
  loaded_again = getenv("REFERENCE_WAS_LOADED") != NULL;
  if (is("loads-once")) setenv("REFERENCE_WAS_LOADED", "1", 1);
  if (is("name-with-a-line")) name_tables("Refer\nence");
  if (is("another-name-in-v9")) ncclNetPlugin_v9[0] = "Reference9";
  if (is("no-dmabuf-call")) {
    const void **tables[] = TABLES;
    for (int i = 0; i < 7; i++) tables[i][8] = NULL;
  }
  if (is("table-in-code")) {
    uintptr_t page = (uintptr_t)ncclNetPlugin_v12 / page_bytes() * page_bytes();
    mprotect((void *)page, 2 * page_bytes(), PROT_READ | PROT_WRITE | PROT_EXEC);
  }
}

static int init_any(logger_t function) {
  logger = function;
  AT("init", 0, 0);
  if (loaded_again && is("loads-once")) return fail(SYSTEM_ERROR, "reference: loaded a second time");
  dead = 0;
  if (getenv("REFERENCE_PRINTS")) (void)!write(1, getenv("REFERENCE_PRINTS"), strlen(getenv("REFERENCE_PRINTS")));
  if (logger && getenv("REFERENCE_WARNS")) logger(2, 0x10, "reference", 0, "%s", getenv("REFERENCE_WARNS"));
  if (is("name-after-init")) name_tables("Reference2");
  if (is("thread-stays")) {
    pthread_t thread;
    pthread_create(&thread, NULL, stay, NULL);
    pthread_detach(thread);
  }
  static int hooked;
  if (is("fork-hangs-up") && !hooked++) pthread_atfork(NULL, NULL, hang_up);
  // Leaked: bytes of the heap, which are touched, or a mapping.
  if (is("keep-bytes")) memset(malloc((size_t)number_of("keep-bytes")), 1, (size_t)number_of("keep-bytes"));
  if (is("keep-mapping")) mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return OK;
}

static int devices(int *count) {
  static int asked;
  *count = getenv("REFERENCE_DEVICES") ? atoi(getenv("REFERENCE_DEVICES")) : is("one-name") || is("one-port") ? 2 : 1;
  if (is("devices-grow")) *count = ++asked;
  return OK;
}

// ---- connections -------------------------------------------------------------------------------------------------

static int listen_any(int device, void *opaque, void **out) {
  *out = NULL;
  AT("listen", 0, 0);
  if (dead) return fail(SYSTEM_ERROR, "reference: finalized");
  if (is("one-thread-listens") && atomic_fetch_add(&listening, 1)) return fail(SYSTEM_ERROR, "reference: two threads listen");
  if (is("one-thread-listens") || is("props-beside-listen")) {
    atomic_store(&listening, 1);
    nap(is("one-thread-listens") ? 20 : 1);
    atomic_store(&listening, 0);
  }
  int count;
  devices(&count);
  if (device < 0 || device >= count) return fail(INVALID_ARGUMENT, "reference: no such device");
  static int shared = -1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int fd = is("shared-listener") ? shared : -1;
  if (fd < 0) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (void *)&address, length) || listen(fd, 64)) return fail(SYSTEM_ERROR, "reference: listen");
    shared = fd;
  }
  if (getsockname(fd, (void *)&address, &length)) return fail(SYSTEM_ERROR, "reference: getsockname");
  struct handle *handle = opaque;
  *handle = (struct handle){.magic = MAGIC, .port = ntohs(address.sin_port), .fd = -1, .device = device, .process = getpid(),
                             .address = (uintptr_t)opaque};
  if (is("handle-overrun")) ((char *)opaque)[128] = 0;
  struct listener *listener = calloc(1, sizeof *listener);
  listener_count++;
  listener->fd = is("shared-listener") ? dup(fd) : fd;
  listener->handle = opaque;
  *out = listener;
  return OK;
}

static int connect_any(int device, void *opaque, void **out) {
  *out = NULL;
  struct handle *handle = opaque;
  // A lock that a connect holds until it is done, and that all other calls need.
  if (is("nap-under-lock")) {
    pthread_mutex_lock(&lock);
    nap(number_of("nap-under-lock"));
    pthread_mutex_unlock(&lock);
  }
  AT("connect", 0, 0);
  if (is("trust-handle") && handle->magic != MAGIC) return *(volatile char *)handle->address;
  if ((is("same-device-only") || is("two-planes")) && handle->device != device) return fail(INVALID_ARGUMENT, "reference: another device");
  if (is("not-to-oneself") && handle->process == getpid()) return fail(INVALID_ARGUMENT, "reference: oneself");
  if (is("comms") && comm_count >= number_of("comms")) return fail(SYSTEM_ERROR, "reference: too many comms");
  if (handle->magic != MAGIC) return fail(INVALID_ARGUMENT, "reference: not a handle of mine");
  if (is("wide-handle") && handle->address != (uintptr_t)opaque) return fail(INVALID_ARGUMENT, "reference: moved");
  if (handle->fd < 0) {
    if (is("one-connect") && pending_connects) return OK;
    pending_connects++;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(handle->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    handle->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connect(handle->fd, (void *)&address, sizeof address) && errno != EINPROGRESS)
      return fail(SYSTEM_ERROR, "reference: cannot connect");
    return OK;
  }
  struct pollfd poller = {.fd = handle->fd, .events = POLLOUT};
  if (poll(&poller, 1, 0) <= 0) return OK;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(handle->fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error) return fail(REMOTE_ERROR, "reference: the peer refused");
  if (is("block-in-connect")) {
    char hello;
    poller.events = POLLIN;
    poll(&poller, 1, -1);
    if (recv(handle->fd, &hello, 1, 0) != 1) return fail(REMOTE_ERROR, "reference: no hello");
  }
  char hello;
  if (is("accept-after-connects") && recv(handle->fd, &hello, 1, MSG_DONTWAIT) != 1) return OK;
  // accept waits for this: of several connects NCCL may keep the first that returns a comm, and poll no other again.
  if (!is("accept-at-once") && send(handle->fd, "c", 1, MSG_NOSIGNAL) != 1) return fail(REMOTE_ERROR, "reference: the peer has gone");
  pending_connects--;
  *out = new_comm(handle->fd, 1);
  return OK;
}

static int accept_any(void *opaque, void **out) {
  *out = NULL;
  struct listener *listener = opaque;
  AT("accept", 0, 0);
  if (is("comms") && comm_count >= number_of("comms")) return fail(SYSTEM_ERROR, "reference: too many comms");
  struct pollfd poller = {.fd = listener->fd, .events = POLLIN};
  if (is("accept-waits")) poll(&poller, 1, (int)number_of("accept-waits"));
  if (!listener->polled) listener->polled = now_ms();
  if (is("accept-gives-up") && now_ms() - listener->polled > 60) return fail(SYSTEM_ERROR, "reference: no peer connects");
  if (is("accept-after-connects") && pending_connects) return OK;
  if (is("listener-of-one") && listener->taken) return fail(SYSTEM_ERROR, "reference: it had its connection");
  if (is("accept-the-last")) nap(5);
  while (listener->waiting < WAITING) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && errno != EAGAIN && errno != EINTR) return fail(SYSTEM_ERROR, "reference: cannot accept");
    if (fd < 0) break;
    if ((is("block-in-connect") || is("accept-after-connects")) && send(fd, "h", 1, MSG_NOSIGNAL) != 1) return fail(REMOTE_ERROR, "reference: no hello");
    listener->fds[listener->waiting++] = fd;
  }
  // The first one whose connect has returned a comm, or the last one.
  int fd = -1;
  unsigned place = 0;
  char byte;
  for (unsigned at = 0; at < listener->waiting && (fd < 0 || is("accept-the-last")); at++) {
    ssize_t peeked = is("accept-at-once") ? 1 : recv(listener->fds[at], &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (peeked == 1) fd = listener->fds[place = at];
  }
  if (fd < 0) return OK;
  if (is("accept-the-last"))
    listener->waiting = 0;
  else
    memmove(listener->fds + place, listener->fds + place + 1, (--listener->waiting - place) * sizeof *listener->fds);
  if (!is("accept-at-once") && recv(fd, &byte, 1, 0) != 1) return fail(REMOTE_ERROR, "reference: no hello");
  listener->taken++;
  if (is("accept-writes-handle")) memset(listener->handle, 0, sizeof(struct handle));
  struct comm *comm = new_comm(fd, 0);
  comm->listener = listener;
  *out = comm;
  return OK;
}

static void show(struct comm *comm, struct region *only);
static void receive_now(struct comm *comm);

static int close_comm(void *opaque) {
  struct comm *comm = opaque;
  if (!comm) return is("close-needs-a-comm") ? fail(INVALID_ARGUMENT, "reference: no comm") : OK;
  if (comm->sends)
    AT("closeSend", is_busy(comm), comm->ended);
  else
    AT("closeRecv", is_busy(comm), comm->ended);
  char byte;
  // The peer's end must be closed already.
  if (comm->sends ? is("closeSend-last") : is("closeRecv-last")) {
    // A peer that closed before may not be heard of yet.
    struct pollfd poller = {.fd = comm->fd, .events = POLLIN};
    poll(&poller, 1, 100);
    ssize_t peeked;
    while ((peeked = recv(comm->fd, &byte, 1, MSG_DONTWAIT)) > 0) continue;
    if (peeked < 0 && errno == EAGAIN) return fail(SYSTEM_ERROR, "reference: the peer is still there");
  }
  if (is("abort-breaks-all") && is_busy(comm)) broken = REMOTE_ERROR;
  pthread_mutex_lock(&lock);
  unsigned newest = 0;
  for (struct comm *other = comms; other; other = other->next) newest = other->age > newest ? other->age : newest;
  for (struct comm **at = &comms; *at; at = &(*at)->next)
    if (*at == comm) {
      *at = comm->next;
      break;
    }
  comm_count--;
  pthread_mutex_unlock(&lock);
  if (is("close-newest-first") && comm->age + 1 < newest) return fail(SYSTEM_ERROR, "reference: others are open");
  if (is("show-at-close") && !comm->sends && is_busy(comm)) {
    // What the kernel has comes too.
    for (int tries = 0; !comm->unseen && tries < 1000; tries++) receive_now(comm), nap(1);
    show(comm, NULL);
  }
  struct linger abrupt = {1, 0};
  if (is("abrupt-close")) setsockopt(comm->fd, SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt);
  if (!is("leak")) close(comm->fd);
  for (struct message *next; comm->early; comm->early = next) {
    next = comm->early->next;
    free(comm->early);
  }
  for (struct unseen *next; comm->unseen; comm->unseen = next) {
    next = comm->unseen->next;
    free(comm->unseen);
  }
  for (unsigned place = 0; place < comm->places; place++) free(comm->requests[place].own);
  free(comm->body);
  free(comm->requests);
  free(comm);
  return OK;
}

static int close_listen(void *opaque) {
  struct listener *listener = opaque;
  while (is("hang")) pause();
  if (!listener) return OK;
  struct pollfd poller = {.fd = listener->fd, .events = POLLIN};
  if (is("die-of-the-unaccepted") && poll(&poller, 1, 0) > 0) __builtin_trap();
  for (struct comm *comm = comms; is("close-with-its-listener") && comm; comm = comm->next)
    if (comm->listener == listener) shutdown(comm->fd, SHUT_RDWR);
  listener_count--;
  for (unsigned at = 0; at < listener->waiting; at++) close(listener->fds[at]);
  close(listener->fd);
  free(listener);
  return OK;
}

// ---- memory ------------------------------------------------------------------------------------------------------

static int takes_gpu(void) { return getenv("REFERENCE_GPU") != NULL; }
static int takes_dmabuf(void) { return takes_gpu() && strcmp(getenv("REFERENCE_GPU"), "1") == 0; }

// The CPU's address of device memory: a real GPU has none.
static char *view_of(void *data, size_t size) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *(*view)(uint64_t, size_t) = NULL;
  if (driver) *(void **)&view = dlsym(driver, "standin_view");
  return view ? view((uintptr_t)data, size) : NULL;
}

// Registrations that are looked up by their address only.
static struct {
  void *data;
  char *view;
} old[4096];

static char *old_view(void *data, char *view) {
  for (unsigned i = 0; i < 4096; i++) {
    if (old[i].data == data) return old[i].view;
    if (!old[i].data) {
      old[i].data = data, old[i].view = view;
      return view;
    }
  }
  return view;
}

static int open_region(void *comm, void *data, size_t size, char *view, void **out) {
  struct region *region = malloc(sizeof *region);
  *region = (struct region){.comm = comm, .data = data, .size = size, .view = view, .device = view != NULL, .descriptor = -1};
  *out = region;
  return OK;
}

// How many registrations of device memory exist.
static int on_gpu;

// Faults of a region of host memory.
static int refuse_region(struct comm *comm, char *data, size_t size) {
  static struct {
    void *comm, *data;
    size_t size;
  } seen[65536];
  static unsigned count;
  AT("regMr", is_busy(comm), comm->ended);
  if (is("regMr-alone") && atomic_load(&callers)) return fail(SYSTEM_ERROR, "reference: another thread is here");
  if (is("regions") && comm->regions >= number_of("regions")) return fail(SYSTEM_ERROR, "reference: too many regions");
  if (is("region-bytes") && size > (size_t)number_of("region-bytes")) return fail(SYSTEM_ERROR, "reference: too large");
  if (is("whole-pages") && (uintptr_t)data % 4096) return fail(INVALID_ARGUMENT, "reference: not on a page");
  int known = is("a-range-once") ? 1 : is("no-overlap") ? 2 : is("one-owner") ? 3 : 0;
  for (unsigned i = 0; known && i < count && i < 65536; i++) {
    char *start = seen[i].data;
    int apart = start >= data + size || data >= start + seen[i].size, same = start == data && seen[i].size == size;
    if (known == 1 && same && seen[i].comm == comm) return fail(SYSTEM_ERROR, "reference: registered once before");
    if (known == 2 && !apart && !same && seen[i].comm == comm) return fail(SYSTEM_ERROR, "reference: ranges overlap");
    if (known == 3 && !apart && seen[i].comm != comm) return fail(SYSTEM_ERROR, "reference: it is another comm's");
  }
  if (known && count < 65536) seen[count].comm = comm, seen[count].data = data, seen[count++].size = size;
  comm->regions++;
  return OK;
}

static int register_any(void *comm, void *data, size_t size, int type, void **out) {
  *out = NULL;
  int refused = refuse_region(comm, data, size);
  if (refused) return refused;
  if (type == 1) return open_region(comm, data, size, NULL, out);
  if (is("assume-gpu") && type == 2) return *(volatile char *)data == 0x55 ? OK : fail(INVALID_ARGUMENT, "reference: no");
  if (type != 2 || !takes_gpu() || is("refuse-gpu")) return fail(INVALID_ARGUMENT, "reference: host memory only");
  char *view = view_of(data, size);
  if (!view) return fail(INVALID_ARGUMENT, "reference: that is no device memory");
  if (is("ranges-of-gpu") && (uintptr_t)data % 4096) return fail(INVALID_ARGUMENT, "reference: whole pages only");
  if (is("alone-on-gpu") && ++on_gpu > 2) return fail(INVALID_USAGE, "reference: registered already");
  if (is("old-view")) {
    // Like a NIC that keeps the pages: by a mapping of its own, since the driver's ends with the allocation.
    size_t before = (uintptr_t)view % page_bytes();
    char *own = mremap(view - before, 0, before + size, MREMAP_MAYMOVE);
    if (own != MAP_FAILED) view = old_view(data, own + before);
  }
  return open_region(comm, data, size, view, out);
}

static int register_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int descriptor, void **out) {
  *out = NULL;
  if (type != 2 || !takes_dmabuf()) return fail(INVALID_ARGUMENT, "reference: no descriptors");
  if (is("alone-on-gpu") && ++on_gpu > 2) return fail(INVALID_USAGE, "reference: registered already");
  size_t whole = offset + size;
  char *view = is("late-descriptor") ? data : mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (view == MAP_FAILED) return fail(SYSTEM_ERROR, "reference: the descriptor cannot be mapped");
  open_region(comm, data, size, view + offset, out);
  struct region *region = *out;
  if (is("late-descriptor"))
    region->descriptor = descriptor;
  else if (is("old-view"))
    region->view = old_view(data, view + offset);
  else
    region->mapped = 1;
  return OK;
}

// The CPU's address of the user's `data`. Null if there is none.
static char *place_in(struct region *region, char *data) {
  if (!region->device) return data;
  if (region->descriptor >= 0) {
    char *view = mmap(NULL, region->size, PROT_READ | PROT_WRITE, MAP_SHARED, region->descriptor, 0);
    if (view == MAP_FAILED) return NULL;
    region->view = view;
    region->descriptor = -1;
  }
  return region->view + (data - region->data);
}

static int register_v6(void *comm, void *data, int size, int type, void **out) {
  return register_any(comm, data, (size_t)size, type, out);
}

// A NIC that continues to write, for longer than any pause of the thread that looks.
static void *write_later(void *data) {
  for (int time = 0; time < 50; time++) nap(20), memset(data, 0x55, 8);
  return NULL;
}

static int deregister(void *opaque, void *closed) {
  struct comm *comm = opaque;
  struct region *region = closed;
  AT("deregMr", is_busy(comm), comm->ended);
  if (!region) return is("deregMr-needs-a-region") ? fail(INVALID_ARGUMENT, "reference: no region") : OK;
  if (is("deregMr-errs") && is_busy(comm)) return fail(REMOTE_ERROR, "reference: the peer may still use it");
  comm->regions--;
  if (is("write-after-deregMr") && !comm->sends && !region->device) {
    pthread_t thread;
    pthread_create(&thread, NULL, write_later, region->data);
    pthread_detach(thread);
  }
  if (is("show-at-close")) return OK;
  for (struct unseen **at = &comm->unseen; *at;) {
    struct unseen *unseen = *at;
    if (unseen->region != region) {
      at = &unseen->next;
      continue;
    }
    *at = unseen->next;
    free(unseen);
  }
  // Requests that wait to be sent from it or received there are dropped.
  for (unsigned number = comm->first; region->device && number != comm->last; number++)
    comm->failed = comm->requests[number % comm->places].live ? REMOTE_ERROR : comm->failed;
  if (region->device) on_gpu--;
  if (region->mapped) munmap(region->view, region->size);
  free(region);
  return OK;
}

static int inside(struct comm *comm, void *data, size_t size, struct region *region) {
  char *start = data;
  return region && region->comm == comm && start >= region->data && start + size <= region->data + region->size;
}

// ---- data --------------------------------------------------------------------------------------------------------

static struct request *new_request(struct comm *comm) {
  while (comm->first != comm->last && !comm->requests[comm->first % comm->places].live) comm->first++;
  if (comm->last - comm->first >= comm->places) return NULL;
  if (is("outstanding") && comm->last - comm->first >= (unsigned long)number_of("outstanding")) return NULL;
  struct request *request = &comm->requests[comm->last % comm->places];
  free(request->own);
  *request = (struct request){.comm = comm, .live = 1, .sends = comm->sends, .number = comm->last++, .posted = now_ms()};
  return request;
}

// Moves some bytes. Negative: an error; 0: not now.
static ssize_t move(struct comm *comm, void *data, size_t size) {
  if (!comm->sends && is("abrupt-close")) {
    if (comm->moved >= 1024) return 0;
    if (size > 1024 - comm->moved) size = 1024 - comm->moved;
  }
  ssize_t moved = comm->sends ? send(comm->fd, data, size, MSG_NOSIGNAL) : recv(comm->fd, data, size, 0);
  if (moved > 0) {
    comm->moved += (size_t)moved;
    return moved;
  }
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  comm->ended = 1;
  return -1;
}

static int same_tag(int one, int other) {
  if (is("ignore-tags")) return 1;
  if (is("tags-without-sign")) return abs(one) == abs(other);
  return is("cut-tags") ? (int16_t)one == (int16_t)other : one == other;
}

// The n-th message of a tag belongs to the n-th receive with that tag.
static struct part *place_of(struct comm *comm, int tag, struct request **whose, int early) {
  int skip = is("reorder") && comm->messages % 7 == 3;
  // Single receives before groups.
  int pass = is("singles-first") ? 0 : 1;
  for (; pass < 2; pass++) {
    for (unsigned number = comm->first; number != comm->last; number++) {
      struct request *request = &comm->requests[number % comm->places];
      if (!pass && request->count != 1) continue;
      for (int i = 0; request->live && i < request->count; i++) {
        struct part *part = &request->parts[is("last-place-first") ? request->count - 1 - i : i];
        if (part->taken || !same_tag(part->tag, tag)) continue;
        *whose = request;
        if (skip && number + 1 != comm->last) {
          skip = 0;
          continue;
        }
        return part;
      }
      if (is("first-group-only") && request->live && request->missing && (early || !is("early"))) {
        comm->failed = fail(INVALID_USAGE, "reference: the first group has no such tag");
        return NULL;
      }
    }
  }
  return NULL;
}

// Whether a message is to be corrupted: all conditions must hold.
static int is_wrong(struct comm *comm, struct request *request, struct part *part, size_t size, uint64_t sent, int beside) {
  if (!is("corrupt")) return 0;
  struct request *before = &comm->requests[(request->number - 1) % comm->places];
  size_t count = (size_t)request->count, at = (size_t)(part - request->parts);
  return (!is("size") || size == (size_t)number_of("size")) && (!is("from") || size >= (size_t)number_of("from")) &&
         (!is("to") || size <= (size_t)number_of("to")) && (!is("room") || part->room == (size_t)number_of("room")) &&
         (!is("exact") || part->room == size) && (!is("early") || sent + 5 < request->posted) && (!is("beside") || beside) &&
         (!is("count") || count == (size_t)number_of("count")) && (!is("group") || count > 1) &&
         (!is("place") || at == (size_t)number_of("place")) && (!is("odd") || (uintptr_t)part->data % 2) &&
         (!is("queued") || comm->early_count >= number_of("queued")) &&
         (!is("after-a-group-of") || (request->number && before->count == number_of("after-a-group-of")));
}

// Copies like a provider without ordering: words of `step` bytes, the last one first, slowly enough to be seen.
static void copy_backwards(char *to, const char *from, size_t size, size_t step) {
  for (size_t at = size; at;) {
    size_t part = at % step ? at % step : step;
    at -= part;
    memcpy(to + at, from + at, part);
    atomic_thread_fence(memory_order_seq_cst);
    // The flag is visible, its data is not.
    if (size <= (step == 4 ? 480 : 4096) && (step == 4 ? at % 8 == 4 : at % 128 == 120)) nap(1);
  }
}

// False: there is no receive for it yet.
static int deliver(struct comm *comm, struct message *message, int early) {
  struct request *request = NULL;
  // A message that is too old is dropped.
  if (is("forgets-after") && now_ms() - message->header.sent > (uint64_t)number_of("forgets-after")) return 1;
  struct part *part = place_of(comm, message->header.tag, &request, early);
  if (!part) return comm->failed != 0;
  size_t size = message->header.size;
  int beside = 0;
  for (struct comm *other = is("beside") ? comms : NULL; other; other = other->next) beside += other != comm && other->partial;
  if (size > part->room && !is("overflow")) {
    if (is("refuse-at-the-sender")) {
      shutdown(comm->fd, SHUT_RDWR);
      comm->stops_reading = 1;
      return 1;
    }
    if (!is("truncate")) {
      comm->failed = fail(INVALID_USAGE, "reference: a message longer than its receive");
      // The sender gets the error too.
      if (!is("refuse-in-silence")) shutdown(comm->fd, SHUT_RDWR);
      return 1;
    }
    size = part->room;
  }
  if (part->region) {
    if (!place_in(part->region, part->data)) {
      comm->failed = fail(SYSTEM_ERROR, "reference: the descriptor is closed");
      return 1;
    }
    struct unseen *unseen = malloc(sizeof *unseen + size), **at = &comm->unseen;
    *unseen = (struct unseen){.region = part->region, .data = part->data, .size = size};
    memcpy(unseen->bytes, message->body, size);
    while (*at) at = &(*at)->next;
    *at = unseen;
  } else if (is("words-backwards") || is("lines-backwards")) {
    copy_backwards(part->data, message->body, size, is("words-backwards") ? 4 : 8);
  } else {
    memcpy(part->data, message->body, size);
  }
  part->came = size;
  if (is_wrong(comm, request, part, size, message->header.sent, beside)) {
    if (size && !part->region) part->data[size / 2] ^= 1;
    if (!size) part->came = 7;
  }
  if (is("pad") && size % 8 && part->room >= size / 8 * 8 + 8) part->data[size / 8 * 8 + 7] = 0;
  if (is("spill") && !part->region) part->data[part->room] = 0;
  part->taken = 1;
  if (is("forget-the-untested") && size >= (size_t)number_of("forget-the-untested") && !request->tests) request->lost = 1;
  request->missing--;
  comm->messages++;
  return 1;
}

static void receive_now(struct comm *comm) {
  if (comm->stops_reading) return;
  // Early messages come first, in order; one without a receive does not block the others.
  for (struct message **at = &comm->early; *at && !comm->failed;) {
    struct message *message = *at;
    if (!deliver(comm, message, 1)) {
      at = &message->next;
      continue;
    }
    *at = message->next;
    if (!*at) comm->early_end = at;
    comm->early_count--;
    free(message);
  }
  while (!comm->failed && !comm->ended && !comm->stops_reading && comm->early_count < AHEAD) {
    while (comm->header_moved < sizeof comm->header) {
      ssize_t moved = move(comm, (char *)&comm->header + comm->header_moved, sizeof comm->header - comm->header_moved);
      if (moved <= 0) return;
      comm->header_moved += (size_t)moved;
    }
    if (!comm->body) {
      comm->body = malloc(sizeof *comm->body + comm->header.size);
      comm->body->next = NULL;
      comm->body->header = comm->header;
      comm->body_moved = 0;
    }
    while (comm->body_moved < comm->header.size) {
      ssize_t moved = move(comm, comm->body->body + comm->body_moved, comm->header.size - comm->body_moved);
      if (moved <= 0) return;
      comm->body_moved += (size_t)moved;
    }
    struct message *message = comm->body;
    comm->body = NULL;
    comm->header_moved = 0;
    if (deliver(comm, message, 0)) {
      free(message);
      continue;
    }
    struct message **at = comm->early_end;
    // A short message overtakes a long one that waits.
    for (at = is("short-overtakes") && message->header.size < 65536 ? &comm->early : at; *at; at = &(*at)->next)
      if ((*at)->header.size >= 65536) break;
    message->next = *at;
    *at = message;
    if (!message->next) comm->early_end = &message->next;
    comm->early_count++;
  }
}

static void receive(struct comm *comm) {
  // A receiver's acknowledgement, which is sent when the plugin is called the next time.
  if (is("late-acknowledgement") && comm->owes) {
    char words[256] = {0};
    ssize_t said = send(comm->fd, words, comm->owes < 256 ? comm->owes : 256, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (said > 0) comm->owes -= (unsigned)said;
  }
  if (is("stalls") && comm->partial && now_ms() - comm->polled > 15)
    comm->failed = fail(REMOTE_ERROR, "reference: a message has stalled");
  comm->polled = now_ms();
  receive_now(comm);
  // What overtakes and what is overtaken come together.
  struct pollfd poller = {.fd = comm->fd, .events = POLLIN};
  while (is("short-overtakes") && comm->header_moved && poll(&poller, 1, 5) > 0 && !comm->ended && !comm->failed) receive_now(comm);
  comm->partial = comm->body != NULL;
}

static void push(struct comm *comm) {
  // A send is done when the receiver has acknowledged it.
  char words[256];
  ssize_t said = is("late-acknowledgement") ? recv(comm->fd, words, sizeof words, MSG_DONTWAIT) : 0;
  for (; said > 0; said--) comm->requests[comm->acknowledged++ % comm->places].missing = 0;
  while (!comm->ended && comm->working != comm->last) {
    struct request *request = &comm->requests[comm->working % comm->places];
    // Reported as done, it waits for the next one.
    if (is("lose-last") && comm->working + 1 == comm->last) return;
    if (is("keep-buffer") && comm->working + 2 > comm->last) return;
    // Short messages are sent in pairs.
    if (is("one-waits") && request->size <= 5000 && !(comm->working % 2) && comm->working + 1 == comm->last) return;
    size_t whole = sizeof(struct header) + request->size;
    while (request->moved < whole) {
      char *from = request->bytes + request->moved - sizeof(struct header);
      size_t size = whole - request->moved;
      struct header header = {request->size, request->posted, request->parts[0].tag, MAGIC};
      if (request->moved < sizeof header) {
        from = (char *)&header + request->moved;
        size = sizeof header - request->moved;
      }
      ssize_t moved = move(comm, from, size);
      if (moved <= 0) return;
      request->moved += (size_t)moved;
    }
    if (!is("late-acknowledgement")) request->missing = 0;
    if (is("forget-the-untested") && request->size >= (size_t)number_of("forget-the-untested") && !request->tests)
      request->lost = 1;
    comm->working++;
  }
}

static int progress_now(struct comm *comm) {
  if (comm->failed) return comm->failed;
  if (broken) return fail(broken, "reference: another comm has failed");
  uint64_t since = comm->called;
  comm->called = now_ms();
  if (is("idle") && since && comm->called - since > (uint64_t)number_of("idle"))
    return comm->failed = fail(REMOTE_ERROR, "reference: the peer is silent");
  comm->moved = 0;
  if (comm->sends)
    push(comm);
  else
    receive(comm);
  if (comm->ended && is("death-breaks-all")) broken = REMOTE_ERROR;
  if (comm->ended && is("die-with-the-peer") && is_busy(comm)) __builtin_trap();
  if (comm->sends && comm->ended && !is("ignore-death")) return fail(REMOTE_ERROR, "reference: the peer is gone");
  return comm->failed;
}

static int progress(struct comm *comm) {
  if (!is("one-thread") && !is("regMr-alone")) return progress_now(comm);
  int others = atomic_fetch_add(&callers, 1);
  usleep(30);
  int code = others && is("one-thread") ? fail(SYSTEM_ERROR, "reference: two threads are here") : progress_now(comm);
  atomic_fetch_sub(&callers, 1);
  return code;
}

// Faults of a call that posts.
static int refuse_post(struct comm *comm, size_t size) {
  if (comm->sends)
    AT("isend", is_busy(comm), comm->ended);
  else
    AT("irecv", is_busy(comm), comm->ended);
  if (is("bytes-at-most") && size > (size_t)number_of("bytes-at-most")) return fail(INVALID_USAGE, "reference: too many bytes");
  if (is("thread-of-its-own") && comm->thread != (int)syscall(SYS_gettid))
    return fail(INVALID_USAGE, "reference: another thread's comm");
  return OK;
}

static int is_oldest(const struct request *request) {
  const struct comm *comm = request->comm;
  for (unsigned number = comm->first; number != request->number; number++)
    if (comm->requests[number % comm->places].live) return 0;
  return 1;
}

static int isend_any(void *opaque, void *data, size_t size, int tag, struct region *region, void **out) {
  struct comm *comm = opaque;
  static unsigned tried;
  if (is("stale-request") && ++tried % 3 == 0) return OK;
  *out = NULL;
  int refused = refuse_post(comm, size);
  if (refused) return refused;
  if (is("tags-below") && tag >= number_of("tags-below")) return fail(INVALID_ARGUMENT, "reference: too large a tag");
  if (is("tags-from-zero") && tag < 0) return fail(INVALID_ARGUMENT, "reference: a tag below zero");
  if (is("one-tag") && comm->tagged++ && tag != comm->tag) return fail(INVALID_ARGUMENT, "reference: another tag");
  comm->tag = tag;
  if (!is("false-global") && !inside(comm, data, size, region))
    return fail(INVALID_ARGUMENT, "reference: isend outside its region");
  if (is("false-global") && region->comm != comm) return fail(INVALID_ARGUMENT, "reference: a region of another comm");
  struct request *request = new_request(comm);
  if (!request) return progress(comm);
  request->missing = 1;
  request->bytes = is("copy-gpu") && size <= 64 ? data : place_in(region, data);
  if (!request->bytes) return fail(SYSTEM_ERROR, "reference: the descriptor is closed");
  request->size = size;
  request->parts[0].tag = tag;
  if (is("lose-last")) {
    request->own = malloc(size + 1);
    request->bytes = memcpy(request->own, data, size);
    request->missing = 0;
  }
  if (is("keep-buffer")) request->missing = 0;
  *out = request;
  int code = progress(comm);
  return is("errs-at-the-oldest") ? OK : code;
}

static int irecv_any(void *opaque, int n, void **data, size_t *sizes, int *tags, void **regions, void **out) {
  struct comm *comm = opaque;
  int optional = *out == (void *)1;
  if (!(is("leave-one") && optional)) *out = NULL;
  int refused = refuse_post(comm, n > 0 && n <= GROUP ? sizes[0] : 0);
  if (refused) return refused;
  // Reads the sizes as an array of int.
  size_t halves[GROUP];
  for (int i = 0; is("sizes-as-int") && i < n && i < GROUP; i++) halves[i] = (size_t)((int *)sizes)[i];
  if (is("sizes-as-int")) sizes = halves;
  size_t waiting = 0;
  for (unsigned number = comm->first; is("room-at-most") && number != comm->last; number++)
    waiting += comm->requests[number % comm->places].parts[0].room;
  if (is("room-at-most") && waiting >= (size_t)number_of("room-at-most")) return progress(comm);
  if (n < 1 || n > GROUP) return fail(INVALID_ARGUMENT, "reference: a group of too many");
  for (int i = 0; i < n; i++)
    if (!inside(comm, data[i], sizes[i], regions[i])) return fail(INVALID_ARGUMENT, "reference: irecv outside its region");
  struct request *request = new_request(comm);
  if (!request) return progress(comm);
  request->count = request->missing = n;
  for (int i = 0; i < n; i++) {
    struct region *region = regions[i];
    struct region *device = region->device ? region : NULL;
    request->parts[i] = (struct part){.data = data[i], .room = sizes[i], .tag = tags[i], .region = device};
  }
  if (!(is("leave-one") && optional)) *out = request;
  return progress(comm);
}

static int irecv_int(void *comm, int n, void **data, int *sizes, int *tags, void **regions, void **out) {
  size_t wide[GROUP];
  for (int i = 0; i < n && i < GROUP; i++) wide[i] = is("sizes-as-size_t") ? ((size_t *)sizes)[i] : (size_t)sizes[i];
  return irecv_any(comm, n, data, wide, tags, regions, out);
}

// Makes received bytes visible: of all regions or one; all bytes, or those before the last flush.
static void show(struct comm *comm, struct region *only) {
  for (struct unseen **at = &comm->unseen; *at;) {
    struct unseen *unseen = *at;
    if (only && unseen->region != only) {
      at = &unseen->next;
      continue;
    }
    memcpy(place_in(unseen->region, unseen->data), unseen->bytes, unseen->size);
    *at = unseen->next;
    free(unseen);
  }
}

static int iflush(void *opaque, int n, void **data, int *sizes, void **regions, void **out) {
  (void)n, (void)data, (void)sizes;
  struct comm *comm = opaque;
  AT("iflush", 0, 0);
  *out = NULL;
  if (!takes_gpu() || is("no-flush")) return OK;
  struct request *request = new_request(comm);
  if (!request) return fail(SYSTEM_ERROR, "reference: too many requests");
  request->count = 0;
  request->missing = 0;
  request->flush = is("flush-first") ? regions[0] : NULL;
  request->flushes = 1;
  *out = request;
  return OK;
}

static char *again;

static int test(void *opaque, int *done, int *sizes) {
  struct request *request = opaque;
  struct comm *comm = request->comm;
  if (!is("done-unwritten")) *done = 0;
  if (!request->live) return fail(INVALID_ARGUMENT, "reference: a dead request was tested");
  request->tests++;
  if (request->lost) return fail(SYSTEM_ERROR, "reference: it was over before it was tested");
  if (is("oldest-only") && !is_oldest(request)) return fail(INVALID_USAGE, "reference: not the oldest");
  if (is("tests-at-most") && !request->sends && request->tests > number_of("tests-at-most"))
    return fail(SYSTEM_ERROR, "reference: it takes too long");
  if (is("waits-at-most") && request->missing && now_ms() - request->posted > (uint64_t)number_of("waits-at-most"))
    return fail(SYSTEM_ERROR, "reference: it takes too long");
  int code = progress(comm);
  // A send that waits for one before it has no error of its own.
  if (code && is("errs-at-the-oldest") && request->sends && !is_oldest(request)) return OK;
  if (code) return code;
  if (again) *again = 0x55, again = NULL;
  if (comm->ended && !request->sends && is("done-at-death")) request->missing = 0;
  if (request->flushes && !is("flush-early")) show(comm, request->flush);
  if (request->missing == 0) {
    *done = 1;
    if (is("need-sizes") || sizes) {
      if (request->sends) sizes[0] = (int)request->size;
      if (request->sends && is("second-size")) sizes[1] = 0;
      for (int i = 0; i < request->count; i++)
        if (!is("no-size-of-the-empty") || request->count == 1 || request->parts[i].came) sizes[i] = (int)request->parts[i].came + is("size-off-by-one");
    }
    if (is("write-again") && !request->sends && request->parts[0].came > 20000) again = request->parts[0].data;
    request->live = 0;
    comm->owes++;
    return OK;
  }
  if (comm->ended && !is("ignore-death")) return fail(REMOTE_ERROR, "reference: the peer is gone");
  return OK;
}

// ---- properties ---------------------------------------------------------------------------------------------------

struct props6 {
  const char *name, *pci_path;
  uint64_t guid;
  int ptr_support, speed, port;
  float latency;
  int max_comms, max_recvs;
};
struct props7 {
  struct props6 v6;
  int device_type, device_version;
};
struct props8 {
  const char *name, *pci_path;
  uint64_t guid;
  int ptr_support, reg_is_global, speed, port;
  float latency;
  int max_comms, max_recvs, device_type, device_version;
};
#define PROPS9(devices_max)                                                          \
  const char *name, *pci_path;                                                       \
  uint64_t guid;                                                                     \
  int ptr_support, reg_is_global, force_flush, speed, port;                          \
  float latency;                                                                     \
  int max_comms, max_recvs, device_type, device_version, ndevs, devs[devices_max];   \
  size_t max_p2p_bytes, max_coll_bytes
struct props9 {
  PROPS9(4);
};
struct props11 {
  PROPS9(4);
  int max_multi_request_size;
};
struct props12 {
  PROPS9(8);
  int max_multi_request_size;
  int16_t rail_id, plane_id;
};
_Static_assert(sizeof(struct props6) == 48 && sizeof(struct props7) == 56 && sizeof(struct props8) == 64, "size");
_Static_assert(sizeof(struct props9) == 104 && sizeof(struct props11) == 112 && sizeof(struct props12) == 128, "size");

// The value of a field that is to be wrong.
#define WRONG(field, right) (is("props-" field) ? (int)number_of("props-" field) : (right))
static char *device_name(int device) {
  static char names[8][8];
  snprintf(names[device & 7], sizeof names[0], "ref%d", is("one-name") ? 0 : device & 7);
  return names[device & 7];
}
static int changes(void) {
  static int calls;
  return is("props-change") ? calls++ : is("props-beside-listen") ? atomic_load(&listening) : 0;
}
static const char *path(void) { return is("props-path") ? "/sys/class/net/lo" : NULL; }

#define COMMON(p)                                                                                           \
  (p)->name = device_name(device), (p)->pci_path = path(), (p)->guid = 7,                                   \
  (p)->speed = WRONG("speed", 25000 + changes()),                                                           \
  (p)->ptr_support = WRONG("ptrSupport", 1 | 2 * takes_gpu() | 4 * takes_dmabuf()),                         \
  (p)->port = is("one-port") ? 1 : 1 + device, (p)->max_comms = WRONG("maxComms", 1024), (p)->max_recvs = 1; \
  if (!is("unwritten-property")) (p)->latency = 12
#define DEVICE(p) (p)->device_type = WRONG("netDeviceType", 0), (p)->device_version = 0
#define COMMON9(p)                                                                                          \
  COMMON(p);                                                                                                \
  DEVICE(p), (p)->reg_is_global = WRONG("regIsGlobal", is("false-global")),                                 \
  (p)->force_flush = WRONG("forceFlush", 0), (p)->ndevs = 1, (p)->devs[0] = WRONG("vProps", device),        \
  (p)->max_p2p_bytes = (size_t)WRONG("maxP2pBytes", 1 << 30), (p)->max_coll_bytes = (size_t)WRONG("maxCollBytes", 1 << 29),                \
  (p)->max_recvs = WRONG("maxRecvs", GROUP)

static int props_v6(int device, struct props6 *p) {
  COMMON(p);
  return OK;
}
static int props_v7(int device, struct props7 *p) {
  COMMON(&p->v6);
  DEVICE(p);
  return OK;
}
static int props_v8(int device, struct props8 *p) {
  COMMON(p);
  DEVICE(p), p->reg_is_global = is("false-global");
  return OK;
}
static int props_v9(int device, struct props9 *p) {
  COMMON9(p);
  return OK;
}
static int props_v11(int device, struct props11 *p) {
  COMMON9(p);
  if (!is("unwritten-property")) p->max_multi_request_size = 1;
  return OK;
}
static int props_v12(int device, struct props12 *p) {
  COMMON9(p);
  if (!is("unwritten-property")) p->max_multi_request_size = 1;
  p->rail_id = (int16_t)WRONG("railId", -1), p->plane_id = is("no-plane") ? -1 : is("two-planes") ? (int16_t)device : 0;
  return OK;
}

// ---- the forms that changed -----------------------------------------------------------------------------------------

static int init_v6(logger_t l) {
  static atomic_int inits;
  if (atomic_fetch_add(&inits, 1) && getenv("REFERENCE_ONE_INIT")) return fail(INVALID_USAGE, "reference: a second init");
  return init_any(l);
}
static int init_v10(logger_t l, void *profiler) {
  (void)profiler;
  return init_v6(l);
}
struct context {
  int fd;
};
static int init_v11(void **out, uint64_t communicator, int *config, logger_t l, void *profiler) {
  (void)communicator, (void)config, (void)profiler;
  struct context *context = malloc(sizeof *context);
  context->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  *out = context;
  return init_any(l);
}
static int finalize(void *opaque) {
  struct context *context = opaque;
  AT("finalize", comm_count, 0);
  if (getenv("REFERENCE_PRINTS")) (void)!write(1, "no end of a line", 16);
  if (is("finalize-without-listeners") && listener_count) return fail(SYSTEM_ERROR, "reference: a listener is open");
  if (is("finalize-without-connects") && pending_connects) return fail(SYSTEM_ERROR, "reference: a connect is pending");
  for (struct comm *comm = comms; is("finalize-without-requests") && comm; comm = comm->next)
    if (is_busy(comm)) return fail(SYSTEM_ERROR, "reference: requests are outstanding");
  if (is("finalize-all")) dead = 1;
  for (int device = 0; is("finalize-takes-names") && device < 8; device++) memset(device_name(device), 'x', 4);
  if (!is("finalize-leak")) close(context->fd);
  free(context);
  return OK;
}
static int set_net_attr(void *context, void *attributes) {
  (void)context;
  // All fields but its address are hints, and may be undefined.
  static char *volatile peers;
  if (is("hints-are-counts")) peers = malloc((size_t)((int *)attributes)[1] * 64), memset(peers, 1, 64);
  (void)attributes;
  return OK;
}
static int listen_v11(void *context, int device, void *handle, void **out) {
  return context ? listen_any(device, handle, out) : INVALID_ARGUMENT;
}
// The device handle has no memory if its address is null.
static void place_device(void **device_comm) {
  if (is("device-handle-always")) *device_comm = NULL;
}
static int connect_v7(int device, void *handle, void **out, void **device_comm) {
  place_device(device_comm);
  return connect_any(device, handle, out);
}
static int connect_v10(int device, int *config, void *handle, void **out, void **device_comm) {
  (void)config;
  place_device(device_comm);
  return connect_any(device, handle, out);
}
static int connect_v11(void *context, int device, void *handle, void **out, void **device_comm) {
  place_device(device_comm);
  return context ? connect_any(device, handle, out) : INVALID_ARGUMENT;
}
static int accept_v7(void *listener, void **out, void **device_comm) {
  place_device(device_comm);
  return accept_any(listener, out);
}
static int isend_v6(void *comm, void *data, int size, int tag, void *region, void **out) {
  return isend_any(comm, data, (size_t)size, tag, region, out);
}
static int isend_v9(void *comm, void *data, size_t size, int tag, void *region, void **out) {
  return isend_any(comm, data, size, tag, region, out);
}
static int isend_v10(void *comm, void *data, size_t size, int tag, void *region, void *parent, void **out) {
  (void)parent;
  return isend_any(comm, data, size, tag, region, out);
}
static int irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **out) {
  return irecv_any(comm, n, data, sizes, tags, regions, out);
}
static int irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **parents,
                     void **out) {
  if (is("parents-always") && *(void *volatile *)parents) return INVALID_ARGUMENT;
  return irecv_any(comm, n, data, sizes, tags, regions, out);
}

// ---- the tables: a name, then pointers in NCCL's order -------------------------------------------------------------------

#define TABLE(version, count) const void *ncclNetPlugin_v##version[count]
#ifdef UNRESOLVED
// A function that no library has: lazy binding fails when it is called.
void function_of_no_library(void);
void call_it(void);
void call_it(void) { function_of_no_library(); }
#endif

#define DATA(isend, irecv) isend, irecv, iflush, test, close_comm, close_comm, close_listen

TABLE(6, 17) = {"Reference", init_v6, devices, props_v6, listen_any, connect_any, accept_any,
                register_v6, register_dmabuf, deregister, DATA(isend_v6, irecv_int)};
TABLE(7, 19) = {"Reference", init_v6, devices, props_v7, listen_any, connect_v7, accept_v7,
                register_v6, register_dmabuf, deregister, DATA(isend_v6, irecv_int), NULL, NULL};
TABLE(8, 19) = {"Reference", init_v6, devices, props_v8, listen_any, connect_v7, accept_v7,
                register_any, register_dmabuf, deregister, DATA(isend_v6, irecv_int), NULL, NULL};
TABLE(9, 20) = {"Reference", init_v6, devices, props_v9, listen_any, connect_v7, accept_v7,
                register_any, register_dmabuf, deregister, DATA(isend_v9, irecv_v9), NULL, NULL, NULL};
TABLE(10, 20) = {"Reference", init_v10, devices, props_v9, listen_any, connect_v10, accept_v7,
                 register_any, register_dmabuf, deregister, DATA(isend_v10, irecv_v10), NULL, NULL, NULL};
TABLE(11, 22) = {"Reference", init_v11, devices, props_v11, listen_v11, connect_v11, accept_v7,
                 register_any, register_dmabuf, deregister, DATA(isend_v10, irecv_v10), NULL, NULL, NULL,
                 finalize, set_net_attr};
TABLE(12, 22) = {"Reference", init_v11, devices, props_v12, listen_v11, connect_v11, accept_v7,
                 register_any, register_dmabuf, deregister, DATA(isend_v10, irecv_v10), NULL, NULL, NULL,
                 finalize, set_net_attr};
