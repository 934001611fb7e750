// A net plugin over TCP sockets on host memory, for tests: all seven tables, and faults on request.
//
// It keeps NCCL's contract strictly, and refuses what breaks it: memory outside its region, a request that is tested
// before an older one of its connection, more than 32 requests. Its layouts are declared here a second time, so
// that a mistake in the loader's is detected.
//
// Faults, by environment variable:
//   LOOPBACK_CORRUPT=n      flips a bit in every n-th message that is received, of those longer than a header: a header that is
//                           damaged is a message that never comes
//   LOOPBACK_REFUSE=n       every n-th isend and irecv returns "not now"
//   LOOPBACK_STALL=n        from the n-th isend on, no message is accepted
//   LOOPBACK_ERROR=n        the n-th isend returns ncclSystemError
//   LOOPBACK_DIE=n:path     the first process to make its n-th isend makes the file and dies of SIGKILL
//   LOOPBACK_FORGET=1       isend leaves *request as it was
//   LOOPBACK_DEAF=1         accept never finds a peer
//   LOOPBACK_DEAD=device    this device neither connects nor accepts
// Built with -DKEEPS_WHAT_CAME, what has come is received though a later receive has failed. Otherwise that fails earlier ones, too.
// Built with -DPINS, regMr takes as long as that of a NIC whose driver pins pages, or longer.
// And by the handle that listen has written: its byte 12, if a test sets it, is how many attempts to connect return ncclSystemError; with
// its byte 13 set, deregMr on the sending comm returns ncclRemoteError, as if the peer might still use the memory; with its byte 16 set,
// connect never ends; with its byte 17 set, test says of each send that half of it was sent, as if it were truncated to its receive.
// Devices, of which there is one by default:
//   LOOPBACK_DEVICES=n      so many
//   LOOPBACK_PLANES=a,b     the plane of each (v12). Devices of different planes cannot connect
// These are no faults; each process appends a line to a file:
//   LOOPBACK_AHEAD=path     the most receives outstanding on one of its comms
//   LOOPBACK_ORDER=path     of messages above 64 KiB: the sends posted before the oldest receive of a comm was polled, and the most sends
//                           posted between two polls. A plugin may announce a receive at its first poll only, and copy in isend
//   LOOPBACK_TESTS=path     the messages sent, those received, and the tests of a receive that found nothing directly after one that
//                           found a message, with no send between them
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { REQUESTS = 32, MAGIC = 0x10095ac6, HEADER_BYTES = 48, RECEIVERS = 64, LONG = 64 << 10, CALLERS = 8 };
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

// ---- state -----------------------------------------------------------------------------------------------------

struct request {
  struct comm *comm;
  char *data;
  size_t size, moved;    // room or length; bytes of the body so far
  uint64_t header;       // the body's length, on the wire before it
  size_t header_moved;
  int done, live;
  unsigned long polls;   // of the process, when it was posted
};

struct comm {
  int fd, sends, withholds, truncates;
  struct request requests[REQUESTS];
  unsigned first, last, working;  // numbers: oldest live, next free, the one whose bytes move now
};

struct region {
  struct comm *comm;
  char *data;
  size_t size;
};

struct listener {
  int fd, device;
  uint64_t key;
  int waiting[CALLERS];  // Connections whose key has not come.
  unsigned callers;
};

// The content of the 128 bytes. `fd` belongs to the connecting side, which passes the same buffer at every attempt.
struct handle {
  uint32_t magic;
  uint16_t port;
  int32_t fd;
  uint8_t failing, withholds;
  int16_t plane;
  uint8_t never_connects, truncates;
  uint64_t key;  // The first bytes of the connection: a connect that is late finds the port with another listener.
};

static uint8_t failed_at[1 << 16];  // By port.
static logger_t logger;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int comms_open;
static unsigned most_ahead;
static struct comm *receivers[RECEIVERS];
static unsigned long polls, early_sends, sends_since_poll, most_sends;
static unsigned long found, needless;
static int found_since_send;
static unsigned long bytes_sent, messages_sent, sends_tried, receives_tried, messages_received;

static long fault(const char *name) {
  const char *text = getenv(name);
  return text ? atol(text) : 0;
}

