// A net plugin over TCP sockets on host memory that keeps NCCL's whole contract, grouped receives included, and can be
// told to break it in one place: REFERENCE_FAULT names the place. `ironrail conform` must find each.
//
// With REFERENCE_GPU=1 it also takes the memory of the driver without a GPU (crates/gpu/tests/support/cuda.c), and with
// REFERENCE_GPU=address only by its address. What comes there is seen after a flush.
//
//   stale-request       isend that cannot post leaves *request as it was
//   ignore-tags         a message takes the first free place of the first receive
//   cut-tags            of a tag, only 16 bits count
//   size-off-by-one     test tells one byte more than came
//   handle-overrun      listen writes byte 128 of the handle
//   block-in-connect    connect comes back when the peer has accepted
//   leave-one           irecv leaves (void*)1 in *request
//   leak                a closed comm keeps its socket
//   crash               iflush dies
//   hang                closeListen does not come back
//   reorder             now and then a message takes the second receive posted
//   truncate            a message longer than its receive is cut, and nobody is told
//   overflow            a message longer than its receive is written whole
//   lose-last           a send is done before its bytes are with the kernel, and a close forgets them
//   abrupt-close        a close resets its connection, and what the kernel still holds is gone: receivers read little at
//                       a time, so that it holds something
//   unwritten-property  maxMultiRequestSize and latency are left as they were
//   one-name            there are two devices of one name
//   done-unwritten      test writes *done only when it is 1
//   need-sizes          test writes sizes without looking
//   false-global        regIsGlobal is 1, and a region serves its own comm only
//   keep-buffer         a send is read from its buffer some time after it was done
//   write-again         a receive's first byte is written once more after it was done
//   ignore-death        a peer that is gone is waited for
//   finalize-leak       finalize keeps what init opened
//   shared-listener     all listeners are one
//   wide-handle         connect needs the address at which listen wrote the handle
//   no-flush            iflush answers null, and what came stays unseen
//   flush-first         iflush shows what came into its first buffer only
//   flush-early         the flush's request is done before what came is seen
//   late-descriptor     regMrDmaBuf looks at its descriptor at the first use of the region
//   refuse-gpu          regMr of device memory is an error, whatever ptrSupport says
//   ranges-of-gpu       regMr of device memory takes whole allocations only
//   old-view            of two regions at one address, the second is where the first was
//   copy-gpu            short messages are copied from device memory by the CPU
//   assume-gpu          regMr of device memory looks at it, though ptrSupport does not say so
//   alone-on-gpu        device memory is registered once at a time
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { GROUP = 8, RECEIVES = 32, SENDS = RECEIVES * GROUP, AHEAD = 64, MAGIC = 0x5ef0ca11 };
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

// ---- state -----------------------------------------------------------------------------------------------------

struct part {
  char *data;
  size_t room, came;
  int tag, taken;
  struct region *region;  // of device memory
};

// What came into device memory and is yet to be seen.
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
  // A flush, of all regions or of one.
  int flushes;
  struct region *flush;
  // Of a send: what goes out, and how much has.
  char *bytes, *own;
  size_t size, moved;
};

struct header {
  uint64_t size;
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
  int fd;
};

struct handle {
  uint32_t magic;
  uint16_t port;
  int32_t fd;
  uint64_t address;
};

static logger_t logger;

static int is(const char *fault) {
  static const char *set;
  if (!set) set = getenv("REFERENCE_FAULT") ? getenv("REFERENCE_FAULT") : "";
  return strcmp(set, fault) == 0;
}

static int fail(int code, const char *why) {
  if (logger) logger(2, 0x10, "reference", 0, "%s", why);
  return code;
}

static struct comm *new_comm(int fd, int sends) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  struct comm *comm = calloc(1, sizeof *comm);
  comm->fd = fd;
  comm->sends = sends;
  comm->places = sends ? SENDS : RECEIVES;
  comm->requests = calloc(comm->places, sizeof *comm->requests);
  comm->early_end = &comm->early;
  return comm;
}

static int init_any(logger_t function) {
  logger = function;
  return OK;
}

static int devices(int *count) {
  *count = is("one-name") ? 2 : 1;
  return OK;
}

// ---- connections -------------------------------------------------------------------------------------------------

static int listen_any(int device, void *opaque, void **out) {
  *out = NULL;
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
  *handle = (struct handle){.magic = MAGIC, .port = ntohs(address.sin_port), .fd = -1, .address = (uintptr_t)opaque};
  if (is("handle-overrun")) ((char *)opaque)[128] = 0;
  struct listener *listener = malloc(sizeof *listener);
  listener->fd = is("shared-listener") ? dup(fd) : fd;
  *out = listener;
  return OK;
}

