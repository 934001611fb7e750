// A libfabric that has a version and nothing else: -DMAJOR=2 -DMINOR=9. With -DNEEDED it is the one that a plugin is linked with.
#include <stddef.h>
#include <stdint.h>

#ifdef NEEDED
int needed(void) { return 0; }
#else
int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const void *hints, void **info) {
  (void)version, (void)node, (void)service, (void)flags, (void)hints;
  *info = NULL;
  return -61;
}
void *fi_dupinfo(const void *info) { return (void *)info; }
void fi_freeinfo(void *info) { (void)info; }
int fi_fabric(void *attr, void **fabric, void *context) {
  (void)attr, (void)context;
  *fabric = NULL;
  return -61;
}
uint32_t fi_version(void) { return MAJOR << 16 | MINOR; }
const char *fi_strerror(int number) { (void)number; return "none"; }
#endif