static int fail(int code, const char *why) {
  if (logger) logger(2, 0x10, "loopback", 0, "%s", why);
  return code;
}

// Appends a line to the file that an environment variable names.
static void append(const char *name, const char *line) {
  const char *path = getenv(name);
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s\n", line);
  fclose(file);
}

static void write_counts(void) {
  char line[64];
  snprintf(line, sizeof line, "%u", most_ahead);
  append("LOOPBACK_AHEAD", line);
  snprintf(line, sizeof line, "%lu %lu", early_sends, most_sends);
  append("LOOPBACK_ORDER", line);
  snprintf(line, sizeof line, "%lu %lu %lu", messages_sent, found, needless);
  append("LOOPBACK_TESTS", line);
}

// A receiver takes a free place, or gives its own back.
static void exchange_receiver(struct comm *from, struct comm *to) {
  int place = 0;
  while (place < RECEIVERS && receivers[place] != from) place++;
  if (place < RECEIVERS) receivers[place] = to;
}

static void long_send(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < RECEIVERS; i++) {
    struct comm *comm = receivers[i];
    if (comm && comm->first != comm->last && comm->requests[comm->first % REQUESTS].polls == polls) {
      early_sends++;
      break;
    }
  }
  if (++sends_since_poll > most_sends) most_sends = sends_since_poll;
  pthread_mutex_unlock(&lock);
}

static void receive_tested(int done) {
  pthread_mutex_lock(&lock);
  if (done) found++;
  else if (found_since_send) needless++;
  found_since_send = done;
  pthread_mutex_unlock(&lock);
}

static void write_stats(void) {
  const char *base = getenv("IRONRAIL_STATS_FILE");
  if (!base) return;
  char path[4096];
  snprintf(path, sizeof path, "%s.%d", base, (int)getpid());
  FILE *file = fopen(path, "w");
  if (!file) return;
  fprintf(file,
          "{\"rails\":[{\"index\":0,\"name\":\"lo\",\"data_bytes\":%lu,\"data_operations\":%lu,\"data\":{\"sends\":%lu}}]}\n",
          bytes_sent, messages_sent, messages_sent);
  fclose(file);
}

static struct comm *new_comm(int fd, int sends) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  struct comm *comm = calloc(1, sizeof *comm);
  comm->fd = fd;
  comm->sends = sends;
  pthread_mutex_lock(&lock);
  comms_open++;
  if (!sends) exchange_receiver(NULL, comm);
  pthread_mutex_unlock(&lock);
  return comm;
}

// ---- what every version does ------------------------------------------------------------------------------------

static int init_any(logger_t function) {
  logger = function;
  if (logger) logger(3, 0x1, "loopback", __LINE__, "%s", "loopback: ready");
  return OK;
}

static int device_count(void) {
  long count = fault("LOOPBACK_DEVICES");
  return count ? (int)count : 1;
}

static int is_device(int device) { return device >= 0 && device < device_count(); }

static int is_dead(int device) {
  const char *dead = getenv("LOOPBACK_DEAD");
  return dead && atol(dead) == device;
}

static int16_t plane(int device) {
  const char *planes = getenv("LOOPBACK_PLANES");
  for (; planes && device; device--) planes = strchr(planes, ',') ? strchr(planes, ',') + 1 : NULL;
  return planes ? (int16_t)atol(planes) : -1;
}

static int devices(int *count) {
  *count = device_count();
  return OK;
}

static int listen_any(int device, void *opaque, void **out) {
  *out = NULL;
  if (!is_device(device)) return fail(INVALID_ARGUMENT, "loopback: there is no such device");
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  if (fd < 0 || bind(fd, (void *)&address, length) || listen(fd, 16) || getsockname(fd, (void *)&address, &length))
    return fail(SYSTEM_ERROR, "loopback: cannot listen");
  uint64_t key;
  if (getrandom(&key, sizeof key, 0) != sizeof key) return fail(SYSTEM_ERROR, "loopback: no random number");
  struct handle *handle = opaque;
  *handle = (struct handle){.magic = MAGIC, .port = ntohs(address.sin_port), .fd = -1, .plane = plane(device), .key = key};
  struct listener *listener = malloc(sizeof *listener);
  *listener = (struct listener){.fd = fd, .device = device, .key = key};
  *out = listener;
  return OK;
}

