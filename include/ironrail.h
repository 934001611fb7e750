// Ironrail's tables as C sees them: what NCCL finds in libnccl-net-ironrail.so.

#ifndef IRONRAIL_H
#define IRONRAIL_H

// Generated from src/abi and crates/net-abi by scripts/header. Do not edit.

#include <stddef.h>
#include <stdint.h>

// ncclResult_t. An integer, because a foreign plugin may return any.
typedef int IronrailResult;
#define IronrailResult_SUCCESS 0
#define IronrailResult_UNHANDLED_CUDA_ERROR 1
#define IronrailResult_SYSTEM_ERROR 2
#define IronrailResult_INTERNAL_ERROR 3
#define IronrailResult_INVALID_ARGUMENT 4
#define IronrailResult_INVALID_USAGE 5
#define IronrailResult_REMOTE_ERROR 6
#define IronrailResult_IN_PROGRESS 7

// NCCL's logger, printf-like: call it with "%s" and one string.
typedef void (*IronrailLogger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

// NCCL's profiler callback, v10 and newer.
typedef IronrailResult (*IronrailProfiler)(void **event, int kind, void *parent, int64_t plugin, void *data);

typedef IronrailResult (*IronrailInitV10)(IronrailLogger logger, IronrailProfiler profiler);

typedef IronrailResult (*IronrailDevices)(int *count);

// The devices a virtual one is made of, v9 to v11. A physical device names itself.
typedef struct {
    int ndevs;
    int devs[4];
} IronrailVProps4;

typedef struct {
    const char *name;
    const char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    // 1: NCCL flushes even where the GPU would not need it.
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    IronrailVProps4 vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
} IronrailPropertiesV9;

typedef IronrailResult (*IronrailGetPropertiesV9)(int device, IronrailPropertiesV9 *properties);

typedef IronrailResult (*IronrailListenV6)(int device, void *handle, void **listener);

// What a communicator asks of the network: in `init` since v11, in `connect` in v10.
typedef struct {
    // -1: undefined.
    int trafficClass;
} IronrailCommConfig;

// What a device-offload plugin gives to kernels. Plugins of type HOST leave it alone.
typedef struct {
    int netDeviceType;
    int netDeviceVersion;
    void *handle;
    size_t size;
    int needsProxyProgress;
} IronrailDevHandle;

typedef IronrailResult (*IronrailConnectV10)(int device,
                                             IronrailCommConfig *config,
                                             void *handle,
                                             void **comm,
                                             IronrailDevHandle **device_comm);

typedef IronrailResult (*IronrailAcceptV7)(void *listener, void **comm, IronrailDevHandle **device_comm);

typedef IronrailResult (*IronrailRegMrV8)(void *comm, void *data, size_t size, int kind, void **region);

// NCCL closes the descriptor right after the call.
typedef IronrailResult (*IronrailRegMrDmaBuf)(void *comm,
                                              void *data,
                                              size_t size,
                                              int kind,
                                              uint64_t offset,
                                              int descriptor,
                                              void **region);

typedef IronrailResult (*IronrailDeregMr)(void *comm, void *region);

typedef IronrailResult (*IronrailIsendV10)(void *comm,
                                           void *data,
                                           size_t size,
                                           int tag,
                                           void *region,
                                           void *profiler_parent,
                                           void **request);

typedef IronrailResult (*IronrailIrecvV10)(void *comm,
                                           int count,
                                           void **data,
                                           size_t *sizes,
                                           int *tags,
                                           void **regions,
                                           void **profiler_parents,
                                           void **request);

// Success with a null request: nothing to wait for. Sizes are `int` in every version.
typedef IronrailResult (*IronrailIflush)(void *comm, int count, void **data, int *sizes, void **regions, void **request);

// Sizes may be null, and are `int` in every version.
typedef IronrailResult (*IronrailTest)(void *request, int *done, int *sizes);

// closeSend, closeRecv, closeListen.
typedef IronrailResult (*IronrailClose)(void *comm);

typedef IronrailResult (*IronrailGetDeviceMr)(void *comm, void *region, void **device_region);

typedef IronrailResult (*IronrailIrecvConsumed)(void *comm, int count, void *request);

typedef IronrailResult (*IronrailMakeVDeviceV9)(int *device, IronrailVProps4 *properties);

// v10: traffic class in `connect`, profiler handles.
typedef struct {
    const char *name;
    IronrailInitV10 init;
    IronrailDevices devices;
    IronrailGetPropertiesV9 getProperties;
    IronrailListenV6 listen;
    IronrailConnectV10 connect;
    IronrailAcceptV7 accept;
    IronrailRegMrV8 regMr;
    IronrailRegMrDmaBuf regMrDmaBuf;
    IronrailDeregMr deregMr;
    IronrailIsendV10 isend;
    IronrailIrecvV10 irecv;
    IronrailIflush iflush;
    IronrailTest test;
    IronrailClose closeSend;
    IronrailClose closeRecv;
    IronrailClose closeListen;
    IronrailGetDeviceMr getDeviceMr;
    IronrailIrecvConsumed irecvConsumed;
    IronrailMakeVDeviceV9 makeVDevice;
} IronrailNetV10;

// Once per communicator.
typedef IronrailResult (*IronrailInitV11)(void **context,
                                          uint64_t communicator,
                                          IronrailCommConfig *config,
                                          IronrailLogger logger,
                                          IronrailProfiler profiler);

typedef struct {
    const char *name;
    const char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    IronrailVProps4 vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
} IronrailPropertiesV11;

typedef IronrailResult (*IronrailGetPropertiesV11)(int device, IronrailPropertiesV11 *properties);

typedef IronrailResult (*IronrailListenV11)(void *context, int device, void *handle, void **listener);

typedef IronrailResult (*IronrailConnectV11)(void *context,
                                             int device,
                                             void *handle,
                                             void **comm,
                                             IronrailDevHandle **device_comm);

typedef IronrailResult (*IronrailFinalize)(void *context);

// Hints for one direction of a communicator's connections; -1: undefined.
typedef struct {
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
} IronrailCommAttr;

// Hints of `setNetAttr`, v11 and newer.
typedef struct {
    IronrailCommAttr sendCommAttr;
    IronrailCommAttr recvCommAttr;
    // Bits, one per kind of collective.
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
} IronrailNetAttr;

typedef IronrailResult (*IronrailSetNetAttr)(void *context, IronrailNetAttr *attributes);

// v11: a context per communicator, `finalize`, hints.
typedef struct {
    const char *name;
    IronrailInitV11 init;
    IronrailDevices devices;
    IronrailGetPropertiesV11 getProperties;
    IronrailListenV11 listen;
    IronrailConnectV11 connect;
    IronrailAcceptV7 accept;
    IronrailRegMrV8 regMr;
    IronrailRegMrDmaBuf regMrDmaBuf;
    IronrailDeregMr deregMr;
    IronrailIsendV10 isend;
    IronrailIrecvV10 irecv;
    IronrailIflush iflush;
    IronrailTest test;
    IronrailClose closeSend;
    IronrailClose closeRecv;
    IronrailClose closeListen;
    IronrailGetDeviceMr getDeviceMr;
    IronrailIrecvConsumed irecvConsumed;
    IronrailMakeVDeviceV9 makeVDevice;
    IronrailFinalize finalize;
    IronrailSetNetAttr setNetAttr;
} IronrailNetV11;

// The devices a virtual one is made of, v12.
typedef struct {
    int ndevs;
    int devs[8];
} IronrailVProps8;

typedef struct {
    const char *name;
    const char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    IronrailVProps8 vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
    // -1: undefined; 0 is a rail like any other.
    int16_t railId;
    int16_t planeId;
} IronrailPropertiesV12;

typedef IronrailResult (*IronrailGetPropertiesV12)(int device, IronrailPropertiesV12 *properties);

typedef IronrailResult (*IronrailMakeVDeviceV12)(int *device, IronrailVProps8 *properties);

// v12: wider virtual devices, rails and planes.
typedef struct {
    const char *name;
    IronrailInitV11 init;
    IronrailDevices devices;
    IronrailGetPropertiesV12 getProperties;
    IronrailListenV11 listen;
    IronrailConnectV11 connect;
    IronrailAcceptV7 accept;
    IronrailRegMrV8 regMr;
    IronrailRegMrDmaBuf regMrDmaBuf;
    IronrailDeregMr deregMr;
    IronrailIsendV10 isend;
    IronrailIrecvV10 irecv;
    IronrailIflush iflush;
    IronrailTest test;
    IronrailClose closeSend;
    IronrailClose closeRecv;
    IronrailClose closeListen;
    IronrailGetDeviceMr getDeviceMr;
    IronrailIrecvConsumed irecvConsumed;
    IronrailMakeVDeviceV12 makeVDevice;
    IronrailFinalize finalize;
    IronrailSetNetAttr setNetAttr;
} IronrailNetV12;

typedef IronrailResult (*IronrailInitV6)(IronrailLogger logger);

typedef struct {
    const char *name;
    // Null where the device is on no PCI bus.
    const char *pciPath;
    uint64_t guid;
    // `PTR_HOST` and what else `regMr` takes.
    int ptrSupport;
    // Megabits per second.
    int speed;
    int port;
    // Microseconds.
    float latency;
    int maxComms;
    // Largest group of receives.
    int maxRecvs;
} IronrailPropertiesV6;

typedef IronrailResult (*IronrailGetPropertiesV6)(int device, IronrailPropertiesV6 *properties);

// Success with a null comm: not yet, call again with the same handle.
typedef IronrailResult (*IronrailConnectV6)(int device, void *handle, void **comm);

// Success with a null comm: not yet, call again.
typedef IronrailResult (*IronrailAcceptV6)(void *listener, void **comm);

typedef IronrailResult (*IronrailRegMrV6)(void *comm, void *data, int size, int kind, void **region);

// Success with a null request: cannot be posted now, call again.
typedef IronrailResult (*IronrailIsendV6)(void *comm, void *data, int size, int tag, void *region, void **request);

// Success with a null request: cannot be posted now, call again.
typedef IronrailResult (*IronrailIrecvV6)(void *comm,
                                          int count,
                                          void **data,
                                          int *sizes,
                                          int *tags,
                                          void **regions,
                                          void **request);

// v6: the oldest form that NCCL still looks for.
typedef struct {
    const char *name;
    IronrailInitV6 init;
    IronrailDevices devices;
    IronrailGetPropertiesV6 getProperties;
    IronrailListenV6 listen;
    IronrailConnectV6 connect;
    IronrailAcceptV6 accept;
    IronrailRegMrV6 regMr;
    IronrailRegMrDmaBuf regMrDmaBuf;
    IronrailDeregMr deregMr;
    IronrailIsendV6 isend;
    IronrailIrecvV6 irecv;
    IronrailIflush iflush;
    IronrailTest test;
    IronrailClose closeSend;
    IronrailClose closeRecv;
    IronrailClose closeListen;
} IronrailNetV6;

typedef struct {
    const char *name;
    const char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
} IronrailPropertiesV7;

typedef IronrailResult (*IronrailGetPropertiesV7)(int device, IronrailPropertiesV7 *properties);

typedef IronrailResult (*IronrailConnectV7)(int device, void *handle, void **comm, IronrailDevHandle **device_comm);

// v7: device offload.
typedef struct {
    const char *name;
    IronrailInitV6 init;
    IronrailDevices devices;
    IronrailGetPropertiesV7 getProperties;
    IronrailListenV6 listen;
    IronrailConnectV7 connect;
    IronrailAcceptV7 accept;
    IronrailRegMrV6 regMr;
    IronrailRegMrDmaBuf regMrDmaBuf;
    IronrailDeregMr deregMr;
    IronrailIsendV6 isend;
    IronrailIrecvV6 irecv;
    IronrailIflush iflush;
    IronrailTest test;
    IronrailClose closeSend;
    IronrailClose closeRecv;
    IronrailClose closeListen;
    IronrailGetDeviceMr getDeviceMr;
    IronrailIrecvConsumed irecvConsumed;
} IronrailNetV7;

typedef struct {
    const char *name;
    const char *pciPath;
    uint64_t guid;
    int ptrSupport;
    // 1: a region is good for every comm, and registering a part of it again costs next to nothing.
    int regIsGlobal;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
} IronrailPropertiesV8;

typedef IronrailResult (*IronrailGetPropertiesV8)(int device, IronrailPropertiesV8 *properties);

// v8: regions of 2 GiB and more, which may be global.
typedef struct {
    const char *name;
    IronrailInitV6 init;
    IronrailDevices devices;
    IronrailGetPropertiesV8 getProperties;
    IronrailListenV6 listen;
    IronrailConnectV7 connect;
    IronrailAcceptV7 accept;
    IronrailRegMrV8 regMr;
    IronrailRegMrDmaBuf regMrDmaBuf;
    IronrailDeregMr deregMr;
    IronrailIsendV6 isend;
    IronrailIrecvV6 irecv;
    IronrailIflush iflush;
    IronrailTest test;
    IronrailClose closeSend;
    IronrailClose closeRecv;
    IronrailClose closeListen;
    IronrailGetDeviceMr getDeviceMr;
    IronrailIrecvConsumed irecvConsumed;
} IronrailNetV8;

typedef IronrailResult (*IronrailIsendV9)(void *comm, void *data, size_t size, int tag, void *region, void **request);

typedef IronrailResult (*IronrailIrecvV9)(void *comm,
                                          int count,
                                          void **data,
                                          size_t *sizes,
                                          int *tags,
                                          void **regions,
                                          void **request);

// v9: message sizes are `size_t`; virtual devices.
typedef struct {
    const char *name;
    IronrailInitV6 init;
    IronrailDevices devices;
    IronrailGetPropertiesV9 getProperties;
    IronrailListenV6 listen;
    IronrailConnectV7 connect;
    IronrailAcceptV7 accept;
    IronrailRegMrV8 regMr;
    IronrailRegMrDmaBuf regMrDmaBuf;
    IronrailDeregMr deregMr;
    IronrailIsendV9 isend;
    IronrailIrecvV9 irecv;
    IronrailIflush iflush;
    IronrailTest test;
    IronrailClose closeSend;
    IronrailClose closeRecv;
    IronrailClose closeListen;
    IronrailGetDeviceMr getDeviceMr;
    IronrailIrecvConsumed irecvConsumed;
    IronrailMakeVDeviceV9 makeVDevice;
} IronrailNetV9;

// The data of a `ncclProfileNetPlugin` event whose id is `PLUGIN`: one message, from the isend or irecv that accepted
// it until test reports its end. Valid for the length of the profiler's call. At the start `failed` and `rails` are
// 0; the update at the stop has all fields.
typedef struct {
    // `SEND` or `RECEIVE`.
    uint8_t kind;
    // 1: the request ended in an error.
    uint8_t failed;
    // The data rails that its parts were given to (a send) or that carried them (a receive), one bit each. 0: it went
    // inside of a packet.
    uint16_t rails;
    // The device's number in this process.
    uint32_t device;
    // The communicator's rails on that device, and the connection there: together they name a comm of this process.
    uint32_t endpoint;
    uint32_t connection;
    // The length of a send. Of a receive: at the start the room, at the stop what has arrived (0 if its completion was
    // optional and left out). 0 at the stop if it failed.
    uint64_t bytes;
} IronrailNetEventV1;
// The plugin's id: its type ("IR") in the high 16 of 32 bits, the version of the data in the low ones.
#define IronrailNetEventV1_PLUGIN 1230110721
#define IronrailNetEventV1_SEND 1
#define IronrailNetEventV1_RECEIVE 2

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The symbol that NCCL loads for version 10.
extern const IronrailNetV10 ncclNetPlugin_v10;

// The symbol that NCCL loads for version 11.
extern const IronrailNetV11 ncclNetPlugin_v11;

// The symbol that NCCL loads for version 12.
extern const IronrailNetV12 ncclNetPlugin_v12;

// The symbol that NCCL loads for version 6.
extern const IronrailNetV6 ncclNetPlugin_v6;

// The symbol that NCCL loads for version 7.
extern const IronrailNetV7 ncclNetPlugin_v7;

// The symbol that NCCL loads for version 8.
extern const IronrailNetV8 ncclNetPlugin_v8;

// The symbol that NCCL loads for version 9.
extern const IronrailNetV9 ncclNetPlugin_v9;

// Writes the settings in effect, and the devices once the plugin has started, as JSON: as much as fits into `bytes` bytes, a NUL among
// them. Returns the length of all of it without the NUL, as snprintf(3) does; 0 after a bug.
//
// # Safety
//
// `text` has room for `bytes` bytes.
size_t ironrail_explain(char *text,
                        size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* IRONRAIL_H */
