// Loads the plugin as NCCL does, takes one version's table, and moves checked data: to itself, or between two processes.
//
//     client VERSION self|pair
//
// NCCL_NET_PLUGIN names the plugin, and the dynamic loader finds it. CLIENT_OTHER_RAILS gives the second process other rails
// than IRONRAIL_RAILS gives the first; CLIENT_OTHER_VERSION gives it another table, and both no groups, which one of the
// tables may not have. Every failure is one line and exit status 1; a wait without end is one line and exit status 3.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ironrail.h"

// ---------------------------------------------------------------- layouts, as in NCCL's headers

#define SIZE(type, bytes) _Static_assert(sizeof(Ironrail##type) == (bytes), #type)
#define PLACE(type, field, at) _Static_assert(offsetof(Ironrail##type, field) == (at), #type "." #field)

SIZE(NetV6, 136); SIZE(NetV7, 152); SIZE(NetV8, 152); SIZE(NetV9, 160);
SIZE(NetV10, 160); SIZE(NetV11, 176); SIZE(NetV12, 176);
SIZE(PropertiesV6, 48); SIZE(PropertiesV7, 56); SIZE(PropertiesV8, 64); SIZE(PropertiesV9, 104);
SIZE(PropertiesV11, 112); SIZE(PropertiesV12, 128);
SIZE(CommConfig, 4); SIZE(DevHandle, 32); SIZE(NetAttr, 44);
PLACE(NetV6, closeListen, 128); PLACE(NetV7, irecvConsumed, 144); PLACE(NetV9, makeVDevice, 152);
PLACE(NetV12, test, 104); PLACE(NetV12, finalize, 160); PLACE(NetV12, setNetAttr, 168);
PLACE(PropertiesV6, maxRecvs, 44); PLACE(PropertiesV7, netDeviceType, 48); PLACE(PropertiesV8, regIsGlobal, 28);
PLACE(PropertiesV9, forceFlush, 32); PLACE(PropertiesV9, vProps, 64); PLACE(PropertiesV9, maxP2pBytes, 88);
PLACE(PropertiesV11, maxMultiRequestSize, 104); PLACE(PropertiesV12, maxP2pBytes, 104);
PLACE(PropertiesV12, railId, 124); PLACE(PropertiesV12, planeId, 126);

// ---------------------------------------------------------------- failing, waiting, logging

static int version;
static int rank;
static const char *volatile stage = "start";

#define FAIL(...)                                                                  \
    do {                                                                           \
        fprintf(stderr, "client v%d rank %d, %s: ", version, rank, stage);         \
        fprintf(stderr, __VA_ARGS__);                                              \
        fprintf(stderr, " (line %d)\n", __LINE__);                                 \
        exit(1);                                                                   \
    } while (0)
#define REQUIRE(condition, ...) \
    do {                        \
        if (!(condition))       \
            FAIL(__VA_ARGS__);  \
    } while (0)
