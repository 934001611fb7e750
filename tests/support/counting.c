// Counts the allocations of one loaded library: preloaded, it precedes libc's allocator, and checks the callers. Only calls whose return
// address is in that library count, and only while counting is on.

#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static uintptr_t first, last, base;
static volatile int on;

// Held while an allocation is counted, so that counting_stop never takes a count without its stack: other threads allocate, too.
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static unsigned long counted;

// The library's frames on the stack of the first one.
enum { DEPTH = 24 };
static uintptr_t frames[DEPTH];
static int depth;

static void keep_stack(void)
{
    void *found[DEPTH];
    int count = backtrace(found, DEPTH);
    for (int i = 0; i < count; i++) {
        uintptr_t frame = (uintptr_t)found[i];
        if (frame >= first && frame < last)
            frames[depth++] = frame - base;
    }
}

static void check(void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    if (!on || address < first || address >= last)
        return;
    pthread_mutex_lock(&counting);
    if (on && counted++ == 0)
        keep_stack();
    pthread_mutex_unlock(&counting);
}

void *malloc(size_t size)
{
    check(__builtin_return_address(0));
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    check(__builtin_return_address(0));
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    check(__builtin_return_address(0));
    return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    check(__builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

void *memalign(size_t alignment, size_t size)
{
    check(__builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    check(__builtin_return_address(0));
    void *found = __libc_memalign(alignment, size);
    if (found == NULL)
        return ENOMEM;
    *memory = found;
    return 0;
}

static int find(struct dl_phdr_info *info, size_t size, void *name)
{
    (void)size;
    if (strstr(info->dlpi_name, name) == NULL)
        return 0;
    base = info->dlpi_addr;
    first = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = base + segment->p_vaddr;
        if (segment->p_type != PT_LOAD || (segment->p_flags & PF_X) == 0)
            continue;
        if (start < first)
            first = start;
        if (start + segment->p_memsz > last)
            last = start + segment->p_memsz;
    }
    return 1;
}

// Starts counting the allocations of the library whose path contains this; 0 if none is loaded.
int counting_start(const char *name)
{
    counted = 0;
    depth = 0;
    if (dl_iterate_phdr(find, (void *)(uintptr_t)name) == 0)
        return 0;
    // Its first call allocates.
    void *warm[1];
    backtrace(warm, 1);
    on = 1;
    return 1;
}

// Stops, and returns the number; the stack of the first one goes to `offsets`, innermost frame first, at most 24.
unsigned long counting_stop(uintptr_t *offsets)
{
    pthread_mutex_lock(&counting);
    on = 0;
    unsigned long found = counted;
    memcpy(offsets, frames, (size_t)depth * sizeof *frames);
    pthread_mutex_unlock(&counting);
    return found;
}