static int connect_any(int device, void *opaque, void **out) {
  (void)device;
  *out = NULL;
  struct handle *handle = opaque;
  if (handle->magic != MAGIC) return fail(INVALID_ARGUMENT, "reference: not a handle of mine");
  if (is("wide-handle") && handle->address != (uintptr_t)opaque) return fail(INVALID_ARGUMENT, "reference: moved");
  if (handle->fd < 0) {
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
  *out = new_comm(handle->fd, 1);
  return OK;
}

static int accept_any(void *opaque, void **out) {
  *out = NULL;
  struct listener *listener = opaque;
  int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return errno == EAGAIN || errno == EINTR ? OK : fail(SYSTEM_ERROR, "reference: cannot accept");
  if (is("block-in-connect") && send(fd, "h", 1, MSG_NOSIGNAL) != 1) return fail(REMOTE_ERROR, "reference: no hello");
  *out = new_comm(fd, 0);
  return OK;
}

static int close_comm(void *opaque) {
  struct comm *comm = opaque;
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
  close(listener->fd);
  free(listener);
  return OK;
}

// ---- memory ------------------------------------------------------------------------------------------------------

static int takes_gpu(void) { return getenv("REFERENCE_GPU") != NULL; }
static int takes_dmabuf(void) { return takes_gpu() && strcmp(getenv("REFERENCE_GPU"), "1") == 0; }

// Where the CPU finds device memory: nothing knows that of a real GPU.
static char *view_of(void *data, size_t size) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *(*view)(uint64_t, size_t) = NULL;
  if (driver) *(void **)&view = dlsym(driver, "standin_view");
  return view ? view((uintptr_t)data, size) : NULL;
}

// Registrations that are found again by their address alone.
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

// How often device memory is registered now.
static int on_gpu;