static int connect_any(int device, void *opaque, void **out) {
  *out = NULL;
  struct handle *handle = opaque;
  if (!is_device(device) || handle->magic != MAGIC) return fail(INVALID_ARGUMENT, "loopback: not a handle of mine");
  if (handle->plane != plane(device)) return fail(SYSTEM_ERROR, "loopback: a device of another plane");
  if (is_dead(device) || handle->never_connects) return OK;
  if (handle->fd >= 0 && failed_at[handle->port] < handle->failing) {
    failed_at[handle->port]++;
    close(handle->fd);
    return fail(SYSTEM_ERROR, "loopback: a failing connect was asked for");
  }
  if (handle->fd < 0) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(handle->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    handle->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connect(handle->fd, (void *)&address, sizeof address) && errno != EINPROGRESS)
      return fail(SYSTEM_ERROR, "loopback: cannot connect");
    return OK;  // Not yet, even if it is done: the caller must call again.
  }
  struct pollfd poller = {.fd = handle->fd, .events = POLLOUT};
  if (poll(&poller, 1, 0) <= 0) return OK;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(handle->fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error) return fail(REMOTE_ERROR, "loopback: the peer refused");
  if (send(handle->fd, &handle->key, sizeof handle->key, MSG_NOSIGNAL) != sizeof handle->key)
    return fail(REMOTE_ERROR, "loopback: the peer is gone");
  struct comm *comm = new_comm(handle->fd, 1);
  comm->withholds = handle->withholds, comm->truncates = handle->truncates;
  *out = comm;
  return OK;
}

static int accept_any(void *opaque, void **out) {
  *out = NULL;
  struct listener *listener = opaque;
  if (fault("LOOPBACK_DEAF") || is_dead(listener->device)) return OK;
  if (listener->callers < CALLERS) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) listener->waiting[listener->callers++] = fd;
    else if (errno != EAGAIN && errno != EINTR) return fail(SYSTEM_ERROR, "loopback: cannot accept");
  }
  for (unsigned at = 0; at < listener->callers; at++) {
    int fd = listener->waiting[at];
    uint64_t key;
    ssize_t came = recv(fd, &key, sizeof key, MSG_DONTWAIT | MSG_PEEK);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    listener->waiting[at--] = listener->waiting[--listener->callers];
    if (came == sizeof key && key == listener->key) {
      recv(fd, &key, sizeof key, 0);
      *out = new_comm(fd, 0);
      break;
    }
    close(fd);
  }
  return OK;
}

static int register_any(void *comm, void *data, size_t size, int type, void **out) {
  *out = NULL;
  if (type != 1) return fail(INVALID_ARGUMENT, "loopback: host memory only");
#ifdef PINS
  usleep(500);
#endif
  struct region *region = malloc(sizeof *region);
  *region = (struct region){comm, data, size};
  *out = region;
  return OK;
}

static int register_v6(void *comm, void *data, int size, int type, void **out) {
  return register_any(comm, data, (size_t)size, type, out);
}

static int register_dma_buf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **out) {
  (void)comm, (void)data, (void)size, (void)type, (void)offset, (void)fd;
  *out = NULL;
  return INTERNAL_ERROR;
}

static int deregister(void *comm, void *opaque) {
  struct region *region = opaque;
  if (!region) return OK;
  if (region->comm != comm) return fail(INVALID_ARGUMENT, "loopback: a region of another comm");
  if (region->comm->withholds) return fail(REMOTE_ERROR, "loopback: the peer may still use it");
  free(region);
  return OK;
}

static int inside(struct comm *comm, void *data, size_t size, struct region *region) {
  if (!region || region->comm != comm) return 0;
  char *start = data;
  return start >= region->data && start + size <= region->data + region->size;
}

static struct request *post(struct comm *comm, void *data, size_t size) {
  if (comm->last - comm->first >= REQUESTS) return NULL;
  struct request *request = &comm->requests[comm->last++ % REQUESTS];
  *request = (struct request){.comm = comm, .data = data, .size = size, .header = size, .live = 1};
  request->polls = __atomic_load_n(&polls, __ATOMIC_RELAXED);
  return request;
}

