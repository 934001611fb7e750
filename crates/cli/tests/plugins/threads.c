// For LD_PRELOAD: a process gets THREADS threads, and no more, as under a limit of processes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static int started;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument)
{
	const char *limit = getenv("THREADS");
	if (limit && __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED) >= atoi(limit))
		return EAGAIN;
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
	return real(thread, attributes, body, argument);
}