static int register_any(void *comm, void *data, size_t size, int type, void **out) {
  *out = NULL;
  if (type == 1) return open_region(comm, data, size, NULL, out);
  if (is("assume-gpu") && type == 2) return *(volatile char *)data == 0x55 ? OK : fail(INVALID_ARGUMENT, "reference: no");
  if (type != 2 || !takes_gpu() || is("refuse-gpu")) return fail(INVALID_ARGUMENT, "reference: host memory only");
  char *view = view_of(data, size);
  if (!view) return fail(INVALID_ARGUMENT, "reference: that is no device memory");
  if (is("ranges-of-gpu") && (uintptr_t)data % 4096) return fail(INVALID_ARGUMENT, "reference: whole pages only");
  if (is("alone-on-gpu") && ++on_gpu > 2) return fail(INVALID_USAGE, "reference: registered already");
  if (is("old-view")) {
    // As a NIC has it that keeps the pages: by a mapping of its own, since the driver's goes with the allocation.
    char *own = mremap(view - (uintptr_t)view % 4096, 0, size + 4096, MREMAP_MAYMOVE);
    if (own != MAP_FAILED) view = old_view(data, own + (uintptr_t)view % 4096);
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

// Where the CPU finds what the user has at `data`. Null: nowhere.
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

static int deregister(void *opaque, void *closed) {
  struct comm *comm = opaque;
  struct region *region = closed;
  for (struct unseen **at = &comm->unseen; *at;) {
    struct unseen *unseen = *at;
    if (unseen->region != region) {
      at = &unseen->next;
      continue;
    }
    *at = unseen->next;
    free(unseen);
  }
  // What waits to be sent from it or to come there is over.
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
  struct request *request = &comm->requests[comm->last++ % comm->places];
  free(request->own);
  *request = (struct request){.comm = comm, .live = 1, .sends = comm->sends};
  return request;
}

// Some bytes. Negative: an error; 0: not now.
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
  return is("cut-tags") ? (int16_t)one == (int16_t)other : one == other;
}

// The n-th message of a tag belongs to the n-th place that has it.
static struct part *place_of(struct comm *comm, int tag, struct request **whose) {
  int skip = is("reorder") && comm->messages % 7 == 3;
  for (unsigned number = comm->first; number != comm->last; number++) {
    struct request *request = &comm->requests[number % comm->places];
    for (int i = 0; request->live && i < request->count; i++) {
      struct part *part = &request->parts[i];
      if (part->taken || !same_tag(part->tag, tag)) continue;
      *whose = request;
      if (skip && number + 1 != comm->last) {
        skip = 0;
        continue;
      }
      return part;
    }
  }
  return NULL;
}

// False: no place for it yet.
static int deliver(struct comm *comm, struct message *message) {
  struct request *request = NULL;
  struct part *part = place_of(comm, message->header.tag, &request);
  if (!part) return 0;
  size_t size = message->header.size;
  if (size > part->room && !is("overflow")) {
    if (!is("truncate")) {
      comm->failed = fail(INVALID_USAGE, "reference: a message longer than its receive");
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
  } else {
    memcpy(part->data, message->body, size);
  }
  part->came = size;
  part->taken = 1;
  request->missing--;
  comm->messages++;
  return 1;
}

static void receive(struct comm *comm) {
  // Early messages come first, in their order; one whose place is not there yet does not hold up the others.
  for (struct message **at = &comm->early; *at && !comm->failed;) {
    struct message *message = *at;
    if (!deliver(comm, message)) {
      at = &message->next;
      continue;
    }
    *at = message->next;
    if (!*at) comm->early_end = at;
    comm->early_count--;
    free(message);
  }
  while (!comm->failed && !comm->ended && comm->early_count < AHEAD) {
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
    if (deliver(comm, message)) {
      free(message);
      continue;
    }
    *comm->early_end = message;
    comm->early_end = &message->next;
    comm->early_count++;
  }
}

static void push(struct comm *comm) {
  while (!comm->ended && comm->working != comm->last) {
    struct request *request = &comm->requests[comm->working % comm->places];
    // Told to be done, it waits for one that comes after it.
    if (is("lose-last") && comm->working + 1 == comm->last) return;
    if (is("keep-buffer") && comm->working + 2 > comm->last) return;
    size_t whole = sizeof(struct header) + request->size;
    while (request->moved < whole) {
      char *from = request->bytes + request->moved - sizeof(struct header);
      size_t size = whole - request->moved;
      struct header header = {request->size, request->parts[0].tag, MAGIC};
      if (request->moved < sizeof header) {
        from = (char *)&header + request->moved;
        size = sizeof header - request->moved;
      }
      ssize_t moved = move(comm, from, size);
      if (moved <= 0) return;
      request->moved += (size_t)moved;
    }
    request->missing = 0;
    comm->working++;
  }
}

static int progress(struct comm *comm) {
  if (comm->failed) return comm->failed;
  comm->moved = 0;
  if (comm->sends) {
    push(comm);
    if (comm->ended && !is("ignore-death")) return fail(REMOTE_ERROR, "reference: the peer is gone");
  } else {
    receive(comm);
  }
  return comm->failed;
}

static int isend_any(void *opaque, void *data, size_t size, int tag, struct region *region, void **out) {
  struct comm *comm = opaque;
  static unsigned tried;
  if (is("stale-request") && ++tried % 3 == 0) return OK;
  *out = NULL;
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
  return progress(comm);
}

static int irecv_any(void *opaque, int n, void **data, size_t *sizes, int *tags, void **regions, void **out) {
  struct comm *comm = opaque;
  int optional = *out == (void *)1;
  if (!(is("leave-one") && optional)) *out = NULL;
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
  for (int i = 0; i < n && i < GROUP; i++) wide[i] = (size_t)sizes[i];
  return irecv_any(comm, n, data, wide, tags, regions, out);
}

// Shows what came, or what came into one region: all, or what came before the last.
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
  if (is("crash")) __builtin_trap();
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
  int code = progress(comm);
  if (code) return code;
  if (again) *again = 0x55, again = NULL;
  if (request->flushes && !is("flush-early")) show(comm, request->flush);
  if (request->missing == 0) {
    *done = 1;
    if (is("need-sizes") || sizes) {
      if (request->sends) sizes[0] = (int)request->size;
      for (int i = 0; i < request->count; i++) sizes[i] = (int)request->parts[i].came + is("size-off-by-one");
    }
    if (is("write-again") && !request->sends && request->parts[0].came > 20000) again = request->parts[0].data;
    request->live = 0;
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

#define COMMON(p)                                                                                          \
  (p)->name = "ref0", (p)->pci_path = NULL, (p)->guid = 7, (p)->speed = 25000,                             \
  (p)->ptr_support = 1 | 2 * takes_gpu() | 4 * takes_dmabuf(),                                             \
  (p)->port = 1 + device, (p)->max_comms = 1024, (p)->max_recvs = 1;                                       \
  if (!is("unwritten-property")) (p)->latency = 12
#define DEVICE(p) (p)->device_type = 0, (p)->device_version = 0
#define COMMON9(p)                                                                                         \
  COMMON(p);                                                                                               \
  DEVICE(p), (p)->reg_is_global = is("false-global"), (p)->force_flush = 0, (p)->ndevs = 1,                \
  (p)->devs[0] = device, (p)->max_p2p_bytes = 1 << 30, (p)->max_coll_bytes = 1 << 29, (p)->max_recvs = GROUP

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
  p->rail_id = -1, p->plane_id = -1;
  return OK;
}

// ---- the forms that changed -----------------------------------------------------------------------------------------

static int init_v6(logger_t l) { return init_any(l); }
static int init_v10(logger_t l, void *profiler) {
  (void)profiler;
  return init_any(l);
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
  if (!is("finalize-leak")) close(context->fd);
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
  (void)config, (void)device_comm;
  return connect_any(device, handle, out);
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
  (void)parents;
  return irecv_any(comm, n, data, sizes, tags, regions, out);
}

// ---- the tables: a name, then pointers in NCCL's order -------------------------------------------------------------------

#define TABLE(version, count) const void *const ncclNetPlugin_v##version[count]
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