// Moves some bytes. Negative: an error; 0: not now.
static ssize_t move(struct comm *comm, void *data, size_t size) {
  ssize_t moved = comm->sends ? send(comm->fd, data, size, MSG_NOSIGNAL) : recv(comm->fd, data, size, 0);
  if (moved > 0) return moved;
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  return -1;
}

static int progress(struct comm *comm) {
  while (comm->working != comm->last) {
    struct request *request = &comm->requests[comm->working % REQUESTS];
    char *header = (char *)&request->header;
    while (request->header_moved < sizeof request->header) {
      ssize_t moved = move(comm, header + request->header_moved, sizeof request->header - request->header_moved);
      if (moved < 0) return fail(REMOTE_ERROR, "loopback: the peer is gone");
      if (moved == 0) return OK;
      request->header_moved += (size_t)moved;
    }
    if (request->header > request->size) {
      // The sender gets an error, too: this resets the connection.
      connect(comm->fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr));
      return fail(INVALID_USAGE, "loopback: a message longer than its receive");
    }
    while (request->moved < request->header) {
      ssize_t moved = move(comm, request->data + request->moved, request->header - request->moved);
      if (moved < 0) return fail(REMOTE_ERROR, "loopback: the peer is gone");
      if (moved == 0) return OK;
      request->moved += (size_t)moved;
    }
    if (!comm->sends && request->header > HEADER_BYTES) {
      long every = fault("LOOPBACK_CORRUPT");
      if (every && __atomic_add_fetch(&messages_received, 1, __ATOMIC_RELAXED) % (unsigned long)every == 0)
        request->data[request->header / 2] ^= 4;
    }
    request->done = 1;
    comm->working++;
  }
  return OK;
}

