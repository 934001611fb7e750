// Loads the plugin as NCCL does and uses it from two threads per communicator, as NCCL's proxy does: a service thread
// listens, connects, registers and closes, while a progress thread sends, receives, flushes and tests.
//
//     stress COMMUNICATORS ROUNDS MESSAGES
//
// Each communicator sends to the next one and receives from the one before it, and every byte is checked. In each round the
// comms are made anew. NCCL_NET_PLUGIN names the plugin. Every failure is one line and exit status 1; a wait without end is
// one line and exit status 3. The threads meet by pthread's own means alone, so that valgrind's tools can follow.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ironrail.h"

#define FAIL(...)                                          \
    do {                                                   \
        fprintf(stderr, "stress: ");                       \
        fprintf(stderr, __VA_ARGS__);                      \
        fprintf(stderr, " (line %d)\n", __LINE__);         \
        _exit(1);                                          \
    } while (0)
#define REQUIRE(condition, ...) \
    do {                        \
        if (!(condition))       \
            FAIL(__VA_ARGS__);  \
    } while (0)
#define SUCCEEDS(call)                                \
    do {                                              \
        int code_ = (call);                           \
        REQUIRE(code_ == 0, "%s gave %d", #call, code_); \
    } while (0)

enum { HANDLE = 128, COMMUNICATORS_MOST = 64, SLOTS = 8, SLOT = 1 << 17, ARENA = SLOTS * SLOT, HOST = 1 };

static const IronrailNetV12 *net;
static long rounds, messages;

static void out_of_time(int signal)
{
    (void)signal;
    static const char text[] = "stress: no end in sight\n";
    (void)!write(2, text, sizeof text - 1);
    _exit(3);
}

// A warning is a failure: nothing here is wrong or slow enough for one.
static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    (void)flags;
    if (level > 2 && getenv("STRESS_VERBOSE") == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d ", file, line);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    REQUIRE(level > 2, "a warning");
}

// ---------------------------------------------------------------- what the threads of a communicator share

// A buffer and its region. The service thread registers it again from time to time, and the progress thread switches to the new region when
// nothing is in flight on the old one.
struct memory {
    unsigned char *bytes;
    void *offered;
    void *used;
    void *returned;
};

struct communicator {
    int number;
    void *context;
    pthread_t threads[2];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // The handle that the previous communicator connects with; it is taken once per round.
    unsigned char handle[HANDLE];
    bool has_handle;
    // The round that the progress thread may work on, and the last one that it has finished.
    long begun, finished;
    void *send, *receive;
    struct memory out, in;
    long registrations;
};

static struct communicator all[COMMUNICATORS_MOST];
static int communicators;
// As in NCCL, which runs a communicator's init under one lock of the process.
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock(struct communicator *c) { SUCCEEDS(pthread_mutex_lock(&c->lock)); }
static void unlock(struct communicator *c) { SUCCEEDS(pthread_mutex_unlock(&c->lock)); }
static void wait_for_change(struct communicator *c) { SUCCEEDS(pthread_cond_wait(&c->changed, &c->lock)); }
static void changed(struct communicator *c) { SUCCEEDS(pthread_cond_broadcast(&c->changed)); }

// ---------------------------------------------------------------- the data

static size_t length(long message)
{
    static const size_t lengths[] = {8, 600, 0, 20000, 64, 4096, SLOT - 5, 1};
    return lengths[message % 8];
}

static unsigned char pattern(int sender, long round, long message, size_t at)
{
    return (unsigned char)(at * 7 + at / 251 + (size_t)message * 13 + (size_t)round * 29 + (size_t)sender * 61);
}

// ---------------------------------------------------------------- the progress thread

// Switches to a new region. Only when nothing is in flight on the old one.
static void take_over(struct communicator *c, struct memory *memory)
{
    lock(c);
    if (memory->offered != NULL && memory->returned == NULL) {
        memory->returned = memory->used;
        memory->used = memory->offered;
        memory->offered = NULL;
    }
    unlock(c);
}

static void finish(void *request)
{
    for (int done = 0; !done;) {
        int sizes[1] = {-1};
        SUCCEEDS(net->test(request, &done, sizes));
        if (!done)
            sched_yield();
    }
}

static void flush(struct communicator *c, unsigned char *data, size_t len)
{
    void *list[1] = {data}, *regions[1] = {c->in.used}, *request = NULL;
    int sizes[1] = {(int)len};
    SUCCEEDS(net->iflush(c->receive, 1, list, sizes, regions, &request));
    if (request != NULL)
        finish(request);
}

// One attempt each to receive and to send, and a test of the oldest of each, as in NCCL's progress thread.
static void move_data(struct communicator *c, long round)
{
    void *sends[SLOTS], *receives[SLOTS];
    long posted_sends = 0, done_sends = 0, posted_receives = 0, done_receives = 0;
    int from = (c->number + communicators - 1) % communicators;
    while (done_sends < messages || done_receives < messages) {
        // From time to time the window is emptied, so that the region can change.
        if (posted_receives == done_receives)
            take_over(c, &c->in);
        bool drains = posted_receives % 32 == 31 && posted_receives != done_receives;
        if (posted_receives < messages && posted_receives - done_receives < SLOTS && !drains) {
            void *data[1] = {c->in.bytes + posted_receives % SLOTS * SLOT}, *regions[1] = {c->in.used}, *request = NULL;
            size_t sizes[1] = {SLOT};
            int tags[1] = {(int)posted_receives};
            memset(data[0], 0xdd, SLOT);
            SUCCEEDS(net->irecv(c->receive, 1, data, sizes, tags, regions, NULL, &request));
            if (request != NULL)
                receives[posted_receives++ % SLOTS] = request;
        }
        if (posted_sends == done_sends)
            take_over(c, &c->out);
        drains = posted_sends % 16 == 15 && posted_sends != done_sends;
        if (posted_sends < messages && posted_sends - done_sends < SLOTS && !drains) {
            unsigned char *data = c->out.bytes + posted_sends % SLOTS * SLOT;
            void *request = NULL;
            for (size_t at = 0; at < length(posted_sends); at++)
                data[at] = pattern(c->number, round, posted_sends, at);
            SUCCEEDS(net->isend(c->send, data, length(posted_sends), (int)posted_sends, c->out.used, NULL, &request));
            if (request != NULL)
                sends[posted_sends++ % SLOTS] = request;
        }
        int done = 0, sizes[1] = {-1};
        if (done_sends < posted_sends) {
            SUCCEEDS(net->test(sends[done_sends % SLOTS], &done, sizes));
            done_sends += done;
        }
        done = 0;
        if (done_receives < posted_receives)
            SUCCEEDS(net->test(receives[done_receives % SLOTS], &done, sizes));
        if (done) {
            unsigned char *data = c->in.bytes + done_receives % SLOTS * SLOT;
            size_t len = length(done_receives);
            REQUIRE(sizes[0] == (int)len, "message %ld of communicator %d has %d bytes, not %zu", done_receives, from,
                    sizes[0], len);
            if (len != 0)
                flush(c, data, len);
            for (size_t at = 0; at < len; at++)
                REQUIRE(data[at] == pattern(from, round, done_receives, at), "byte %zu of message %ld is damaged", at,
                        done_receives);
            REQUIRE(data[len] == 0xdd, "message %ld wrote past its end", done_receives);
            done_receives++;
        }
        sched_yield();
    }
}

static void *progress(void *argument)
{
    struct communicator *c = argument;
    for (long round = 1; round <= rounds; round++) {
        lock(c);
        while (c->begun < round)
            wait_for_change(c);
        unlock(c);
        move_data(c, round);
        lock(c);
        c->finished = round;
        changed(c);
        unlock(c);
    }
    return NULL;
}

// ---------------------------------------------------------------- the service thread

static void publish(struct communicator *c, const unsigned char *handle)
{
    lock(c);
    while (c->has_handle)
        wait_for_change(c);
    memcpy(c->handle, handle, HANDLE);
    c->has_handle = true;
    changed(c);
    unlock(c);
}

static void take_handle(struct communicator *of, unsigned char *handle)
{
    lock(of);
    while (!of->has_handle)
        wait_for_change(of);
    memcpy(handle, of->handle, HANDLE);
    of->has_handle = false;
    changed(of);
    unlock(of);
}

// Both halves at once, since each depends on progress of the other end.
static void meet(struct communicator *c, void *listener, unsigned char *handle, void **send, void **receive)
{
    *send = *receive = NULL;
    while (*send == NULL || *receive == NULL) {
        if (*send == NULL)
            SUCCEEDS(net->connect(c->context, 0, handle, send, NULL));
        if (*receive == NULL)
            SUCCEEDS(net->accept(listener, receive, NULL));
        sched_yield();
    }
}

static void *registered(struct communicator *c, void *comm, unsigned char *bytes, size_t len)
{
    void *region = NULL;
    SUCCEEDS(net->regMr(comm, bytes, len, HOST, &region));
    REQUIRE(region != NULL, "regMr gave no region");
    c->registrations++;
    return region;
}

// Offers a new region for the same buffer, and deregisters the one that the progress thread has released.
static void renew(struct communicator *c, void *comm, struct memory *memory)
{
    lock(c);
    void *old = memory->returned;
    memory->returned = NULL;
    bool wanted = memory->offered == NULL;
    unlock(c);
    if (old != NULL)
        SUCCEEDS(net->deregMr(comm, old));
    if (!wanted)
        return;
    void *region = registered(c, comm, memory->bytes, ARENA);
    lock(c);
    memory->offered = region;
    unlock(c);
}

static void forget(void *comm, struct memory *memory)
{
    void *regions[] = {memory->offered, memory->used, memory->returned};
    for (int i = 0; i < 3; i++)
        if (regions[i] != NULL)
            SUCCEEDS(net->deregMr(comm, regions[i]));
    memory->offered = memory->used = memory->returned = NULL;
}

// The work of a service thread while messages move: regions of other buffers, and comms of other peers.
static void serve(struct communicator *c, unsigned char *other, long round)
{
    renew(c, c->send, &c->out);
    renew(c, c->receive, &c->in);
    void *region = registered(c, round % 2 == 0 ? c->send : c->receive, other + round % 7 * 4096, 4096 * (1 + (size_t)round % 9));
    if (round % 4 == 0) {
        unsigned char handle[HANDLE];
        void *listener = NULL, *send, *receive;
        SUCCEEDS(net->listen(c->context, 0, handle, &listener));
        meet(c, listener, handle, &send, &receive);
        SUCCEEDS(net->closeSend(send));
        SUCCEEDS(net->closeRecv(receive));
        SUCCEEDS(net->closeListen(listener));
    }
    IronrailPropertiesV12 properties;
    SUCCEEDS(net->getProperties(0, &properties));
    SUCCEEDS(net->deregMr(round % 2 == 0 ? c->send : c->receive, region));
}

static void *service(void *argument)
{
    struct communicator *c = argument, *next = &all[(c->number + 1) % communicators];
    unsigned char *other = malloc(ARENA);
    REQUIRE(other != NULL, "no memory");
    IronrailCommConfig config = {.trafficClass = -1};
    int devices = 0;
    SUCCEEDS(pthread_mutex_lock(&init_lock));
    SUCCEEDS(net->init(&c->context, (uint64_t)c->number + 1, &config, log_line, NULL));
    SUCCEEDS(net->devices(&devices));
    SUCCEEDS(pthread_mutex_unlock(&init_lock));
    REQUIRE(devices > 0, "no devices");
    for (long round = 1; round <= rounds; round++) {
        unsigned char handle[HANDLE];
        void *listener = NULL;
        SUCCEEDS(net->listen(c->context, 0, handle, &listener));
        publish(c, handle);
        take_handle(next, handle);
        meet(c, listener, handle, &c->send, &c->receive);
        SUCCEEDS(net->closeListen(listener));
        c->out.used = registered(c, c->send, c->out.bytes, ARENA);
        c->in.used = registered(c, c->receive, c->in.bytes, ARENA);
        lock(c);
        c->begun = round;
        changed(c);
        while (c->finished < round) {
            unlock(c);
            serve(c, other, c->registrations);
            sched_yield();
            lock(c);
        }
        unlock(c);
        forget(c->send, &c->out);
        forget(c->receive, &c->in);
        SUCCEEDS(net->closeSend(c->send));
        SUCCEEDS(net->closeRecv(c->receive));
    }
    SUCCEEDS(net->finalize(c->context));
    free(other);
    return NULL;
}

// ---------------------------------------------------------------- start and end

static void load(void)
{
    const char *word = getenv("NCCL_NET_PLUGIN");
    REQUIRE(word != NULL, "NCCL_NET_PLUGIN is not set");
    char file[4096];
    snprintf(file, sizeof file, strchr(word, '/') == NULL ? "libnccl-net-%s.so" : "%s", word);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library != NULL, "%s", dlerror());
    net = dlsym(library, "ncclNetPlugin_v12");
    REQUIRE(net != NULL, "no table of version 12");
}