#define SUCCEEDS(call)                                             \
    do {                                                           \
        int code_ = (call);                                        \
        REQUIRE(code_ == 0, "%s gave %d", #call, code_);           \
    } while (0)

enum { SECONDS_MOST = 120, SECONDS_CONNECT = 60 };

static void out_of_time(int signal)
{
    (void)signal;
    static const char text[] = "client: no end in sight while in stage: ";
    (void)!write(2, text, sizeof text - 1);
    (void)!write(2, stage, strlen(stage));
    (void)!write(2, "\n", 1);
    _exit(3);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    REQUIRE(level >= 1 && level <= 5 && flags != 0 && file != NULL, "the logger was called with wrong arguments");
    REQUIRE(strcmp(format, "%s") == 0, "the logger got the format %s", format);
    if (level > 2 && getenv("CLIENT_VERBOSE") == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "[v%d rank %d] %s:%d %s ", version, rank, file, line, level == 2 ? "WARN" : "INFO");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

// ---------------------------------------------------------------- one form of each call, whatever the version

static union {
    const void *any;
    const IronrailNetV6 *v6;
    const IronrailNetV7 *v7;
    const IronrailNetV8 *v8;
    const IronrailNetV9 *v9;
    const IronrailNetV10 *v10;
    const IronrailNetV11 *v11;
    const IronrailNetV12 *v12;
} net;

static void *context;

#define IN_EVERY_VERSION(call, ...)                     \
    switch (version) {                                  \
    case 6: return net.v6->call(__VA_ARGS__);           \
    case 7: return net.v7->call(__VA_ARGS__);           \
    case 8: return net.v8->call(__VA_ARGS__);           \
    case 9: return net.v9->call(__VA_ARGS__);           \
    case 10: return net.v10->call(__VA_ARGS__);         \
    case 11: return net.v11->call(__VA_ARGS__);         \
    default: return net.v12->call(__VA_ARGS__);         \
    }

static int net_init(void)
{
    IronrailCommConfig config = {.trafficClass = -1};
    switch (version) {
    case 6: return net.v6->init(log_line);
    case 7: return net.v7->init(log_line);
    case 8: return net.v8->init(log_line);
    case 9: return net.v9->init(log_line);
    case 10: return net.v10->init(log_line, NULL);
    case 11: return net.v11->init(&context, 0x1234, &config, log_line, NULL);
    default: return net.v12->init(&context, 0x1234, &config, log_line, NULL);
    }
}

static int net_finalize(void)
{
    switch (version) {
    case 11: return net.v11->finalize(context);
    case 12: return net.v12->finalize(context);
    default: return 0;
    }
}

static int net_devices(int *count) { IN_EVERY_VERSION(devices, count) }

static int net_properties(int device, void *properties) { IN_EVERY_VERSION(getProperties, device, properties) }

static int net_listen(int device, void *handle, void **listener)
{
    switch (version) {
    case 6: return net.v6->listen(device, handle, listener);
    case 7: return net.v7->listen(device, handle, listener);
    case 8: return net.v8->listen(device, handle, listener);
    case 9: return net.v9->listen(device, handle, listener);
    case 10: return net.v10->listen(device, handle, listener);
    case 11: return net.v11->listen(context, device, handle, listener);
    default: return net.v12->listen(context, device, handle, listener);
    }
}

static int net_connect(int device, void *handle, void **comm, IronrailDevHandle **device_comm)
{
    IronrailCommConfig config = {.trafficClass = -1};
    switch (version) {
    case 6: return net.v6->connect(device, handle, comm);
    case 7: return net.v7->connect(device, handle, comm, device_comm);
    case 8: return net.v8->connect(device, handle, comm, device_comm);
    case 9: return net.v9->connect(device, handle, comm, device_comm);
    case 10: return net.v10->connect(device, &config, handle, comm, device_comm);
    case 11: return net.v11->connect(context, device, handle, comm, device_comm);
    default: return net.v12->connect(context, device, handle, comm, device_comm);
    }
}

static int net_accept(void *listener, void **comm, IronrailDevHandle **device_comm)
{
    if (version == 6)
        return net.v6->accept(listener, comm);
    switch (version) {
    case 7: return net.v7->accept(listener, comm, device_comm);
    case 8: return net.v8->accept(listener, comm, device_comm);
    case 9: return net.v9->accept(listener, comm, device_comm);
    case 10: return net.v10->accept(listener, comm, device_comm);
    case 11: return net.v11->accept(listener, comm, device_comm);
    default: return net.v12->accept(listener, comm, device_comm);
    }
}

static int net_reg(void *comm, void *data, size_t size, int kind, void **region)
{
    switch (version) {
    case 6: return net.v6->regMr(comm, data, (int)size, kind, region);
    case 7: return net.v7->regMr(comm, data, (int)size, kind, region);
    case 8: return net.v8->regMr(comm, data, size, kind, region);
    case 9: return net.v9->regMr(comm, data, size, kind, region);
    case 10: return net.v10->regMr(comm, data, size, kind, region);
    case 11: return net.v11->regMr(comm, data, size, kind, region);
    default: return net.v12->regMr(comm, data, size, kind, region);
    }
}

static int net_dereg(void *comm, void *region) { IN_EVERY_VERSION(deregMr, comm, region) }

static int net_send(void *comm, void *data, size_t size, int tag, void *region, void **request)
{
    switch (version) {
    case 6: return net.v6->isend(comm, data, (int)size, tag, region, request);
    case 7: return net.v7->isend(comm, data, (int)size, tag, region, request);
    case 8: return net.v8->isend(comm, data, (int)size, tag, region, request);
    case 9: return net.v9->isend(comm, data, size, tag, region, request);
    case 10: return net.v10->isend(comm, data, size, tag, region, NULL, request);
    case 11: return net.v11->isend(comm, data, size, tag, region, NULL, request);
    default: return net.v12->isend(comm, data, size, tag, region, NULL, request);
    }
}

enum { GROUP_MOST = 8 };

static int net_receive(void *comm, int count, void **data, size_t *sizes, int *tags, void **regions, void **request)
{
    int narrow[GROUP_MOST];
    for (int i = 0; i < count; i++)
        narrow[i] = (int)sizes[i];
    switch (version) {
    case 6: return net.v6->irecv(comm, count, data, narrow, tags, regions, request);
    case 7: return net.v7->irecv(comm, count, data, narrow, tags, regions, request);
    case 8: return net.v8->irecv(comm, count, data, narrow, tags, regions, request);
    case 9: return net.v9->irecv(comm, count, data, sizes, tags, regions, request);
    case 10: return net.v10->irecv(comm, count, data, sizes, tags, regions, NULL, request);
    case 11: return net.v11->irecv(comm, count, data, sizes, tags, regions, NULL, request);
    default: return net.v12->irecv(comm, count, data, sizes, tags, regions, NULL, request);
    }
}

static int net_flush(void *comm, int count, void **data, int *sizes, void **regions, void **request)
{
    IN_EVERY_VERSION(iflush, comm, count, data, sizes, regions, request)
}

static int net_test(void *request, int *done, int *sizes) { IN_EVERY_VERSION(test, request, done, sizes) }
static int net_close_send(void *comm) { IN_EVERY_VERSION(closeSend, comm) }
static int net_close_receive(void *comm) { IN_EVERY_VERSION(closeRecv, comm) }
static int net_close_listen(void *comm) { IN_EVERY_VERSION(closeListen, comm) }

// ---------------------------------------------------------------- loading, as NCCL src/plugin/plugin_open.cc does

static void *load(void)
{
    stage = "load";
    const char *word = getenv("NCCL_NET_PLUGIN");
    REQUIRE(word != NULL, "NCCL_NET_PLUGIN is not set");
    void *library = dlopen(word, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL && strchr(word, '/') == NULL) {
        // A bare word leads to no file: NCCL would log the errors of any other file of that name, such as the command.
        const char *why = dlerror();
        REQUIRE(strstr(why, "No such file") != NULL, "%s", why);
        char file[256];
        snprintf(file, sizeof file, "libnccl-net-%s.so", word);
        library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    REQUIRE(library != NULL, "%s", dlerror());
    char symbol[32];
    for (int other = 6; other <= 12; other++) {
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", other);
        REQUIRE(dlsym(library, symbol) != NULL, "no %s", symbol);
    }
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
    net.any = dlsym(library, symbol);
    // NCCL compares NCCL_NET with the name before it calls init.
    REQUIRE(strcmp(net.v6->name, "Ironrail") == 0, "the name is %s", net.v6->name);
    switch (version) {
    case 12: REQUIRE(net.v12->makeVDevice != NULL, "NICs cannot be fused"); REQUIRE(net.v12->setNetAttr == NULL, "an optional call is there"); break;
    case 9: REQUIRE(net.v9->getDeviceMr == NULL && net.v9->irecvConsumed == NULL, "an optional call is there"); break;
    default: break;
    }
    return library;
}

// ---------------------------------------------------------------- properties

// The fields of all versions, and those of newer ones.
struct properties {
    int pointer_support;
    int group_most;
};

#define IN_ALL(found)                                                                                       \
    do {                                                                                                    \
        REQUIRE((found).name != NULL && (found).name[0] != '\0', "device %d has no name", device);          \
        REQUIRE(((found).ptrSupport & 1) != 0, "ptrSupport %d lacks host memory", (found).ptrSupport);      \
        REQUIRE((found).speed > 0 && (found).maxComms > 0, "speed %d, maxComms %d", (found).speed, (found).maxComms); \
        REQUIRE((found).latency >= 0 && (found).latency < 1e6f, "latency %f", (double)(found).latency);     \
        int most = version < 9 ? 1 : GROUP_MOST;                                                            \
        REQUIRE((found).maxRecvs >= 1 && (found).maxRecvs <= most, "maxRecvs %d", (found).maxRecvs);        \
        result.pointer_support = (found).ptrSupport;                                                        \
        result.group_most = (found).maxRecvs;                                                               \
    } while (0)
#define SINCE_V7(found) \
    REQUIRE((found).netDeviceType == 0 && (found).netDeviceVersion == 0, "not a HOST device")
#define SINCE_V8(found) \
    REQUIRE((found).regIsGlobal == 0 || (found).regIsGlobal == 1, "regIsGlobal %d", (found).regIsGlobal)
#define SINCE_V9(found)                                                                                     \
    do {                                                                                                    \
        REQUIRE((found).forceFlush == 0, "forceFlush %d", (found).forceFlush);                              \
        REQUIRE((found).vProps.ndevs == 1 && (found).vProps.devs[0] == device, "vProps name %d devices, first %d", \
                (found).vProps.ndevs, (found).vProps.devs[0]);                                              \
        REQUIRE((found).maxP2pBytes >= 1 && (found).maxP2pBytes <= (size_t)1 << 40, "maxP2pBytes %zu",      \
                (found).maxP2pBytes);                                                                       \
        REQUIRE((found).maxCollBytes >= 1, "maxCollBytes %zu", (found).maxCollBytes);                       \
    } while (0)

static bool is_padding(size_t at)
{
    switch (version) {
    case 8: return at >= 60;
    case 9:
    case 10: return at >= 84 && at < 88;
    case 11: return (at >= 84 && at < 88) || at >= 108;
    case 12: return at >= 100 && at < 104;
    default: return false;
    }
}

static struct properties check_properties(int device)
{
    stage = "properties";
    union {
        unsigned char bytes[256];
        IronrailPropertiesV6 v6;
        IronrailPropertiesV7 v7;
        IronrailPropertiesV8 v8;
        IronrailPropertiesV9 v9;
        IronrailPropertiesV11 v11;
        IronrailPropertiesV12 v12;
    } found, again;
    static const size_t sizes[] = {48, 56, 64, 104, 104, 112, 128};
    size_t size = sizes[version - 6];
    // NCCL's struct is uninitialised: a field that is not written keeps the poison, and differs.
    memset(&found, 0xa5, sizeof found);
    memset(&again, 0x5a, sizeof again);
    SUCCEEDS(net_properties(device, &found));
    SUCCEEDS(net_properties(device, &again));
    for (size_t at = 0; at < sizeof found.bytes; at++) {
        if (at < size)
            REQUIRE(found.bytes[at] == again.bytes[at] || is_padding(at), "byte %zu of the properties is not written", at);
        else
            REQUIRE(found.bytes[at] == 0xa5, "byte %zu, past the properties, is written", at);
    }
    struct properties result;
    switch (version) {
    case 6: IN_ALL(found.v6); break;
    case 7: IN_ALL(found.v7); SINCE_V7(found.v7); break;
    case 8: IN_ALL(found.v8); SINCE_V7(found.v8); SINCE_V8(found.v8); break;
    case 9:
    case 10: IN_ALL(found.v9); SINCE_V7(found.v9); SINCE_V8(found.v9); SINCE_V9(found.v9); break;
    case 11:
        IN_ALL(found.v11); SINCE_V7(found.v11); SINCE_V8(found.v11); SINCE_V9(found.v11);
        REQUIRE(found.v11.maxMultiRequestSize == 1, "maxMultiRequestSize %d", found.v11.maxMultiRequestSize);
        break;
    default:
        IN_ALL(found.v12); SINCE_V7(found.v12); SINCE_V8(found.v12); SINCE_V9(found.v12);
        REQUIRE(found.v12.maxMultiRequestSize == 1, "maxMultiRequestSize %d", found.v12.maxMultiRequestSize);
        REQUIRE(found.v12.railId >= -1 && found.v12.planeId >= -1, "rail %d, plane %d", found.v12.railId, found.v12.planeId);
    }
    return result;
}

// ---------------------------------------------------------------- connecting

enum { HANDLE = 128, GUARD = 64 };
#define STALE ((void *)(uintptr_t)0xdeadbeefcafe)

// A handle between guards, to detect a plugin that writes beyond 128 bytes.
struct handle {
    unsigned char before[GUARD];
    unsigned char bytes[HANDLE];
    unsigned char after[GUARD];
};

struct link {
    void *send;
    void *receive;
};

static void check_guards(const struct handle *handle)
{
    for (int i = 0; i < GUARD; i++)
        REQUIRE(handle->before[i] == 0xee && handle->after[i] == 0xee, "the plugin wrote past the handle");
}

static void whole(ssize_t moved, size_t expected, const char *what)
{
    REQUIRE(moved == (ssize_t)expected, "%s moved %zd of %zu bytes", what, moved, expected);
}

// `peer` is a socket to the other process, or -1 for a connection to this process.
static struct link connect_to(int peer, int device)
{
    stage = "listen";
    struct handle handle;
    memset(&handle, 0xee, sizeof handle);
    void *listener = STALE;
    SUCCEEDS(net_listen(device, handle.bytes, &listener));
    REQUIRE(listener != NULL && listener != STALE, "listen gave no comm");
    check_guards(&handle);
    if (peer >= 0) {
        whole(send(peer, handle.bytes, HANDLE, 0), HANDLE, "send");
        whole(recv(peer, handle.bytes, HANDLE, MSG_WAITALL), HANDLE, "recv");
    }

    stage = "connect and accept";
    struct link link = {NULL, NULL};
    double start = now();
    for (unsigned round = 0; link.send == NULL || link.receive == NULL; round++) {
        IronrailDevHandle *device_comm = NULL;
        // NCCL passes the address of a null, or null.
        IronrailDevHandle **place = round % 2 == 0 ? &device_comm : NULL;
        if (link.send == NULL) {
            link.send = STALE;
            SUCCEEDS(net_connect(device, handle.bytes, &link.send, place));
            REQUIRE(link.send != STALE, "connect left the comm as it was");
        }
        if (link.receive == NULL) {
            link.receive = STALE;
            SUCCEEDS(net_accept(listener, &link.receive, place));
            REQUIRE(link.receive != STALE, "accept left the comm as it was");
        }
        REQUIRE(device_comm == NULL, "a HOST device gave a device handle");
        REQUIRE(now() - start < SECONDS_CONNECT, "not connected after %d s", SECONDS_CONNECT);
        sched_yield();
    }
    check_guards(&handle);
    SUCCEEDS(net_close_listen(listener));
    return link;
}

// ---------------------------------------------------------------- data

enum { OUTSTANDING = 8, LARGEST = (4 << 20) + 3, SLACK = 4099, POISON = 0xa5, EDGE = 0xee };
// The largest receive, with guards on both sides, unaligned.
enum { SLOT = GUARD + LARGEST + SLACK + GUARD + 13 };

struct side {
    unsigned char *memory;
    void *region;
};

// Messages are pieces of `text`, each from another byte on. `inverse` differs from it in every byte.
enum { PLACES = 8191 };
static unsigned char text[LARGEST + PLACES], inverse[LARGEST + PLACES];

static void write_text(void)
{
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (unsigned char)((i + 1) * 0x9e3779b97f4a7c15u >> 29);
        inverse[i] = (unsigned char)~text[i];
    }
}

static size_t place_in_text(int sender, unsigned iteration)
{
    return (iteration * 61u + (unsigned)sender * 4099u) % PLACES;
}

static const unsigned char *content(int sender, unsigned iteration)
{
    return text + place_in_text(sender, iteration);
}

static struct side new_side(void *comm)
{
    struct side side = {malloc((size_t)OUTSTANDING * SLOT), STALE};
    REQUIRE(side.memory != NULL, "out of memory");
    memset(side.memory, EDGE, (size_t)OUTSTANDING * SLOT);
    SUCCEEDS(net_reg(comm, side.memory, (size_t)OUTSTANDING * SLOT, 1, &side.region));
    REQUIRE(side.region != NULL && side.region != STALE, "regMr gave no handle");
    return side;
}

static unsigned char *slot(const struct side *side, unsigned number)
{
    return side->memory + (size_t)(number % OUTSTANDING) * SLOT + GUARD;
}

static void check_received(const unsigned char *data, int sender, unsigned iteration, size_t sent, size_t posted)
{
    const unsigned char *expected = content(sender, iteration);
    bool same = memcmp(data, expected, sent) == 0;
    for (size_t i = 0; !same && i < sent; i++)
        REQUIRE(data[i] == expected[i], "message %u of %zu bytes: byte %zu is %02x, not %02x", iteration, sent, i, data[i],
                expected[i]);
    for (size_t i = sent; i < posted; i++)
        REQUIRE(data[i] == POISON, "message %u: byte %zu, past its %zu bytes, is written", iteration, i, sent);
    for (int i = 1; i <= GUARD; i++)
        REQUIRE(data[-i] == EDGE && data[posted + (size_t)i - 1] == EDGE, "message %u: written past the receive", iteration);
}

// The content of irecv's request argument: 1 means "completion is optional", which v6 to v8 do not have. Such a receive may be done without
// a size, before its bytes have arrived: a kernel polls them, and gives the buffer back.
static bool is_optional(unsigned number)
{
    return version >= 9 && number % 4 != 0;
}

static void *before_receive(unsigned number)
{
    if (number % 4 == 0)
        return NULL;
    return is_optional(number) ? (void *)(uintptr_t)1 : STALE;
}

// Bytes that all differ from the message's, so that each of them shows when it has arrived.
static void clear_slot(unsigned char *data, int sender, unsigned iteration, size_t size, size_t posted)
{
    memset(data, POISON, posted);
    memcpy(data, inverse + place_in_text(sender, iteration), size);
    memset(data + posted, EDGE, GUARD);
}

// Continues from byte *seen, which the kernel has reached.
static bool has_landed(const unsigned char *data, int sender, unsigned iteration, size_t size, size_t *seen)
{
    const volatile unsigned char *bytes = data;
    const unsigned char *expected = content(sender, iteration);
    while (*seen < size && bytes[*seen] == expected[*seen])
        (*seen)++;
    return *seen == size;
}

// One test of a request, with every output poisoned. `sizes` may be null.
static bool test_once(void *request, int *size)
{
    int done = 77;
    int sizes[64];
    for (int i = 0; i < 64; i++)
        sizes[i] = -7;
    SUCCEEDS(net_test(request, &done, size == NULL ? NULL : sizes));
    REQUIRE(done == 0 || done == 1, "test left done as it was: %d", done);
    for (int i = 1; i < 64 && size != NULL; i++)
        REQUIRE(sizes[i] == -7, "test wrote size %d of one message", i);
    if (size != NULL)
        *size = sizes[0];
    return done == 1;
}

// No request, or one that completes.
static void flush(const struct link *link, const struct side *in)
{
    void *data = slot(in, 0), *region = in->region, *request = STALE;
    int size = 8;
    SUCCEEDS(net_flush(link->receive, 1, &data, &size, &region, &request));
    REQUIRE(request != STALE, "iflush left the request as it was");
    while (request != NULL && !test_once(request, NULL))
        sched_yield();
}

static unsigned messages;

// `count` messages in each direction, as many outstanding as in NCCL; only the oldest request of each side is tested.
static void exchange(const struct link *link, const struct side *out, const struct side *in, int from, size_t size,
                     size_t posted, unsigned count)
{
    unsigned base = messages;
    unsigned sent = 0, sent_done = 0, receiving = 0, reported = 0, received = 0;
    unsigned filled = 0, cleared = 0;
    size_t seen = 0;
    int sizes[OUTSTANDING];
    void *sends[OUTSTANDING], *receives[OUTSTANDING];
    for (int i = 0; i < OUTSTANDING; i++)
        sends[i] = STALE;
    while (sent_done < count || received < count) {
        if (receiving < count && receiving - received < OUTSTANDING) {
            unsigned char *data = slot(in, receiving);
            if (cleared == receiving) {
                clear_slot(data, from, base + receiving, size, posted);
                cleared++;
            }
            void *address = data, *region = in->region, *request = before_receive(receiving);
            int tag = (int)(base + receiving);
            SUCCEEDS(net_receive(link->receive, 1, &address, &posted, &tag, &region, &request));
            REQUIRE(request != (void *)(uintptr_t)1 && request != STALE, "irecv left the request as it was");
            if (request != NULL)
                receives[receiving++ % OUTSTANDING] = request;
        }
        if (sent < count && sent - sent_done < OUTSTANDING) {
            unsigned char *data = slot(out, sent);
            if (filled == sent)
                memcpy(data, content(rank, base + sent), size);
            filled = sent + 1;
            // As in NCCL the argument still contains the request of eight messages before.
            void **place = &sends[sent % OUTSTANDING];
            void *old = *place;
            SUCCEEDS(net_send(link->send, data, size, (int)(base + sent), out->region, place));
            if (*place != NULL)
                sent++;
            else
                *place = old;
        }
        int got;
        if (sent_done < sent && test_once(sends[sent_done % OUTSTANDING], sent_done % 2 ? &got : NULL))
            sent_done++;
        if (reported < receiving && test_once(receives[reported % OUTSTANDING], &got))
            sizes[reported++ % OUTSTANDING] = got;
        if (received < reported) {
            unsigned iteration = base + received;
            bool early = is_optional(received) && sizes[received % OUTSTANDING] == 0;
            REQUIRE(early || sizes[received % OUTSTANDING] == (int)size, "message %u: reported %d bytes, sent %zu", iteration,
                    sizes[received % OUTSTANDING], size);
            if (!early || has_landed(slot(in, received), from, iteration, size, &seen)) {
                check_received(slot(in, received), from, iteration, size, posted);
                received++;
                seen = 0;
            } else if (reported == receiving && sent_done == count) {
                // Time in the virtual fabric advances by calls.
                flush(link, in);
            }
        }
    }
    messages += count;
}

// A group of receives, whose messages are sent in the reverse order of their tags.
static void exchange_group(const struct link *link, const struct side *out, const struct side *in, int from, int members)
{
    void *data[GROUP_MOST], *regions[GROUP_MOST], *requests[GROUP_MOST], *group = NULL;
    size_t posted[GROUP_MOST];
    int tags[GROUP_MOST], sizes[64];
    for (int i = 0; i < members; i++) {
        data[i] = slot(in, (unsigned)i);
        regions[i] = in->region;
        tags[i] = 2 * i;
        posted[i] = 1024 + 100 * (size_t)i;
        memset(data[i], POISON, posted[i]);
        memset((unsigned char *)data[i] + posted[i], EDGE, GUARD);
    }
    while (group == NULL) {
        group = STALE;
        SUCCEEDS(net_receive(link->receive, members, data, posted, tags, regions, &group));
        REQUIRE(group != STALE, "irecv left the request as it was");
    }
    int next = members - 1, open = members;
    bool received = false, finished[GROUP_MOST] = {false};
    while (open > 0 || !received) {
        if (next >= 0) {
            unsigned char *message = slot(out, (unsigned)next);
            size_t size = 1000 + (size_t)next;
            memcpy(message, content(rank, messages + (unsigned)next), size);
            requests[next] = STALE;
            SUCCEEDS(net_send(link->send, message, size, tags[next], out->region, &requests[next]));
            REQUIRE(requests[next] != STALE, "isend left the request as it was");
            if (requests[next] != NULL)
                next--;
        }
        for (int i = next + 1; i < members; i++) {
            if (!finished[i] && test_once(requests[i], NULL)) {
                finished[i] = true;
                open--;
            }
        }
        if (!received) {
            int done = 77;
            for (int i = 0; i < 64; i++)
                sizes[i] = -7;
            SUCCEEDS(net_test(group, &done, sizes));
            REQUIRE(done == 0 || done == 1, "test left done as it was: %d", done);
            received = done == 1;
        }
    }
    for (int i = 0; i < 64; i++)
        REQUIRE(sizes[i] == (i < members ? 1000 + i : -7), "size %d of a group of %d is %d", i, members, sizes[i]);
    for (int i = 0; i < members; i++)
        check_received(data[i], from, messages + (unsigned)i, 1000 + (size_t)i, posted[i]);
    messages += (unsigned)members;
}

// ---------------------------------------------------------------- misuse

#define REFUSED(call, place)                                            \
    do {                                                                \
        (place) = STALE;                                                \
        int code_ = (call);                                             \
        REQUIRE(code_ != 0, "%s succeeded", #call);                     \
        REQUIRE((place) == NULL, "%s left its place as it was", #call); \
    } while (0)

static void misuse(const struct link *link, const struct side *in, int pointer_support)
{
    stage = "misuse";
    void *place;
    size_t size = 8;
    void *data = slot(in, 0), *region = in->region;
    int tag = 0, done = 77;
    REFUSED(net_send(NULL, data, 8, 0, region, &place), place);
    REFUSED(net_send(link->receive, data, 8, 0, region, &place), place);
    REFUSED(net_receive(link->send, 1, &data, &size, &tag, &region, &place), place);
    REFUSED(net_receive(link->receive, 0, &data, &size, &tag, &region, &place), place);
    REFUSED(net_reg(link->receive, data, 8, 77, &place), place);
    REFUSED(net_reg(link->receive, data, 0, 1, &place), place);
    if ((pointer_support & 2) == 0)
        REFUSED(net_reg(link->receive, data, 8, 2, &place), place);
    REQUIRE(net_test((void *)(uintptr_t)1, &done, NULL) != 0 && done == 0, "test took 1 for a request");
    REQUIRE(net_dereg(link->receive, link->send) != 0, "deregMr took a comm");
}

// ---------------------------------------------------------------- the whole

static void round_trip(int peer, int from, bool with_misuse)
{
    stage = "init";
    context = STALE;
    SUCCEEDS(net_init());
    REQUIRE(version < 11 || (context != NULL && context != STALE), "init gave no context");
    int count = -1;
    SUCCEEDS(net_devices(&count));
    REQUIRE(count >= 1 && count <= 128, "%d devices", count);
    struct properties properties = {0, 0};
    for (int device = count - 1; device >= 0; device--)
        properties = check_properties(device);

    struct link link = connect_to(peer, 0);
    stage = "registration";
    struct side out = new_side(link.send), in = new_side(link.receive);
    void *twice = STALE;
    SUCCEEDS(net_reg(link.receive, in.memory, SLOT, 1, &twice));

    messages = 0;
    static const size_t sizes[] = {0, 1, 8, 4096, 1 << 20, LARGEST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        stage = "messages";
        exchange(&link, &out, &in, from, sizes[i], sizes[i], 2 * OUTSTANDING);
        stage = "receives larger than sends";
        exchange(&link, &out, &in, from, sizes[i], sizes[i] + SLACK, 2 * OUTSTANDING);
    }
    stage = "groups";
    bool alike = getenv("CLIENT_OTHER_VERSION") == NULL;
    for (int members = 2; members <= properties.group_most && alike; members++)
        exchange_group(&link, &out, &in, from, members);
    stage = "a last short message";
    exchange(&link, &out, &in, from, 8, 64, 3);
    stage = "flush";
    flush(&link, &in);
    if (with_misuse)
        misuse(&link, &in, properties.pointer_support);

    stage = "close";
    SUCCEEDS(net_dereg(link.receive, twice));
    SUCCEEDS(net_dereg(link.send, out.region));
    SUCCEEDS(net_dereg(link.receive, in.region));
    free(out.memory);
    free(in.memory);
    SUCCEEDS(net_close_send(link.send));
    SUCCEEDS(net_close_receive(link.receive));
    stage = "finalize";
    SUCCEEDS(net_finalize());
}

int main(int count, char **words)
{
    version = count == 3 ? atoi(words[1]) : 0;
    if (version < 6 || version > 12 || (strcmp(words[2], "self") != 0 && strcmp(words[2], "pair") != 0)) {
        fprintf(stderr, "usage: client 6..12 self|pair\n");
        return 2;
    }
    write_text();
    bool pair = strcmp(words[2], "pair") == 0;
    int ends[2] = {-1, -1};
    pid_t child = -1;
    if (pair) {
        // Before the library is loaded: libfabric does not survive a fork.
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no socket pair");
        child = fork();
        REQUIRE(child >= 0, "no second process");
        rank = child == 0 ? 1 : 0;
        // The two ends may have different rails.
        const char *rails = getenv("CLIENT_OTHER_RAILS");
        if (rank == 1 && rails != NULL)
            REQUIRE(setenv("IRONRAIL_RAILS", rails, 1) == 0, "no room in the environment");
        const char *other = getenv("CLIENT_OTHER_VERSION");
        if (rank == 1 && other != NULL)
            version = atoi(other);
    }
    signal(SIGALRM, out_of_time);
    alarm(SECONDS_MOST);

    int peer = ends[rank];
    if (pair)
        close(ends[1 - rank]);
    // Twice: NCCL closes the library with its last communicator, and opens it again for the next.
    for (int round = 0; round < 2; round++) {
        void *library = load();
        round_trip(peer, pair ? 1 - rank : 0, !pair && round == 1);
        stage = "unload";
        REQUIRE(dlclose(library) == 0, "%s", dlerror());
    }
    if (child > 0) {
        stage = "waiting for the other process";
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child, "the other process is lost");
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process failed: status %#x", (unsigned)status);
    }
    return 0;
}