static void maybe_die(unsigned long number) {
  const char *text = getenv("LOOPBACK_DIE");
  if (!text || number != strtoul(text, NULL, 10)) return;
  const char *path = strchr(text, ':');
  if (path && open(path + 1, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0) raise(SIGKILL);
}

static int isend_any(void *opaque, void *data, size_t size, struct region *region, void **out) {
  struct comm *comm = opaque;
  if (fault("LOOPBACK_FORGET")) return OK;
  *out = NULL;
  unsigned long number = __atomic_add_fetch(&sends_tried, 1, __ATOMIC_RELAXED);
  maybe_die(number);
  if (fault("LOOPBACK_ERROR") && number == (unsigned long)fault("LOOPBACK_ERROR"))
    return fail(SYSTEM_ERROR, "loopback: an error was asked for");
  if (fault("LOOPBACK_STALL") && number >= (unsigned long)fault("LOOPBACK_STALL")) return progress(comm);
  if (fault("LOOPBACK_REFUSE") && number % (unsigned long)fault("LOOPBACK_REFUSE") == 0) return progress(comm);
  if (!inside(comm, data, size, region)) return fail(INVALID_ARGUMENT, "loopback: isend outside its region");
  *out = post(comm, data, size);
  if (*out && size > LONG) long_send();
  if (*out) {
    __atomic_store_n(&found_since_send, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&bytes_sent, size, __ATOMIC_RELAXED);
    __atomic_add_fetch(&messages_sent, 1, __ATOMIC_RELAXED);
  }
  return progress(comm);
}

static int irecv_any(void *opaque, int count, void **data, size_t size, struct region *region, void **out) {
  struct comm *comm = opaque;
  *out = NULL;
  if (count != 1) return fail(INVALID_ARGUMENT, "loopback: single receives only");
  unsigned long number = __atomic_add_fetch(&receives_tried, 1, __ATOMIC_RELAXED);
  if (fault("LOOPBACK_REFUSE") && number % (unsigned long)fault("LOOPBACK_REFUSE") == 0) return progress(comm);
  if (!inside(comm, data[0], size, region)) return fail(INVALID_ARGUMENT, "loopback: irecv outside its region");
  *out = post(comm, data[0], size);
  pthread_mutex_lock(&lock);
  if (comm->last - comm->first > most_ahead) most_ahead = comm->last - comm->first;
  pthread_mutex_unlock(&lock);
  return progress(comm);
}

static int iflush(void *comm, int count, void **data, int *sizes, void **regions, void **out) {
  (void)comm, (void)count, (void)data, (void)sizes, (void)regions;
  *out = NULL;
  return OK;
}

static int test(void *opaque, int *done, int *sizes) {
  struct request *request = opaque;
  struct comm *comm = request->comm;
  *done = 0;
  pthread_mutex_lock(&lock);
  polls++, sends_since_poll = 0;
  pthread_mutex_unlock(&lock);
  if (!request->live) return fail(INVALID_ARGUMENT, "loopback: a dead request was tested");
  if (request != &comm->requests[comm->first % REQUESTS])
    return fail(INVALID_USAGE, "loopback: only the oldest request may be tested");
  int code = progress(comm);
#ifdef KEEPS_WHAT_CAME
  if (request->done) code = OK;
#endif
  if (code) return code;
  if (!comm->sends) receive_tested(request->done);
  if (request->done) {
    *done = 1;
    if (sizes) sizes[0] = (int)(comm->truncates ? request->header / 2 : request->header);
    request->live = 0;
    comm->first++;
  }
  return OK;
}

static int close_comm(void *opaque) {
  struct comm *comm = opaque;
  if (!comm) return OK;
  close(comm->fd);
  pthread_mutex_lock(&lock);
  exchange_receiver(comm, NULL);
  free(comm);
  if (--comms_open == 0) write_stats(), write_counts();
  pthread_mutex_unlock(&lock);
  return OK;
}

static int close_listen(void *opaque) {
  struct listener *listener = opaque;
  if (!listener) return OK;
  while (listener->callers) close(listener->waiting[--listener->callers]);
  close(listener->fd);
  free(listener);
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

static const char *device_name(int device) {
  static char names[128][16];
  snprintf(names[device], sizeof names[device], "lo%d", device);
  return names[device];
}

#define COMMON(p)                                                                                                  \
  (p)->name = device_name(device), (p)->pci_path = NULL, (p)->guid = 7, (p)->ptr_support = 1, (p)->speed = 25000,  \
  (p)->port = 1, (p)->latency = 12, (p)->max_comms = 1024, (p)->max_recvs = 1
#define DEVICE(p) (p)->device_type = 0, (p)->device_version = 0
#define COMMON9(p)                                                                                                 \
  COMMON(p), DEVICE(p), (p)->reg_is_global = 0, (p)->force_flush = 0, (p)->ndevs = 1, (p)->devs[0] = device,       \
  (p)->max_p2p_bytes = 1 << 30, (p)->max_coll_bytes = 1 << 29

static int props_v6(int device, struct props6 *p) {
  if (!is_device(device)) return INVALID_ARGUMENT;
  COMMON(p);
  return OK;
}
static int props_v7(int device, struct props7 *p) {
  if (!is_device(device)) return INVALID_ARGUMENT;
  COMMON(&p->v6), DEVICE(p);
  return OK;
}
static int props_v8(int device, struct props8 *p) {
  if (!is_device(device)) return INVALID_ARGUMENT;
  COMMON(p), DEVICE(p), p->reg_is_global = 0;
  return OK;
}
static int props_v9(int device, struct props9 *p) {
  if (!is_device(device)) return INVALID_ARGUMENT;
  COMMON9(p);
  return OK;
}
static int props_v11(int device, struct props11 *p) {
  if (!is_device(device)) return INVALID_ARGUMENT;
  COMMON9(p), p->max_multi_request_size = 1;
  return OK;
}
static int props_v12(int device, struct props12 *p) {
  if (!is_device(device)) return INVALID_ARGUMENT;
  COMMON9(p), p->max_multi_request_size = 1, p->rail_id = 3, p->plane_id = plane(device);
  return OK;
}

// ---- the forms that changed -----------------------------------------------------------------------------------------

static int init_v6(logger_t l) { return init_any(l); }
static int init_v10(logger_t l, void *profiler) {
  (void)profiler;
  return init_any(l);
}
static int init_v11(void **context, uint64_t communicator, int *config, logger_t l, void *profiler) {
  (void)profiler;
  if (*config != -1) return INVALID_ARGUMENT;
  uint64_t *mine = malloc(sizeof *mine);
  *mine = communicator;
  *context = mine;
  return init_any(l);
}
static int finalize(void *context) {
  free(context);
  return OK;
}
static int set_net_attr(void *context, void *attributes) {
  (void)context, (void)attributes;
  return OK;
}
static int listen_v11(void *context, int device, void *handle, void **out) {
  return context ? listen_any(device, handle, out) : INVALID_ARGUMENT;
}
static int connect_v7(int device, void *handle, void **out, void **device_comm) {
  (void)device_comm;
  return connect_any(device, handle, out);
}
static int connect_v10(int device, int *config, void *handle, void **out, void **device_comm) {
  (void)device_comm;
  return *config == -1 ? connect_any(device, handle, out) : INVALID_ARGUMENT;
}
static int connect_v11(void *context, int device, void *handle, void **out, void **device_comm) {
  (void)device_comm;
  return context ? connect_any(device, handle, out) : INVALID_ARGUMENT;
}
static int accept_v7(void *listener, void **out, void **device_comm) {
  (void)device_comm;
  return accept_any(listener, out);
}
static int isend_v6(void *comm, void *data, int size, int tag, void *region, void **out) {
  (void)tag;
  return isend_any(comm, data, (size_t)size, region, out);
}
static int isend_v9(void *comm, void *data, size_t size, int tag, void *region, void **out) {
  (void)tag;
  return isend_any(comm, data, size, region, out);
}
static int isend_v10(void *comm, void *data, size_t size, int tag, void *region, void *parent, void **out) {
  (void)tag, (void)parent;
  return isend_any(comm, data, size, region, out);
}
static int irecv_v6(void *comm, int n, void **data, int *sizes, int *tags, void **regions, void **out) {
  (void)tags;
  return irecv_any(comm, n, data, (size_t)sizes[0], regions[0], out);
}
static int irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **out) {
  (void)tags;
  return irecv_any(comm, n, data, sizes[0], regions[0], out);
}
static int irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **parents,
                     void **out) {
  (void)tags, (void)parents;
  return irecv_any(comm, n, data, sizes[0], regions[0], out);
}