static void begin(struct communicator *c, int number)
{
    c->number = number;
    c->out.bytes = malloc(ARENA);
    // A byte behind the last slot, to detect writes beyond a message.
    c->in.bytes = malloc(ARENA + 1);
    REQUIRE(c->out.bytes != NULL && c->in.bytes != NULL, "no memory");
    SUCCEEDS(pthread_mutex_init(&c->lock, NULL));
    SUCCEEDS(pthread_cond_init(&c->changed, NULL));
}

int main(int count, char **words)
{
    REQUIRE(count == 4, "stress COMMUNICATORS ROUNDS MESSAGES");
    communicators = atoi(words[1]);
    rounds = atol(words[2]);
    messages = atol(words[3]);
    REQUIRE(communicators >= 1 && communicators <= COMMUNICATORS_MOST, "%d communicators", communicators);
    const char *bound = getenv("STRESS_SECONDS");
    signal(SIGALRM, out_of_time);
    alarm(bound == NULL ? 120 : (unsigned)atoi(bound));
    load();
    for (int i = 0; i < communicators; i++)
        begin(&all[i], i);
    for (int i = 0; i < communicators; i++) {
        SUCCEEDS(pthread_create(&all[i].threads[0], NULL, service, &all[i]));
        SUCCEEDS(pthread_create(&all[i].threads[1], NULL, progress, &all[i]));
    }
    long registrations = 0;
    for (int i = 0; i < communicators; i++) {
        SUCCEEDS(pthread_join(all[i].threads[0], NULL));
        SUCCEEDS(pthread_join(all[i].threads[1], NULL));
        registrations += all[i].registrations;
        free(all[i].out.bytes);
        free(all[i].in.bytes);
    }
    printf("stress: %d communicators x 2 threads, %ld rounds, %ld messages, %ld registrations\n", communicators, rounds,
           communicators * rounds * messages, registrations);
    return 0;
}