// ---- the tables: a name, then pointers in NCCL's order -------------------------------------------------------------------

#define TABLE(version, count) const void *const ncclNetPlugin_v##version[count]
#define DATA(isend, irecv) isend, irecv, iflush, test, close_comm, close_comm, close_listen

TABLE(6, 17) = {"Loopback", init_v6, devices, props_v6, listen_any, connect_any, accept_any,
                register_v6, register_dma_buf, deregister, DATA(isend_v6, irecv_v6)};
TABLE(7, 19) = {"Loopback", init_v6, devices, props_v7, listen_any, connect_v7, accept_v7,
                register_v6, register_dma_buf, deregister, DATA(isend_v6, irecv_v6), NULL, NULL};
TABLE(8, 19) = {"Loopback", init_v6, devices, props_v8, listen_any, connect_v7, accept_v7,
                register_any, register_dma_buf, deregister, DATA(isend_v6, irecv_v6), NULL, NULL};
TABLE(9, 20) = {"Loopback", init_v6, devices, props_v9, listen_any, connect_v7, accept_v7,
                register_any, register_dma_buf, deregister, DATA(isend_v9, irecv_v9), NULL, NULL, NULL};
TABLE(10, 20) = {"Loopback", init_v10, devices, props_v9, listen_any, connect_v10, accept_v7,
                 register_any, register_dma_buf, deregister, DATA(isend_v10, irecv_v10), NULL, NULL, NULL};
TABLE(11, 22) = {"Loopback", init_v11, devices, props_v11, listen_v11, connect_v11, accept_v7,
                 register_any, register_dma_buf, deregister, DATA(isend_v10, irecv_v10), NULL, NULL, NULL,
                 finalize, set_net_attr};
TABLE(12, 22) = {"Loopback", init_v11, devices, props_v12, listen_v11, connect_v11, accept_v7,
                 register_any, register_dma_buf, deregister, DATA(isend_v10, irecv_v10), NULL, NULL, NULL,
                 finalize, set_net_attr};
